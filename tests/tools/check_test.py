import pathlib

import pytest

from tools import check

_TESTS = [
  p.relative_to(check.ROOT) for p in (check.ROOT / 'tests').rglob('*_test.py')
]


@pytest.mark.parametrize(
  'path, expected',
  [
    ('pda_fed/privacy/plan.py', 'tests/privacy/plan_test.py'),
    # Tested by those who use it.
    ('pda_fed/jax/clipping.py', 'tests/jax/clipping_test.py'),
    ('scripts/compare.py', 'tests/scripts/compare_test.py'),
    ('tests/schedules_test.py', 'tests/schedules_test.py'),
    ('docs/training.md', 'tests/docs/links_test.py'),
    ('results/table1/search.csv', 'tests/tools/write_tables_test.py'),
  ],
)
def test_a_change_runs_its_tests(path, expected):
  found = check.tests_for(path, _TESTS)
  assert expected in found
  assert all((check.ROOT / test).exists() for test in found)
  assert len(found) < len(_TESTS) / 2


@pytest.mark.parametrize('path', ['Makefile', 'tests/fake_engine.py', 'BUILD'])
def test_other_files_have_no_tests(path):
  assert check.tests_for(path, _TESTS) == set()


def test_a_longer_name_is_another_module(monkeypatch, tmp_path):
  monkeypatch.setattr(check, 'ROOT', tmp_path)
  tests = [pathlib.Path('a_test.py'), pathlib.Path('b_test.py')]
  (tmp_path / 'a_test.py').write_text('from pda_fed.privacy import plan\n')
  (tmp_path / 'b_test.py').write_text('from pda_fed.privacy import plans\n')
  assert check.tests_for('pda_fed/privacy/plan.py', tests) == {'a_test.py'}
