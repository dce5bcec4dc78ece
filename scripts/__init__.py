"""Binaries: `python -m scripts.NAME` or `bazel run //scripts:NAME`."""
