"""Figures of curves and of gains."""

import math
import warnings

from pda_fed.compare import comparison
from pda_fed.compare import figures
from pda_fed.compare import verdicts
import pytest

from tests.compare import hand_made_runs


def test_figures_are_the_same_bytes_again(tmp_path):
  found = comparison.compare(hand_made_runs.three_seeds())
  first = figures.draw_comparison(found, tmp_path)
  svg = (tmp_path / 'curves_cold_warm.svg').read_bytes()
  assert figures.draw_comparison(found, tmp_path) == first
  assert (tmp_path / 'curves_cold_warm.svg').read_bytes() == svg


def _drawn(found, folder):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    figures.draw_several(found, folder)
  assert (folder / 'cells.png').read_bytes()[:4] == b'\x89PNG'
  return (folder / 'cells.svg').read_text()


@pytest.mark.parametrize('has_test_curve', [False, True])
def test_each_metric_of_each_comparison_has_a_panel(tmp_path, has_test_curve):
  found = hand_made_runs.several()
  if has_test_curve:
    for run in found['one_of'].all_runs:
      for row in run.rows:
        row['test_accuracy'] = row['accuracy']
  svg = _drawn(found, tmp_path)
  assert svg.count('>round<') == 3
  assert svg.count('>test accuracy (%)<') == has_test_curve
  assert svg.count('>validation accuracy (%)<') == 2 - has_test_curve
  # The first comparison has no PDA-DPMD; the legend does.
  assert svg.count('>PDA-DPMD<') == 1


@pytest.mark.parametrize('last', [math.nan, math.inf, None, 1.5, 900.0])
def test_curves_of_runs_that_diverge_or_were_not_evaluated(tmp_path, last):
  name = r'n$\foo$'  # No formula.
  run = hand_made_runs.create('pda', 0, 0.2, 90.0)
  run.rows[:] = [
    {'round': i, 'perplexity': value}
    for i, value in enumerate([1000.0, 2.0 if last else None, last])
  ]
  found = comparison.compare([run], ['perplexity'])
  assert name in _drawn({name: found}, tmp_path)


@pytest.mark.parametrize(
  'far, is_cut_off', [(-50.0, True), (50.0, True), (-8.0, False), (0.5, False)]
)
def test_one_far_gain_does_not_hide_the_others(tmp_path, far, is_cut_off):
  gains = {
    method: verdicts.Difference(mean, mean - 0.5, mean + 0.5, 3, True)
    for method, mean in {'pda': 0.5, 'semi_dp': -0.25, 'dope': far}.items()
  }
  figures.draw_gains([('a task', 'gain', gains)], tmp_path)
  # The arrow has the number, which no tick has.
  svg = (tmp_path / 'gains.svg').read_text()
  assert (f'>{far:.3g}</text>' in svg) == is_cut_off
