"""Tables of the pages have the recorded results, as the writer gives them."""

import re

import pytest

from tools import write_tables
from tools.tables import benchmark
from tools.tables import recorded


@pytest.mark.parametrize('page', write_tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_pages_are_up_to_date(page):
  text = page.read_text()
  assert text == write_tables.with_tables(text), 'run `make docs`'


def test_every_table_is_on_one_page():
  texts = ''.join(page.read_text() for page in write_tables.PAGES)
  names = re.findall('<!-- table: (.*) -->', texts)
  assert sorted(names) == sorted(write_tables.TABLES)
  assert texts.count('<!-- end of table -->') == len(names)


_RUNS = """\
changed,method,seed,settings,epsilon,perplexity,public_perplexity
no noise,warm,0,server_learning_rate=1,0.931,10,20
no noise,warm,1,server_learning_rate=1,0.931,11,20
no noise,warm,2,server_learning_rate=1,0.931,12,23
no noise,pda,0,server_learning_rate=0.5 alpha_i=8,0.931,9,20
no noise,pda,1,server_learning_rate=0.5 alpha_i=8,0.931,9,20
no noise,pda,2,server_learning_rate=0.5 alpha_i=8,0.931,9,23
"""
_PAGE = """\
Before.

<!-- table: benchmark conditions -->

| changed | epsilon | alone | rate | warm start | rate | PDA-DPMD |
|---|--:|--:|--:|--:|--:|--:|
{}

<!-- end of table -->

After.
"""
# Gains of 1, 2 and 3: their mean is 2, with 4.3027 / sqrt(3) = 2.48 either way.
_ROW = (
  '| no noise | 0.94 | 21.00 | 1 | 11.00 | 0.5 | 9.00 (+2.00, -0.48 to +4.48) |'
)


@pytest.fixture
def results(monkeypatch, tmp_path):
  monkeypatch.setattr(recorded, 'RESULTS', tmp_path)
  (tmp_path / 'benchmark').mkdir()
  (tmp_path / 'benchmark/conditions.csv').write_text(_RUNS)
  return tmp_path


@pytest.mark.parametrize(
  'old', ['| no noise | 0 | | | 0 | | 11.00 (old) |', _ROW]
)
def test_a_table_has_the_recorded_numbers(results, old):
  page = write_tables.with_tables(_PAGE.format(old))
  assert page == _PAGE.format(_ROW)


def test_a_changed_number_is_found(results):
  page = _PAGE.format(_ROW)
  changed = _RUNS.replace('0.931,12', '0.931,15')
  (results / 'benchmark/conditions.csv').write_text(changed)
  assert '| 12.00 |' in write_tables.with_tables(page) != page


def test_a_row_that_the_page_lacks_is_an_error(results):
  with pytest.raises(ValueError, match="must have the rows.*'no noise'"):
    write_tables.with_tables(_PAGE.format(_ROW.replace('no noise', 'noise')))


def test_a_row_has_as_many_cells_as_it_should(results):
  with pytest.raises(ValueError, match='must have 6 more cells. Found 5.'):
    write_tables.with_tables(_PAGE.format(_ROW.replace('| 1 |', '|')))


def test_a_table_must_have_a_known_name():
  with pytest.raises(ValueError, match="benchmark loss.*Found 'gains'."):
    write_tables.with_tables(_PAGE.replace('benchmark conditions', 'gains'))


def test_a_table_stands_between_its_comments():
  with pytest.raises(ValueError, match='Found 0 such tables and 1 names.'):
    write_tables.with_tables(_PAGE.replace('end of', 'end of the'))


def test_runs_of_a_row_have_the_same_epsilon(results):
  changed = _RUNS.replace('0.931,12', '0.951,12')
  (results / 'benchmark/conditions.csv').write_text(changed)
  with pytest.raises(ValueError, match=r'epsilon must be.*0.94, 0.96'):
    write_tables.with_tables(_PAGE.format(_ROW))


def test_cells_of_groups():
  table = '| method | paper | ours |\n|---|---|---|\n'
  table += ''.join(
    f'| *{data}* | | |\n| cold | 1 | 0 |\n| warm | 2 | 0 |\n' for data in 'ab'
  )
  written = write_tables.with_cells(table, {('*b*', 'cold'): [None, '3']})
  before, after = table.split('| *b* | | |')
  after = after.replace('| cold | 1 | 0 |', '| cold | 1 | 3 |')
  assert written == f'{before}| *b* | | |{after}'


def test_a_clearly_better_method_is_bold(monkeypatch):
  values = {
    'warm': {'0': 10.0, '1': 11.0},
    'pda': {'0': 9.0, '1': 10.0},
    'semi_dp': {'0': 8.0, '1': 9.0},
  }
  values = {'blogs': values, 'stackexchange': {'warm': values['warm']}}
  monkeypatch.setattr(benchmark, '_values', lambda task, _: values[task])
  cells = benchmark.gains('perplexity', ['blogs', 'stackexchange'], 1)
  assert cells[('PDA-DPMD',)] == ['9.5 (+1.0, +1.0 to +1.0)', '', '9']
  assert cells[('Semi-DP',)] == ['**8.5** (+2.0, +2.0 to +2.0)', '', '9']
