"""From sentences to rows of token ids."""

from collections.abc import Sequence
import itertools

import numpy as np
from pda_fed import models
from pda_fed.common import validate

# Tokens of a sentence after bos, as in TFF's baseline and the paper.
SENTENCE_LENGTH = 20
ROW_LENGTH = SENTENCE_LENGTH + 1
TOKEN_DTYPE = np.dtype('<u2')


class Encoder:
  """Turns sentences into rows: bos, 20 tokens, eos where there is room, pad.

  Attributes:
    spec: The ids of the special tokens.
  """

  def __init__(self, words: Sequence[str]):
    """Makes an encoder.

    Args:
      words: The vocabulary; word i has the id i + 1.

    Raises:
      ValueError: If there are none, or too many for 16 bits.
    """
    limit = np.iinfo(TOKEN_DTYPE).max + 1 - models.NUM_SPECIAL_TOKENS
    validate.in_range(1, limit, vocabulary_size=len(words))
    self.spec = models.RecurrentSpec(num_words=len(words))
    self._ids = {word: i for i, word in enumerate(words, start=1)}

  def encode(self, sentences: Sequence[str]) -> np.ndarray:
    """Returns a row for each sentence.

    Args:
      sentences: Tokens separated by blanks, at least one each.

    Returns:
      Token ids, [sentences, 21].
    """
    words: list[str] = []
    lengths = []
    for sentence in sentences:
      # At most one piece more than is kept: the rest is not split.
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
