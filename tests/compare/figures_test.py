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


@pytest.mark.parametrize('last', [math.nan, math.inf, None, 1.5, 900.0])
def test_curves_of_runs_that_diverge_or_were_not_evaluated(tmp_path, last):
  run = hand_made_runs.create('pda', 0, 0.2, 90.0)
  run.rows[:] = [
    {'round': i, 'perplexity': value}
    for i, value in enumerate([1000.0, 2.0 if last else None, last])
  ]
  found = comparison.compare([run], ['perplexity'])
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    figures.draw_comparison(found, tmp_path)
  assert (tmp_path / 'curves_pda.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.parametrize(
  'far, by_decades', [(-50.0, True), (50.0, True), (-8.0, False), (0.5, False)]
)
def test_one_far_gain_does_not_hide_the_others(tmp_path, far, by_decades):
  gains = {
    method: verdicts.Difference(mean, mean - 0.5, mean + 0.5, 3, True)
    for method, mean in {'pda': 0.5, 'semi_dp': -0.25, 'dope': far}.items()
  }
  figures.draw_gains([('a task', 'gain', gains)], tmp_path)
  # Ticks of decades, beyond those of the others.
  svg = (tmp_path / 'gains.svg').read_text()
  assert ('10^{' in svg) == by_decades
