"""Examples as a batch dimension: steps of DP-SGD with public data."""
