"""Several comparisons in one table and figure."""

import math

from pda_fed.experiments import cells
from pda_fed.experiments import comparison
from pda_fed.experiments import errors
from pda_fed.experiments import figures
import pytest

from tests.experiments import hand_made_runs


def _cell(name, *runs, metrics=('accuracy', 'loss')):
  created = [hand_made_runs.create(*run) for run in runs]
  return cells.Cell(name, comparison.compare(created, metrics))


_CELLS = [
  _cell(
    'one_of',
    ('pda', 0, 0.22, 90.0),
    ('pda', 1, 0.24, 90.0),
    ('warm', 0, 0.20, 90.0, 2.00001),
    ('cold', 0, 0.10, 90.0),
  ),
  _cell('two', ('warm', 0, 0.3, 90.0, None), metrics=('accuracy',)),
]


def test_rows_are_those_of_each_cell_and_metric():
  assert cells.header(_CELLS) == [
    'cell',
    'epsilon',
    'metric',
    'cold start',
    'warm start',
    'PDA-DPMD',
  ]
  assert cells.rows(_CELLS) == [
    # The largest epsilon, rounded up; 0.22 and 0.24 deviate by 0.0141.
    ['one_of', '2.001', 'accuracy (%)', '10.00', '20.00', '23.00 ± 1.41'],
    ['one_of', '2.001', 'loss', '1.0000', '1.0000', '1.0000 ± 0.0000'],
    # No cold start, no PDA-DPMD, and nobody has computed epsilon.
    ['two', '?', 'accuracy (%)', '', '30.00', ''],
  ]


def test_best_means_are_bold():
  markdown = cells.as_markdown(_CELLS).splitlines()
  assert markdown[1] == '| --- | ---: | --- | ---: | ---: | ---: |'
  assert markdown[2].endswith('| 10.00 | 20.00 | **23.00 ± 1.41** |')
  assert markdown[-1].endswith('|  | **30.00** |  |')
  latex = cells.as_latex(_CELLS)
  assert r'\begin{tabular}{lrlrrr}' in latex
  assert r'one\_of & 2.001 & accuracy (\%)' in latex
  assert r'\textbf{23.00 $\pm$ 1.41} \\' in latex


@pytest.mark.parametrize('has_test_curve', [False, True])
def test_figure_has_a_panel_for_each_metric_of_each_cell(
  tmp_path, has_test_curve
):
  if has_test_curve:
    for runs in _CELLS[0].comparison.runs.values():
      for run in runs:
        for row in run.rows:
          row['test_accuracy'] = row['accuracy']
  figures.draw_cells(_CELLS, tmp_path)
  assert (tmp_path / 'cells.png').read_bytes()[:4] == b'\x89PNG'
  svg = (tmp_path / 'cells.svg').read_text()
  assert svg.count('>round<') == 3
  assert svg.count('>test accuracy (%)<') == has_test_curve
  assert svg.count('>validation accuracy (%)<') == 2 - has_test_curve


def test_a_folder_without_finished_runs_is_refused(tmp_path):
  with pytest.raises(errors.OutputError, match='must hold the finished runs'):
    cells.load_cell(tmp_path)


def test_epsilon_of_runs_without_noise_is_infinite():
  run = hand_made_runs.create('pda', 0, 0.2, 90.0, None, noise_multiplier=0.0)
  cell = cells.Cell('no noise', comparison.compare([run]))
  assert cell.comparison.epsilon == math.inf
  assert cell.epsilon == 'inf'
