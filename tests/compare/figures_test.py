"""Figures of gains."""

from pda_fed.compare import figures
from pda_fed.compare import statistics
import pytest


def _gain(mean):
  return statistics.Difference(mean, mean - 0.5, mean + 0.5, 3, True)


@pytest.mark.parametrize(
  'far, is_cut_off', [(-50.0, True), (50.0, True), (-8.0, False), (0.5, False)]
)
def test_one_far_gain_does_not_hide_the_others(tmp_path, far, is_cut_off):
  gains = {'pda': _gain(0.5), 'semi_dp': _gain(-0.25), 'dope': _gain(far)}
  path = tmp_path / 'gains.svg'
  figures.draw_gains([('a task', 'gain', gains)], path)
  # The arrow has the number, which no tick has.
  assert (f'>{far:.3g}</text>' in path.read_text()) == is_cut_off
