"""Reads WikiText: word-level text, cut into sequences.

"Pointer Sentinel Mixture Models" (Merity et al., ICLR 2017). The experiments of
"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), section 5.4, keep the 8,000 most frequent words,
replace the others with the unknown word, and have 48,764 sequences of length
35. Windows of 36 words with a stride of 35 within each line give this number.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import os
import pathlib

from data_prep import errors
from data_prep import files
from data_prep.sample_level import base
from data_prep.sample_level import splits
import numpy as np
from pda_fed.common import validate

UNKNOWN = '<unk>'
SEQUENCE_LENGTH = 35
VOCABULARY_SIZE = 8000
_FOLDERS = ('wikitext-2', 'wikitext-103')
_VOCABULARY_CAVEAT = (
  'The vocabulary was counted on the training text, private sequences included,'
  ' without noise: epsilon does not cover it.'
)


def _read_lines(path: pathlib.Path) -> list[list[str]]:
  packed = path.with_name(f'{path.name}.xz')
  if packed.exists() and not path.exists():
    path = packed
  try:
    text = files.read_file(path).decode('utf-8')
  except UnicodeDecodeError as e:
    raise errors.SourceError(f'{path} must be UTF-8 text: {e}.') from e
  # Not splitlines, which also splits at some characters that are words.
  return [line.split() for line in text.split('\n')]


def most_frequent_words(
  lines: Iterable[Sequence[str]], size: int
) -> tuple[str, ...]:
  """Returns the most frequent words, including the unknown word.

  Returns:
    Words in order of frequency, ties in alphabetical order.

  Raises:
    ValueError: If the text has fewer words.
  """
  validate.integers(2, vocabulary_size=size)
  counts = collections.Counter(word for line in lines for word in line)
  unknown = counts.pop(UNKNOWN, 0)
  ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  if len(ranked) < size - 1:
    raise ValueError(
      'vocabulary_size must be at most the number of words of the training'
      f' text, {len(ranked) + 1:,}. Found {size:,}.'
    )
  kept = [*ranked[: size - 1], (UNKNOWN, unknown)]
  kept.sort(key=lambda item: (-item[1], item[0]))
  return tuple(word for word, _ in kept)


def cut_sequences(
  lines: Iterable[Sequence[str]],
  ids: Mapping[str, int],
  length: int = SEQUENCE_LENGTH,
) -> np.ndarray:
  """Cuts lines into windows of `length` + 1 words, with a stride of `length`.

  Each word except the first of a line is a target once. The rest at the end of
  a line is dropped.

  Returns:
    Token ids, uint16 [sequences, length + 1].
  """
  unknown = ids[UNKNOWN]
  windows = [
    [ids.get(word, unknown) for word in line[start : start + length + 1]]
    for line in lines
    for start in range(0, len(line) - length, length)
  ]
  return np.array(windows, np.uint16).reshape(-1, length + 1)


def _to_examples(tokens: np.ndarray) -> base.Examples:
  return base.Examples(tokens[:, :-1], tokens[:, 1:])


def load_wikitext(
  data_dir: os.PathLike | str,
  vocabulary_size: int = VOCABULARY_SIZE,
  sequence_length: int = SEQUENCE_LENGTH,
) -> base.SampleLevelData:
  """Reads WikiText-2, or other text with the same layout.

  Example:

  ```
  data = load_wikitext('data')
  len(data.train)  # 48764
  ```

  Args:
    data_dir: Folder with `wiki.train.tokens`, `wiki.valid.tokens` and
      `wiki.test.tokens`, optionally with the suffix `.xz`; or its parent, if it
      is named `wikitext-2`.
    vocabulary_size: Number of words, including the unknown word.
    sequence_length: Number of targets in a sequence.

  Returns:
    The data; inputs and targets are token ids [sequences, length].

  Raises:
    SourceError: If a file is missing or has no sequence.
    ValueError: If the text has fewer words than the vocabulary.
  """
  validate.integers(1, sequence_length=sequence_length)
  validate.in_range(2, 2**16, vocabulary_size=vocabulary_size)
  folder = files.find_folder(data_dir, _FOLDERS, 'wiki.train.tokens')
  paths = {s: folder / f'wiki.{s}.tokens' for s in ('train', 'valid', 'test')}
  lines = {split: _read_lines(path) for split, path in paths.items()}
  try:
    vocabulary = most_frequent_words(lines['train'], vocabulary_size)
  except ValueError as e:
    raise ValueError(f'{paths["train"]}: {e}') from e
  ids = {word: i for i, word in enumerate(vocabulary)}
  parts = {}
  for split, path in paths.items():
    parts[split] = cut_sequences(lines[split], ids, sequence_length)
    if not len(parts[split]):
      raise errors.SourceError(
        f'{path} must have a line of more than {sequence_length} words. Found'
        ' none.'
      )
  return base.SampleLevelData(
    name='wikitext2',
    train=_to_examples(parts['train']),
    validation=_to_examples(parts['valid']),
    test=_to_examples(parts['test']),
    num_classes=vocabulary_size,
    vocabulary=vocabulary,
    caveats=(_VOCABULARY_CAVEAT,),
  )


def load_public_text(
  path: os.PathLike | str,
  data: base.SampleLevelData,
  num_sequences: int,
  seed: int,
) -> base.Examples:
  """Reads public text from another source, with the private vocabulary.

  The paper's appendix uses WikiText-103 as public data for WikiText-2: its
  words are mapped to WikiText-2's vocabulary, sequences that overlap with
  WikiText-2 are removed, and as many as WikiText-2 has are drawn.

  Example:

  ```
  data = load_wikitext('data')
  public = load_public_text('wikitext-103', data, len(data.train), seed=0)
  ```

  Args:
    path: A file of tokens, or a folder with `wiki.train.tokens`.
    data: The private text.
    num_sequences: Number of sequences to draw.
    seed: Seed of the draw.

  Returns:
    The sequences, in the order of the text.

  Raises:
    SourceError: If the file is missing or has too few sequences.
    ValueError: If `data` is not text.
  """
  if data.vocabulary is None:
    raise ValueError(
      f'data must be text for public text. Found the data set {data.name!r},'
      ' which has no words.'
    )
  path = pathlib.Path(path)
  if path.is_dir():
    path = files.find_folder(path, _FOLDERS, 'wiki.train.tokens')
    path = path / 'wiki.train.tokens'
  ids = {word: i for i, word in enumerate(data.vocabulary)}
  length = data.train.inputs.shape[1]
  tokens = cut_sequences(_read_lines(path), ids, length)
  tokens = tokens[~_overlaps(tokens, data)]
  if len(tokens) < num_sequences:
    raise errors.SourceError(
      f'{path} must have {num_sequences:,} sequences of {length} words that are'
      f' not in {data.name}. Found {len(tokens):,}.'
    )
  found = _to_examples(tokens)
  # By hash: what is left out must not change the rank of the others.
  rows = splits.rank_by_hash(found, seed)[:num_sequences]
  return found.take(np.sort(rows))


def _overlaps(tokens: np.ndarray, data: base.SampleLevelData) -> np.ndarray:
  """Returns whether each sequence is in any part of the private data.

  Only inputs are compared: a line that is one word longer elsewhere is cut at
  the same places.
  """
  parts = (data.train, data.validation, data.test)
  known = {
    row.tobytes()
    for part in parts
    if part is not None
    for row in np.ascontiguousarray(part.inputs)
  }
  inputs = np.ascontiguousarray(tokens[:, :-1])
  return np.array([row.tobytes() in known for row in inputs], bool)
