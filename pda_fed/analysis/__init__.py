"""From finished runs to answers: comparisons, sweeps, figures, the page."""
