"""TFF's synthetic StackOverflow sentences, for any number of users.

TFF ships eight sentences in the format of its StackOverflow data. They are
enough to try a whole run offline in seconds, but too few to compare methods.
"""

import collections
import dataclasses

import numpy as np
from pda_fed import models
from pda_fed.common import validate
import tensorflow_federated as tff

_LENGTH = 20  # Tokens in a sentence after bos, as in the paper.


@dataclasses.dataclass(frozen=True)
class SyntheticUsers:
  """Users with tokenized sentences.

  Example: see `load_synthetic_stackoverflow`.

  Attributes:
    vocabulary: The words, most frequent first; word i has token id i + 1.
    sentences: For each user, an array [sentences, 21] of token ids.
  """

  vocabulary: tuple[str, ...]
  sentences: tuple[np.ndarray, ...]


def _tokenized_sentences() -> list[list[str]]:
  raw = tff.simulation.datasets.stackoverflow.create_synthetic_data_dictionary()
  return [
    tokens.decode('utf-8').split()
    for client in raw.values()
    for tokens in client['tokens']
  ]


def _to_ids(
  words: list[str], ids: dict[str, int], spec: models.RecurrentSpec
) -> np.ndarray:
  row = np.full(_LENGTH + 1, spec.pad, np.int64)
  tokens = [spec.bos, *(ids.get(w, spec.oov) for w in words), spec.eos]
  row[: len(tokens)] = tokens[: len(row)]
  return row


def load_synthetic_stackoverflow(
  num_users: int, sentences_per_user: int = 16, seed: int = 0
) -> SyntheticUsers:
  """Distributes TFF's synthetic sentences to users.

  Example:

    >>> users = load_synthetic_stackoverflow(num_users=3, sentences_per_user=4)
    >>> len(users.sentences), users.sentences[0].shape
    (3, (4, 21))

  Args:
    num_users: Number of users.
    sentences_per_user: Number of sentences each user draws, with replacement.
    seed: Seed of the draws.

  Returns:
    The users.

  Raises:
    ValueError: If a number is less than 1, or the seed is negative.
  """
  validate.integers(
    1, num_users=num_users, sentences_per_user=sentences_per_user
  )
  validate.integers(0, seed=seed)
  sentences = _tokenized_sentences()
  counts = collections.Counter(w for words in sentences for w in words)
  vocabulary = tuple(sorted(counts, key=lambda w: (-counts[w], w)))
  spec = models.RecurrentSpec(num_words=len(vocabulary))
  ids = {word: i + 1 for i, word in enumerate(vocabulary)}
  rows = np.stack([_to_ids(words, ids, spec) for words in sentences])
  rng = np.random.default_rng(seed)
  draws = rng.integers(len(rows), size=(num_users, sentences_per_user))
  return SyntheticUsers(vocabulary, tuple(rows[draws]))
