"""Benchmarks, which are not run as tests."""
