"""What a run does beside its rounds: one module for each concern."""
