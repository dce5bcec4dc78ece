"""Clients as a batch dimension: rounds of DP-FedAvg with public data."""
