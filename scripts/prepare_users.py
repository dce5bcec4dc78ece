"""Prepares users' data: private, public, validation and test users.

Writes a store, which training reads, from a source:

    synthetic           made-up text, the default; works anywhere, offline
    tff                 TFF's StackOverflow data (a download of gigabytes)
    sqlite:PATH         a database of the same schema
    stackexchange:DIR   public dumps of Stack Exchange sites
    jsonl:PATH          lines with "user" and "text"; a pattern, .gz, .xz
    npz:FILE            arrays x, y and user: images or features, and classes
    csv:FILE            columns user and label, and features

    python -m scripts.prepare_users --output_dir=data/synthetic
    bazel run //scripts:prepare_users -- --output_dir=data/synthetic
"""

import pathlib
import sys
from typing import Optional
import warnings

from absl import flags
from data_prep import assignment
from data_prep import build
from data_prep import partition
from data_prep import sources
from data_prep import sqlite_writer
from data_prep import staging
from data_prep import store
from data_prep import summary
from data_prep import user_lists
from data_prep import vocabulary
from scripts.lib import cli
import tqdm

_SOURCE = flags.DEFINE_string(
  'source',
  'synthetic',
  'synthetic, tff, sqlite:PATH, stackexchange:DIR, jsonl:PATH, npz:FILE or'
  ' csv:FILE.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'The folder of the store.'
)
_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace a store or a database that is there.'
)
_EXPORT_SQLITE = flags.DEFINE_string(
  'export_sqlite',
  None,
  "Also write the source as a database of TFF's schema to this file. Without"
  ' --output_dir nothing else is done. For sources that know their users'
  ' beforehand: synthetic, tff, sqlite.',
)
_SEED = flags.DEFINE_integer('seed', 0, 'Draws the public users.')
_MAX_SENTENCES = flags.DEFINE_integer(
  'max_sentences',
  None,
  'The most sentences, or examples, of a user; the next are overflow. Default:'
  ' 256 sentences, any number of examples.',
)
_NUM_PUBLIC_USERS = flags.DEFINE_integer(
  'num_public_users',
  None,
  'How many overflow users of text, or users of arrays, are drawn as public;'
  ' 100, or 0 with --public_user_ids.',
)
_KEEP_OVERFLOW_USERS = flags.DEFINE_bool(
  'keep_overflow_users',
  False,
  'Keep overflow users that are not public as private ones: a person may then'
  ' count twice.',
)
_PUBLIC_USER_IDS = flags.DEFINE_string(
  'public_user_ids',
  None,
  'A file with ids of users who opted in to be public, one a line.',
)
_VALIDATION_FRACTION = flags.DEFINE_float(
  'validation_fraction',
  0.05,
  'Of the users, where the source has no heldout split.',
)
_TEST_FRACTION = flags.DEFINE_float(
  'test_fraction', 0.05, 'Of the users, where the source has no test split.'
)
_VOCABULARY = flags.DEFINE_string(
  'vocabulary',
  'auto',
  "The words: source (its own counts), public (public users' text), train"
  " (private users' text, not covered by epsilon), file:PATH, or auto (source"
  ' if it has counts, else public).',
)
_VOCABULARY_SIZE = flags.DEFINE_integer(
  'vocabulary_size',
  None,
  'How many words, special tokens aside. Default: 10,000, or all where there'
  ' are fewer.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', 0, 'Processes that read; 0 takes one a core.'
)
_SYNTHETIC_USERS = flags.DEFINE_integer(
  'synthetic_users', 2000, 'Users of the synthetic source.'
)
_SYNTHETIC_WORDS = flags.DEFINE_integer(
  'synthetic_words', 12_000, 'Different words of the synthetic source.'
)
_SYNTHETIC_SEED = flags.DEFINE_integer(
  'synthetic_seed', 0, 'Writes the text of the synthetic source.'
)
_TFF_CACHE_DIR = flags.DEFINE_string(
  'tff_cache_dir', None, 'Where TFF keeps its download; by default ~/.tff.'
)
_FOR_TEXT = (
  _EXPORT_SQLITE,
  _VOCABULARY,
  _VOCABULARY_SIZE,
  _NUM_PROCESSES,
  _SYNTHETIC_USERS,
  _SYNTHETIC_WORDS,
  _SYNTHETIC_SEED,
  _TFF_CACHE_DIR,
)


def _has_arrays() -> bool:
  return _SOURCE.value.partition(':')[0] in sources.ARRAYS


def _most_rows() -> Optional[int]:
  """Returns the most sentences or examples of a user, None for any number."""
  if _MAX_SENTENCES.value is None and not _has_arrays():
    return 256
  return _MAX_SENTENCES.value


