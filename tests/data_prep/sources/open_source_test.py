"""Sources by name."""

from data_prep import sources
import pytest


def test_each_kind(tmp_path, write_database):
  path = write_database(tmp_path / 'a.sqlite', {'train': {'a': ['b']}})
  (tmp_path / 'a.jsonl').write_text('{}\n')
  (tmp_path / 'Posts.xml').write_text('<posts>\n</posts>\n')
  for spec, kind in (
    ('synthetic', sources.SyntheticSource),
    (f'sqlite:{path}', sources.SqliteSource),
    (f'jsonl:{tmp_path}/*.jsonl', sources.JsonlSource),
    (f'stackexchange:{tmp_path}', sources.StackExchangeSource),
  ):
    assert isinstance(sources.open_source(spec), kind)


@pytest.mark.parametrize(
  'spec', ['', 'sqlite', 'sqlite:', 'xml:x', 'synthetic:3', 'SYNTHETIC']
)
def test_unknown(spec):
  with pytest.raises(ValueError, match=f"source must be .*Found '{spec}'"):
    sources.open_source(spec)
