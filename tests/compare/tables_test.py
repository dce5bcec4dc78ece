"""Tables of one and of several comparisons, for terminals and for papers."""

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
  assert (
    table.as_latex()
    .splitlines()[6]
    .startswith(
      r'PDA-DPMD & \textbf{91.00 $\pm$ 1.00} & \textbf{23.00 $\pm$ 1.00} &'
    )
  )


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


def test_rows_are_those_of_each_comparison_and_metric():
  table = tables.of_several(hand_made_runs.several())
  titles = ['cold start', 'warm start', 'PDA-DPMD']
  assert table.header == ['cell', 'epsilon', 'metric', *titles]
  # The largest epsilon, rounded up; 0.22 and 0.24 deviate by 0.0141.
  second = ['one_of', 'at most 2.001']
  deviating = ['11.00 ± 1.41', '21.00 ± 1.41', '23.00 ± 1.41']
  assert table.rows == [
    ['a&b', '?', 'accuracy (%)', '', '30.00', ''],
    [*second, 'accuracy (%)', *deviating],
    [*second, 'loss', *(['1.0000 ± 0.0000'] * 3)],
  ]
  markdown = table.as_markdown().splitlines()
  assert markdown[1] == '| --- | ---: | --- | ---: | ---: | ---: |'
  assert markdown[3].endswith('| 21.00 ± 1.41 | **23.00 ± 1.41** |')
  assert '**' not in markdown[4]
  latex = table.as_latex()
  assert r'\begin{tabular}{lrlrrr}' in latex
  assert r'a\&b & ? & accuracy (\%)' in latex
  assert r'one\_of & at most 2.001 & accuracy (\%)' in latex


def test_verdicts_are_those_of_each_comparison():
  a, b, unequal = tables.lines_of_several(hand_made_runs.several())
  assert a == 'a&b: Nothing to compare: only one method has finite results.'
  assert b.startswith('one_of: PDA-DPMD is better than warm start in accuracy')
  assert unequal.startswith('one_of: Not equally private: epsilon is 2.001 for')


def test_public_data_alone_has_a_column():
  runs = hand_made_runs.with_public([(0.26, 96.0)])
  table = tables.of_several(
    {'x': comparison.compare(runs), **hand_made_runs.several()}
  )
  assert table.header[3:5] == ['public data alone', 'cold start']
  assert table.rows[0][3:] == ['96.00', '', '100.00', '99.00']
  assert table.rows[2][3] == ''
