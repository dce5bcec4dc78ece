"""Splits data into private, public, validation and test users.

Reads a source and writes a store, which training reads. Sources:

    synthetic           generated text (default); works offline
    tff                 TFF's StackOverflow data (downloads gigabytes)
    sqlite:PATH         a SQLite database with the same schema
    stackexchange:DIR   public dumps of Stack Exchange sites
    jsonl:PATH          JSON lines with "user" and "text"; PATH may be a
                        pattern, and files may be .gz or .xz
    npz:FILE            arrays x (images or features), y (classes) and user
    csv:FILE            columns user and text, or user, label and features

    python -m scripts.prepare_users --output_dir=data/synthetic
    bazel run //scripts:prepare_users -- --output_dir=data/synthetic
"""

from typing import Optional

from absl import flags
from data_prep import assignment
from data_prep import build
from data_prep import lists
from data_prep import sources
from data_prep import staging
from data_prep import store
from data_prep import summary
from data_prep import vocabulary
from scripts.lib import cli
import tqdm

_SOURCE = flags.DEFINE_string(
  'source',
  'synthetic',
  'Source of the data: synthetic, tff, sqlite:PATH, stackexchange:DIR,'
  ' jsonl:PATH, npz:FILE or csv:FILE.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder of the new store.'
)
_OVERWRITE = flags.DEFINE_bool('overwrite', False, 'Replace an existing store.')
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the draw of public users.')
_MAX_SENTENCES = flags.DEFINE_integer(
  'max_sentences',
  None,
  'Maximum number of sentences, or examples, of a user. Further sentences form'
  ' overflow users. Default: 256 sentences; no limit for examples.',
)
_NUM_PUBLIC_USERS = flags.DEFINE_integer(
  'num_public_users',
  None,
  'Number of public users to draw. For text they are overflow users: the'
  ' sentences of a user beyond --max_sentences. For arrays they are any users.'
  ' Default: 100, or 0 with --public_user_ids.',
)
_PUBLIC_USER_IDS = flags.DEFINE_string(
  'public_user_ids',
  None,
  'File with the ids of users who agreed to be public, one per line.',
)
_VALIDATION_FRACTION = flags.DEFINE_float(
  'validation_fraction',
  0.05,
  'Fraction of users held out for validation, if the source has no heldout'
  ' split.',
)
_TEST_FRACTION = flags.DEFINE_float(
  'test_fraction',
  0.05,
  'Fraction of users held out for the test set, if the source has no test'
  ' split.',
)
_VOCABULARY = flags.DEFINE_string(
  'vocabulary',
  'auto',
  "Origin of the vocabulary: source (the source's own counts), public (public"
  " users' text), train (private users' text, not covered by epsilon),"
  ' file:PATH, or auto (source if it has counts, else public).',
)
_VOCABULARY_SIZE = flags.DEFINE_integer(
  'vocabulary_size',
  None,
  'Number of words, without special tokens. Default: 10,000, or all words if'
  ' there are fewer.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  0,
  'Number of processes that read the source. 0 means one per core.',
)
_SYNTHETIC_USERS = flags.DEFINE_integer(
  'synthetic_users', 2000, 'Number of users of the synthetic source.'
)
_SYNTHETIC_WORDS = flags.DEFINE_integer(
  'synthetic_words', 12_000, 'Number of distinct words of the synthetic source.'
)
_SYNTHETIC_SEED = flags.DEFINE_integer(
  'synthetic_seed', 0, 'Seed of the text of the synthetic source.'
)
_TFF_CACHE_DIR = flags.DEFINE_string(
  'tff_cache_dir', None, "Folder of TFF's download. Default: ~/.tff."
)
_FOR_TEXT = (
  _VOCABULARY,
  _VOCABULARY_SIZE,
  _NUM_PROCESSES,
  _SYNTHETIC_USERS,
  _SYNTHETIC_WORDS,
  _SYNTHETIC_SEED,
  _TFF_CACHE_DIR,
)


def _has_arrays() -> bool:
  kind, colon, path = _SOURCE.value.partition(':')
  return not sources.is_text(f'{kind}{colon}{cli.shipped(path)}')


def _most_rows() -> Optional[int]:
  """Returns the maximum number of rows of a user; None for no limit."""
  if _MAX_SENTENCES.value is None and not _has_arrays():
    return 256
  return _MAX_SENTENCES.value


def _check_flags() -> None:
  if _OUTPUT_DIR.value is None:
    raise ValueError('output_dir must be given.')
  given = [flag.name for flag in _FOR_TEXT if flag.present]
  if _has_arrays() and given:
    raise ValueError(
      f'--{given[0]} must only be given for text. Found'
      f' --source={_SOURCE.value}.'
    )


def _config() -> build.PrepareConfig:
  public_user_ids = ()
  if _PUBLIC_USER_IDS.value is not None:
    path = cli.shipped(_PUBLIC_USER_IDS.value)
    public_user_ids = lists.read_user_ids(path)
  num_public_users = _NUM_PUBLIC_USERS.value
  if num_public_users is None:
    num_public_users = 0 if public_user_ids else 100
  most = _most_rows()
  return build.PrepareConfig(
    partition=assignment.PartitionConfig(
      seed=_SEED.value,
      max_sentences=assignment.NO_LIMIT if most is None else most,
      num_public_users=num_public_users,
    ),
    holdout=assignment.HoldoutConfig(
      validation_fraction=_VALIDATION_FRACTION.value,
      test_fraction=_TEST_FRACTION.value,
    ),
    vocabulary=vocabulary.VocabularyConfig(
      origin=_VOCABULARY.value, size=_VOCABULARY_SIZE.value
    ),
    public_user_ids=public_user_ids,
    num_processes=_NUM_PROCESSES.value,
  )


class _Progress:
  """Progress bars, one for each step, on a terminal only."""

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


def main() -> None:
  """Prepares data with the flags' settings."""
  _check_flags()
  config = _config()
  staging.check_target(  # Fail early.
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
    done = build.prepare(
      source,
      _OUTPUT_DIR.value,
      config,
      overwrite=_OVERWRITE.value,
      on_progress=progress,
    )
  finally:
    progress.close()
  print(summary.format_summary(done.manifest))
  print(f'Wrote {done.path}, which only you can read.')


if __name__ == '__main__':
  cli.run(main)
