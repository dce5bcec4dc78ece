import pytest

from tools import check


@pytest.mark.parametrize(
  'path, expected',
  [
    ('pda_fed/privacy/plan.py', 'tests/privacy/plan_test.py'),
    ('scripts/compare.py', 'tests/scripts/compare_test.py'),
    ('tests/schedules_test.py', 'tests/schedules_test.py'),
    ('results/table1/search.csv', 'tests/tools/write_tables_test.py'),
    ('tests/fake_engine.py', 'tests/fuzz/configs_test.py'),
    ('Makefile', None),
  ],
)
def test_a_change_runs_its_tests(path, expected):
  found = check.tests_for(path)
  assert expected in found if expected else found == set()
  assert all((check.ROOT / test).exists() for test in found)


def test_a_test_that_names_a_module_is_its_test(monkeypatch, tmp_path):
  monkeypatch.setattr(check, 'ROOT', tmp_path)
  (tmp_path / 'tests').mkdir()
  for name, module in (('a', 'plan'), ('b', 'plans')):
    text = f'from pda_fed.privacy import {module}\n'
    (tmp_path / f'tests/{name}_test.py').write_text(text)
  assert check.tests_for('pda_fed/privacy/plan.py') == {'tests/a_test.py'}
