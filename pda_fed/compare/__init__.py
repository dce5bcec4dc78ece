"""From specs to answers: searches, runs, verdicts, tables, figures, a page."""
