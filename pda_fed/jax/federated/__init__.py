"""DP-FedAvg with public data, with clients as a batch dimension."""