def _check_flags() -> None:
  if _OUTPUT_DIR.value is None and _EXPORT_SQLITE.value is None:
    raise ValueError('output_dir or export_sqlite must be given.')
  given = [flag.name for flag in _FOR_TEXT if flag.present]
  if _has_arrays() and given:
    raise ValueError(
      f'--{given[0]} must be given for text alone. Found'
      f' --source={_SOURCE.value}.'
    )


def _vocabulary_config() -> vocabulary.VocabularyConfig:
  origin, _, path = _VOCABULARY.value.partition(':')
  try:
    parsed = vocabulary.Origin(origin)
  except ValueError:
    raise ValueError(
      'vocabulary must be auto, source, public, train or file:PATH. Found'
      f' {_VOCABULARY.value!r}.'
    ) from None
  return vocabulary.VocabularyConfig(
    origin=parsed, size=_VOCABULARY_SIZE.value, path=path or None
  )


def _config() -> build.PrepareConfig:
  public_user_ids = ()
  if _PUBLIC_USER_IDS.value is not None:
    path = cli.shipped(_PUBLIC_USER_IDS.value)
    public_user_ids = user_lists.read_user_ids(path)
  num_public_users = _NUM_PUBLIC_USERS.value
  if num_public_users is None:
    num_public_users = 0 if public_user_ids else 100
  most = _most_rows()
  return build.PrepareConfig(
    partition=partition.PartitionConfig(
      seed=_SEED.value,
      max_sentences=sys.maxsize if most is None else most,
      num_public_users=num_public_users,
      keep_overflow_users=_KEEP_OVERFLOW_USERS.value,
    ),
    holdout=assignment.HoldoutConfig(
      validation_fraction=_VALIDATION_FRACTION.value,
      test_fraction=_TEST_FRACTION.value,
    ),
    vocabulary=_vocabulary_config(),
    public_user_ids=public_user_ids,
    num_processes=_NUM_PROCESSES.value,
  )


class _Progress:
  """A bar for each step, on a terminal only."""

  def __init__(self):
    self._bar = None
    self._what = None

  def __call__(self, what: str, done: int, total: int, unit: str) -> None:
    if self._bar is None or self._what != what:
      self.close()
      self._what = what
      self._bar = tqdm.tqdm(
        desc=what,
        total=total,
        unit=unit if unit == 'B' else f' {unit}s',
        unit_scale=True,
        leave=False,
        disable=None,
      )
    self._bar.update(done - self._bar.n)

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()
      self._bar = None


def _export(source, path: str, progress: _Progress) -> None:
  if not isinstance(source, sources.Source):
    raise ValueError(
      'export_sqlite must be used with a source that knows its users'
      f' beforehand: synthetic, tff or sqlite. Found {source.name}.'
    )
  if pathlib.Path(path).exists() and not _OVERWRITE.value:
    raise FileExistsError(f'{path} exists. Replace it with --overwrite.')
  total = sum(int(source.users(s).num_sentences.sum()) for s in source.splits)
  done = 0

  def on_sentences(number: int) -> None:
    nonlocal done
    done += number
    progress('exporting', done, total, 'sentence')

  sqlite_writer.export_sqlite(source, path, on_sentences=on_sentences)
  progress.close()
  print(f'Wrote {total:,} sentences to {path}.')


def _draw(folder: pathlib.Path, plan: assignment.Assignment) -> None:
  unit = 'examples' if _has_arrays() else 'sentences'
  try:
    summary.draw_sentences_per_user(folder, plan, _most_rows(), unit)
  except ImportError:
    figure = summary.FIGURE.format(unit)
    warnings.warn(f'matplotlib is not installed: no {figure}.', stacklevel=1)


def main() -> None:
  """Prepares data with the flags' settings."""
  _check_flags()
  config = _config()
  if _OUTPUT_DIR.value is not None:  # Before anything takes long.
    staging.check_target(
      _OUTPUT_DIR.value, overwrite=_OVERWRITE.value, marker=store.MANIFEST
    )
  kind, colon, path = _SOURCE.value.partition(':')
  source = sources.open_source(
    f'{kind}{colon}{cli.shipped(path)}',
    synthetic=sources.SyntheticConfig(
      num_users=_SYNTHETIC_USERS.value,
      num_words=_SYNTHETIC_WORDS.value,
      seed=_SYNTHETIC_SEED.value,
    ),
    tff_cache_dir=_TFF_CACHE_DIR.value,
  )
  progress = _Progress()
  try:
    if _EXPORT_SQLITE.value is not None:
      _export(source, _EXPORT_SQLITE.value, progress)
    if _OUTPUT_DIR.value is None:
      return
    done = build.prepare(
      source,
      _OUTPUT_DIR.value,
      config,
      overwrite=_OVERWRITE.value,
      on_progress=progress,
      decorate=_draw,
    )
  finally:
    progress.close()
  print(summary.format_summary(done.manifest))
  print(f'Wrote {done.path}.')


if __name__ == '__main__':
  cli.run(main)
