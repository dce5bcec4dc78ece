"""Encodes sentences as rows of token ids."""

import collections
from collections.abc import Iterable, Sequence
import itertools
from typing import Optional

import numpy as np
from pda_fed import models
from pda_fed.common import validate

# Number of tokens of a sentence after bos, as in TFF's baseline and the paper.
SENTENCE_LENGTH = 20
ROW_LENGTH = SENTENCE_LENGTH + 1
TOKEN_DTYPE = np.dtype('<u2')


class Encoder:
  """Encodes sentences as rows: bos, up to 20 tokens, eos if it fits, pad.

  Attributes:
    spec: The ids of the special tokens.
  """

  def __init__(self, words: Sequence[str]):
    """Makes an encoder.

    Args:
      words: The vocabulary; word i has the id i + 1.

    Raises:
      ValueError: If there are no words, or too many for 16 bits.
    """
    limit = np.iinfo(TOKEN_DTYPE).max + 1 - models.NUM_SPECIAL_TOKENS
    validate.in_range(1, limit, vocabulary_size=len(words))
    self.spec = models.RecurrentSpec(num_words=len(words))
    self._ids = {word: i for i, word in enumerate(words, start=1)}

  def encode(self, sentences: Sequence[str]) -> np.ndarray:
    """Returns a row for each sentence.

    Args:
      sentences: Sentences with tokens separated by spaces, at least one each.

    Returns:
      Token ids, [sentences, 21].
    """
    words: list[str] = []
    lengths = []
    for sentence in sentences:
      # Splits off at most one piece more than is kept.
      pieces = sentence.split(None, SENTENCE_LENGTH)[:SENTENCE_LENGTH]
      words += pieces
      lengths.append(len(pieces))
    ids = np.fromiter(
      map(self._ids.get, words, itertools.repeat(self.spec.oov)),
      TOKEN_DTYPE,
      count=len(words),
    )
    length = np.array(lengths, np.int64)[:, None]
    rows = np.full((len(lengths), ROW_LENGTH), self.spec.pad, TOKEN_DTYPE)
    rows[:, 0] = self.spec.bos
    place = np.arange(ROW_LENGTH)
    rows[(place > 0) & (place <= length)] = ids
    rows[place == length + 1] = self.spec.eos
    return rows


class UnknownWords:
  """Counts the unknown words of each group."""

  def __init__(self, spec: models.RecurrentSpec, groups: Iterable[str]):
    """Makes an empty count.

    Args:
      spec: The ids of the special tokens.
      groups: All groups of users.
    """
    self._spec = spec
    self._groups = tuple(groups)
    self._words: collections.Counter = collections.Counter()
    self._unknown: collections.Counter = collections.Counter()

  def add(self, group: str, rows: np.ndarray) -> None:
    """Counts the stored words of sentences.

    Args:
      group: Group of the sentences.
      rows: Sentences, encoded with `Encoder.encode`.
    """
    # Ids from 1 on are words, then comes oov, then the other special tokens.
    is_word = (rows > self._spec.pad) & (rows <= self._spec.oov)
    self._words[group] += int(is_word.sum())
    self._unknown[group] += int((rows == self._spec.oov).sum())

  def shares(self) -> dict[str, Optional[float]]:
    """Returns the share of unknown words by group; None without words."""
    return {
      group: self._unknown[group] / self._words[group]
      if self._words[group]
      else None
      for group in self._groups
    }
