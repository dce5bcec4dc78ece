from pda_fed.common import tables
import pytest


def test_numbers_right_text_left():
  table = tables.format_table(
    ['method', 'epsilon', 'accuracy'],
    [['cold', 7.50512, '8.8%'], ['warm start', float('inf'), '14.1%']],
  )
  assert table.splitlines() == [
    'method      epsilon  accuracy',
    '----------  -------  --------',
    'cold          7.505      8.8%',
    'warm start      inf     14.1%',
  ]


def test_no_rows():
  assert tables.format_table(['a'], []) == 'a\n-'


def test_ragged_rows():
  with pytest.raises(ValueError, match='rows must have 2 cells'):
    tables.format_table(['a', 'b'], [['c']])
