"""Sources of users' data, with the interfaces of `base`."""

import os
from typing import Any, Optional, Union

from data_prep.sources.arrays import ArraySource
from data_prep.sources.arrays import open_csv
from data_prep.sources.arrays import open_npz
from data_prep.sources.base import Record
from data_prep.sources.base import RecordSource
from data_prep.sources.base import Source
from data_prep.sources.base import Tally
from data_prep.sources.base import UserCounts
from data_prep.sources.base import UserSource
from data_prep.sources.jsonl import JsonlSource
from data_prep.sources.sqlite import SqliteSource
from data_prep.sources.stackexchange import StackExchangeSource
from data_prep.sources.synthetic import SyntheticConfig
from data_prep.sources.synthetic import SyntheticSource
from data_prep.sources.text_table import is_text_table
from data_prep.sources.text_table import TextTableSource
from data_prep.sources.tff_stackoverflow import TffStackOverflowSource

__all__ = [
  'ArraySource',
  'JsonlSource',
  'Record',
  'RecordSource',
  'Source',
  'SqliteSource',
  'StackExchangeSource',
  'SyntheticConfig',
  'SyntheticSource',
  'Tally',
  'TextTableSource',
  'TffStackOverflowSource',
  'UserCounts',
  'UserSource',
  'is_text',
  'open_csv',
  'open_npz',
  'open_source',
]

_WITH_PATH: dict[str, Any] = {
  'sqlite': SqliteSource,
  'stackexchange': StackExchangeSource,
  'jsonl': JsonlSource,
  'npz': open_npz,
}
_KINDS = (
  'synthetic, tff, sqlite:PATH, stackexchange:DIR, jsonl:PATH, npz:FILE or'
  ' csv:FILE'
)


def is_text(spec: str) -> bool:
  """Returns whether a source holds text, not arrays or numbers.

  Example:

    >>> is_text('jsonl:posts.jsonl')
    True

  Args:
    spec: See `open_source`. The header of a .csv file decides.

  Raises:
    SourceError: If a .csv file is missing or damaged, or its header has the
      columns of neither kind.
  """
  kind, _, path = spec.partition(':')
  if kind == 'csv' and path:
    return is_text_table(path)
  return kind != 'npz'


def open_source(
  spec: str,
  *,
  synthetic: SyntheticConfig = SyntheticConfig(),  # noqa: B008 - frozen.
  tff_cache_dir: Optional[os.PathLike | str] = None,
) -> Union[Source, RecordSource, ArraySource]:
  """Opens a source by name.

  Example:

    >>> open_source('synthetic').name
    'synthetic'

  Args:
    spec: 'synthetic', 'tff', 'sqlite:PATH', 'stackexchange:DIR', 'jsonl:PATH',
      'npz:FILE' or 'csv:FILE'.
    synthetic: Settings of 'synthetic'.
    tff_cache_dir: Folder of the download of 'tff'. Default: TFF's own.

  Returns:
    The source.

  Raises:
    ValueError: If `spec` is none of these.
    OSError: If a file is missing.
    SourceError: If a file is invalid.
  """
  kind, _, path = spec.partition(':')
  if spec == 'synthetic':
    return SyntheticSource(synthetic)
  if spec == 'tff':
    return TffStackOverflowSource(tff_cache_dir)
  if kind == 'csv' and path:
    return TextTableSource(path) if is_text(spec) else open_csv(path)
  if kind in _WITH_PATH and path:
    return _WITH_PATH[kind](path)
  raise ValueError(f'source must be {_KINDS}. Found {spec!r}.')
