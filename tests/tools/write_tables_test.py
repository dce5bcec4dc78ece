"""Tables of the pages have the recorded results, as the writer gives them."""

import re

import pytest

from tools import recorded
from tools import tables
from tools import write_tables


@pytest.mark.parametrize('page', write_tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_pages_are_up_to_date(page):
  text = page.read_text()
  assert text == write_tables.with_tables(text), 'run `make docs`'


def test_every_table_is_on_one_page():
  texts = ''.join(page.read_text() for page in write_tables.PAGES)
  names = re.findall('<!-- table: (.*) -->', texts)
  assert sorted(names) == sorted(tables.TABLES)
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


@pytest.mark.parametrize(
  'runs, page, message',
  [
    (('', ''), ('| no noise', '| noise'), "must have the rows.*'no noise'"),
    (('', ''), ('| 1 |', '|'), 'must have 6 more cells. Found 5.'),
    (('', ''), ('k conditions', 'k x'), "benchmark loss.*Found 'benchmark x'."),
    (('', ''), ('end of', 'end of the'), 'Found 0 such tables and 1 names.'),
    (('0.931,12', '0.951,12'), ('', ''), 'epsilon must be.*0.94, 0.96'),
    (('warm,2', 'warm,3'), ('', ''), r"must have \['2'\]"),
  ],
)
def test_mistakes(results, runs, page, message):
  changed = _RUNS.replace(*runs)
  (results / 'benchmark/conditions.csv').write_text(changed)
  with pytest.raises(ValueError, match=message):
    write_tables.with_tables(_PAGE.format(_ROW).replace(*page))


def test_cells_of_groups():
  table = '| method | paper | ours |\n|---|---|---|\n'
  table += ''.join(
    f'| *{data}* | | |\n| cold | 1 | 0 |\n| warm | 2 | 0 |\n' for data in 'ab'
  )
  written = write_tables.with_cells(table, {('*b*', 'cold'): [None, '3']})
  before, after = table.split('| *b* | | |')
  after = after.replace('| cold | 1 | 0 |', '| cold | 1 | 3 |')
  assert written == f'{before}| *b* | | |{after}'


def test_a_clearly_better_method_is_bold():
  values = {'warm': (10, 11), 'pda': (9, 10), 'semi_dp': (8, 9)}
  runs = {
    method: [{'seed': str(i), 'loss': str(v)} for i, v in enumerate(of)]
    for method, of in values.items()
  }
  cells = [tables._gains('loss', 1, method, runs) for method in runs]
  second, winner = '9.5 (+1.0, +1.0 to +1.0)', '**8.5** (+2.0, +2.0 to +2.0)'
  assert cells == ['10.5', second, winner]
