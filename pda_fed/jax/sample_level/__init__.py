"""DP-SGD with public data, with examples as a batch dimension."""
