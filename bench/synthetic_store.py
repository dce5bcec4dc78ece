"""Writes token stores of any size: random words, users of equal size."""

import pathlib

from data_prep import store_writer
import numpy as np
from pda_fed import models

_CHUNK = 10_000
_OTHERS = 2  # Number of users of each other group.


def write_store(
  folder: pathlib.Path,
  *,
  num_users: int,
  sentences_per_user: int,
  num_words: int,
) -> pathlib.Path:
  """Writes a store if it does not exist yet.

  Args:
    folder: Folder of stores, which are named by their sizes.
    num_users: Number of private users.
    sentences_per_user: Number of sentences of each user.
    num_words: Number of words in the vocabulary.

  Returns:
    The store's folder.
  """
  target = folder / f'{num_users}_users_{sentences_per_user}_{num_words}'
  if (target / 'manifest.json').exists():
    return target
  target.mkdir(parents=True, exist_ok=True)
  spec = models.RecurrentSpec(num_words=num_words)
  rng = np.random.default_rng(0)
  sizes = {'private': num_users}
  sizes |= dict.fromkeys(('public', 'validation', 'test'), _OTHERS)
  with store_writer.StoreWriter(target) as writer:
    for group, users in sizes.items():
      for first in range(0, users, _CHUNK):
        count = min(_CHUNK, users - first)
        shape = count * sentences_per_user, 21
        rows = rng.integers(1, num_words + 1, shape, np.uint16)
        rows[:, 0] = spec.bos
        names = [f'{group}_{i:09d}' for i in range(first, first + count)]
        counts = np.full(count, sentences_per_user, np.int64)
        writer.add(group, names, counts, rows)
    writer.finish(
      [f'w{i}' for i in range(num_words)],
      {'source': 'random words', 'vocabulary': {'size': num_words}},
    )
  return target
