"""The table of a comparison."""

from pda_fed.compare import comparison
from pda_fed.compare import tables

from tests.compare import hand_made_runs


def test_the_table_of_a_comparison():
  table = tables.of_comparison(
    comparison.compare(hand_made_runs.three_seeds(noise=0.01))
  )
  assert table.as_text().splitlines() == [
    'method         perplexity  accuracy (%)  epsilon  runs',
    '----------  -------------  ------------  -------  ----',
    'cold start  151.00 ± 1.00  10.00 ± 0.00    1.235     3',
    'warm start  101.00 ± 1.00  20.00 ± 0.00    1.235     3',
    'PDA-DPMD     91.00 ± 1.00  23.00 ± 1.00    1.235     3',
  ]
  *others, best = table.as_markdown().splitlines()
  assert best.startswith('| PDA-DPMD | **91.00 ± 1.00** | **23.00 ± 1.00** |')
  assert '**' not in ''.join(others)


def test_accuracy_over_all_tokens_stands_beside_that_over_known_words():
  runs = hand_made_runs.with_public([(0.26, 96.0)])
  for run in runs:
    for test in (run.result['test'], run.result['warm_start']['test']):
      test['accuracy_with_oov'] = 0.3
  table = tables.of_comparison(comparison.compare(runs))
  known, every = 'accuracy, known words (%)', 'accuracy, all tokens (%)'
  assert table.header[1:4] == ['perplexity', known, every]
  first = ['public data alone', '96.00', '26.00', '30.00', '0', '']
  assert table.rows[0] == first
