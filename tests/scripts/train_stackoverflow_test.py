"""The main job, run as a user would."""

import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_TINY = ['--population=6', '--clients_per_round=2', '--rounds=2', '--seed=0']


def _run(*arguments: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-m', 'scripts.train_stackoverflow', *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def test_prints_a_table_and_the_guarantee_and_nothing_else():
  first, again = _run(*_TINY), _run(*_TINY)
  assert first.returncode == 0, first.stderr
  assert first.stderr == ''
  lines = first.stdout.splitlines()
  assert lines[2].split() == ['round', 'epsilon', 'accuracy', 'perplexity']
  assert [line.split()[0] for line in lines[4:6]] == ['0', '2']
  # Before training the model knows nothing of its 64 tokens.
  assert 50 < float(lines[4].split()[3]) < 80
  assert re.search(r'Poisson cohorts of 2 out of 6 users', first.stdout)
  assert again.stdout == first.stdout  # A seed repeats all of it.
  assert 'can take the noise off' in first.stdout


@pytest.mark.parametrize(
  'argument, words',
  [
    ('--noise_multiplier=-1', 'noise_multiplier must be non-negative'),
    ('--clients_per_round=9', 'expected_cohort must be in [0, 6]'),
    ('--delta=2', 'delta must be in (0, 1)'),
    ('--rounds=0', 'rounds'),
    ('--nonsense', 'nonsense'),
  ],
)
def test_bad_flags_are_one_line(argument, words):
  done = _run(*_TINY, argument)
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr.count('\n') == 1
  assert words in done.stderr
