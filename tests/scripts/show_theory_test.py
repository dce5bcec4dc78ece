"""The theory's table and figure, as users see them."""

import re

import pytest

from tests.scripts import programs

pytestmark = pytest.mark.slow


def _run(*arguments):
  return programs.run('show_theory', *arguments)


def test_table_and_figure(tmp_path):
  done = _run(f'--plot={tmp_path / "theory.png"}')
  assert done.code == 0, done.err
  exponents = re.findall(r'(?:DP-SGD|p\^[\d.]+) +(\d\.\d\d) ', done.out)
  # Isotropic: DP-SGD and PDA-DPMD; a flat direction: DP-SGD, then c = 1.5, 2,
  # 2.25 and 2.5.
  assert exponents == ['2.00'] * 2 + ['2.50', '2.50', '2.50', '2.25', '2.00']
  assert (tmp_path / 'theory.png').stat().st_size > 10_000
  assert (tmp_path / 'theory.svg').exists()


def test_bad_flags():
  done = _run('--num_private=10')
  assert done.code == 2
  assert 'num_public must be at most num_private, 10.0' in done.err
