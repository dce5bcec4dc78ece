"""Exact against first-order steps on digits, as users run it."""

import csv

import pytest

from tests.scripts import programs


def _run(*arguments):
  return programs.run('run_digits', *arguments)


@pytest.mark.slow
def test_table_and_csv(tmp_path):
  path = tmp_path / 'new' / 'digits.csv'
  done = _run('--trials=1', f'--csv={path}')
  assert done.returncode == 0, done.stderr
  assert 'first-order' in done.stdout
  with path.open() as file:
    rows = list(csv.DictReader(file))
  assert [(row['budget'], row['method']) for row in rows] == [
    (budget, method)
    for budget in ('10', '30')
    for method in ('public', 'exact', 'warm', 'first-order')
  ]
  assert all(0.8 < float(row['test_accuracy']) < 1 for row in rows)


def test_bad_flags():
  done = _run('--num_public=1797')
  assert done.returncode == 2
  assert 'num_public + num_test must be less than 1797' in done.stderr
