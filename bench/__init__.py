"""Benchmarks; never tests."""
