"""Shared utilities: argument checks, files, tables, signals."""
