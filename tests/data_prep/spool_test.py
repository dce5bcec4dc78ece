"""Regrouping a stream."""

from data_prep import spool
from data_prep.sources import base
import pytest


def _sizes(contents):
  records = [base.Record('a', content) for content in contents]
  chunks = list(spool._chunks(iter(records)))
  assert [record for chunk in chunks for record in chunk] == records
  return [len(chunk) for chunk in chunks]


@pytest.mark.parametrize(
  ('contents', 'sizes'),
  [
    ([], []),
    (['x'] * 512, [512]),
    (['x'] * 1025, [512, 512, 1]),
    (['x' * 2**21] * 5, [2, 2, 1]),
    (['x', 'x' * 2**23, 'x', 'x'], [1, 1, 2]),
  ],
)
def test_chunks_are_bounded_by_records_and_characters(contents, sizes):
  assert _sizes(contents) == sizes
