"""Draws the public users, or sentences, of a round's public update.

The draws equal those of `pda_tff.PublicUpdate`: with the same seed, both
engines train on the same public users.
"""

import numpy as np
from pda_fed.jax import philox


def draw_users(
  seed: int, round_num: int, num_users: int, users_per_round: int
) -> np.ndarray:
  """Draws users without replacement, for the mode 'local_training'.

  Example:

    >>> drawn = draw_users(seed=0, round_num=3, num_users=9, users_per_round=9)
    >>> sorted(drawn.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]

  Args:
    seed: Sampling seed of public users, 63 bits.
    round_num: Index of the round.
    num_users: Number of public users.
    users_per_round: Number of users to draw.

  Returns:
    Indices of the users, in the order of the draw.
  """
  draws = philox.uniform((seed, round_num), num_users)
  return np.argsort(draws, kind='stable')[:users_per_round]


def draw_rows(
  seed: int, round_num: int, num_sentences: int, count: int
) -> np.ndarray:
  """Draws sentences of all users with replacement, for the mode 'gradient'.

  Example:

    >>> draw_rows(seed=0, round_num=3, num_sentences=100, count=4).shape
    (4,)

  Args:
    seed: Sampling seed of public users, 63 bits.
    round_num: Index of the round.
    num_sentences: Number of sentences of all public users.
    count: Number of sentences to draw.

  Returns:
    Indices of the sentences.
  """
  return philox.integers((seed, round_num), count, num_sentences)
