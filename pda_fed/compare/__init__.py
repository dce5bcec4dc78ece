"""Analysis of finished runs: comparisons, sweeps, figures, the HTML report."""
