"""Several comparisons in one table and figure."""

import math
import warnings

from pda_fed import errors
from pda_fed.compare import cells
from pda_fed.compare import comparison
from pda_fed.compare import figures
import pytest

from tests.compare import hand_made_runs


def _cell(name, *runs, metrics=('accuracy', 'loss')):
  created = [hand_made_runs.create(*run) for run in runs]
  compared = comparison.compare(created, metrics, select_by=metrics[0])
  return cells.Cell(name, compared)


def _cells():
  return [
    # Without PDA-DPMD, and nobody has computed epsilon.
    _cell('a&b', ('warm', 0, 0.3, 90.0, None), metrics=('accuracy',)),
    _cell(
      'one_of',
      ('pda', 0, 0.22, 90.0),
      ('pda', 1, 0.24, 90.0),
      ('warm', 0, 0.20, 90.0),
      ('warm', 1, 0.22, 90.0),
      ('cold', 0, 0.10, 90.0, 2.00001),
      ('cold', 1, 0.12, 90.0, 2.00001),
    ),
  ]


def test_rows_are_those_of_each_cell_and_metric():
  found = _cells()
  assert cells.header(found) == [
    'cell',
    'epsilon',
    'metric',
    'cold start',
    'warm start',
    'PDA-DPMD',
  ]
  assert cells.rows(found) == [
    ['a&b', '?', 'accuracy (%)', '', '30.00', ''],
    # The largest epsilon, rounded up; 0.22 and 0.24 deviate by 0.0141.
    [
      'one_of',
      'at most 2.001',
      'accuracy (%)',
      '11.00 ± 1.41',
      '21.00 ± 1.41',
      '23.00 ± 1.41',
    ],
    [
      'one_of',
      'at most 2.001',
      'loss',
      '1.0000 ± 0.0000',
      '1.0000 ± 0.0000',
      '1.0000 ± 0.0000',
    ],
  ]


def test_clear_winners_are_bold_and_names_are_escaped():
  markdown = cells.as_markdown(_cells()).splitlines()
  assert markdown[1] == '| --- | ---: | --- | ---: | ---: | ---: |'
  assert markdown[2].endswith('|  | 30.00 |  |')
  assert markdown[3].endswith('| 21.00 ± 1.41 | **23.00 ± 1.41** |')
  assert '**' not in markdown[4]
  latex = cells.as_latex(_cells())
  assert r'\begin{tabular}{lrlrrr}' in latex
  assert r'a\&b & ? & accuracy (\%)' in latex
  assert r'one\_of & at most 2.001 & accuracy (\%)' in latex
  assert r'\textbf{23.00 $\pm$ 1.41} \\' in latex


def test_verdicts_are_those_of_each_cell():
  a, b, unequal = cells.lines(_cells())
  assert a == 'a&b: Nothing to compare: only one method has finite results.'
  assert b.startswith('one_of: PDA-DPMD is better than warm start in accuracy')
  assert unequal.startswith('one_of: Not equally private: epsilon is 2.001 for')
  assert len(cells.note(_cells())) == 1


def test_public_data_alone_has_a_column():
  run = hand_made_runs.create('pda', 0, 0.2, 90.0)
  run.result['warm_start'] = {'test': run.result['test']}
  found = [cells.Cell('x', comparison.compare([run])), *_cells()]
  assert cells.header(found)[3:5] == ['public data alone', 'cold start']
  assert cells.rows(found)[0][3:] == ['90.00', '', '', '90.00']
  assert cells.rows(found)[2][3] == ''


def _drawn(found, folder):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    figures.draw_cells(found, folder)
  assert (folder / 'cells.png').read_bytes()[:4] == b'\x89PNG'
  return (folder / 'cells.svg').read_text()


@pytest.mark.parametrize('has_test_curve', [False, True])
def test_figure_has_a_panel_for_each_metric_of_each_cell(
  tmp_path, has_test_curve
):
  found = _cells()
  if has_test_curve:
    for runs in found[1].comparison.runs.values():
      for run in runs:
        for row in run.rows:
          row['test_accuracy'] = row['accuracy']
  svg = _drawn(found, tmp_path)
  assert svg.count('>round<') == 3
  assert svg.count('>test accuracy (%)<') == has_test_curve
  assert svg.count('>validation accuracy (%)<') == 2 - has_test_curve
  # The first cell has no PDA-DPMD; the legend does.
  assert svg.count('>PDA-DPMD<') == 1


@pytest.mark.parametrize('last', [math.nan, math.inf, None, 1.5, 900.0])
def test_figure_of_runs_that_diverge_or_were_not_evaluated(tmp_path, last):
  name = r'n$\foo$'  # No formula.
  found = [_cell(name, ('pda', 0, 0.2, 90.0), metrics=('perplexity',))]
  (run,) = found[0].comparison.runs['pda']
  run.rows[:] = [
    {'round': i, 'perplexity': value}
    for i, value in enumerate([1000.0, 2.0 if last else None, last])
  ]
  assert name in _drawn(found, tmp_path)


def test_figure_of_runs_that_were_never_evaluated(tmp_path):
  found = [_cell('x', ('pda', 0, 0.2, 90.0), metrics=('perplexity',))]
  (run,) = found[0].comparison.runs['pda']
  run.rows[:] = [{'round': 0, 'perplexity': None}]
  assert 'epsilon 1.235' in _drawn(found, tmp_path)


def test_a_curve_of_one_test_is_none():
  (run,) = _cell('x', ('pda', 0, 0.2, 90.0)).comparison.runs['pda']
  run.rows[-1]['test_accuracy'] = 0.2
  assert comparison.compare([run]).curve_part('accuracy') == 'validation'
  run.rows[0]['test_accuracy'] = 0.1
  assert comparison.compare([run]).curve_part('accuracy') == 'test'


@pytest.mark.parametrize(
  ('folders', 'message'),
  [
    (['missing'], 'missing must be the folder of a comparison'),
    (['empty'], 'empty must hold the finished runs'),
    (['empty', 'empty'], 'must name each folder once'),
    (['empty', ''], "folders of comparisons. Found 'empty,'"),
    ([], 'comma-separated list of folders of comparisons'),
  ],
)
def test_folders_that_are_no_comparisons_are_refused(
  tmp_path, monkeypatch, folders, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'empty').mkdir()
  with pytest.raises((errors.OutputError, ValueError), match=message):
    cells.load_cells(folders)


def test_epsilon_of_runs_without_noise_is_infinite():
  run = hand_made_runs.create('pda', 0, 0.2, 90.0, None, noise_multiplier=0.0)
  cell = cells.Cell('no noise', comparison.compare([run]))
  assert cell.comparison.epsilon == math.inf
  assert cell.epsilon == 'inf'
