"""Encodes sentences as rows of token ids."""

from collections.abc import Sequence
import itertools

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

    Raises:
      ValueError: If there are no words, or too many for 16 bits.
    """
    limit = np.iinfo(TOKEN_DTYPE).max + 1 - models.NUM_SPECIAL_TOKENS
    validate.in_range(1, limit, vocabulary_size=len(words))
    self.spec = models.RecurrentSpec(num_words=len(words))
    self._ids = {word: i for i, word in enumerate(words, start=1)}

  def encode(self, sentences: Sequence[str]) -> np.ndarray:
    """Returns a row for each sentence, which has a token at least.

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

  def count_words(self, rows: np.ndarray) -> tuple[int, int]:
    """Returns the number of words of encoded sentences, and of unknown ones."""
    # Ids from 1 on are words, then comes oov, then the other special tokens.
    is_word = (rows > self.spec.pad) & (rows <= self.spec.oov)
    return int(is_word.sum()), int((rows == self.spec.oov).sum())
