"""Which public users, or sentences, make the public update of a round.

The draws are those of `learning.PublicUpdate`: with the same seed, both engines
train on the same public users.
"""

import numpy as np
from pda_fed.privacy import philox


def draw_users(
  seed: int, round_num: int, num_users: int, users_per_round: int
) -> np.ndarray:
  """Draws users without replacement, for the mode 'local_training'.

  Example:

    >>> drawn = draw_users(seed=0, round_num=3, num_users=9, users_per_round=9)
    >>> sorted(drawn.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]

  Args:
    seed: Of the sampling of public users, 63 bits.
    round_num: The round.
    num_users: How many public users there are.
    users_per_round: How many to draw.

  Returns:
    Their places, in the order of the draw.
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
    seed: Of the sampling of public users, 63 bits.
    round_num: The round.
    num_sentences: How many sentences public users have together.
    count: How many to draw.

  Returns:
    Their places.
  """
  return philox.integers((seed, round_num), count, num_sentences)
