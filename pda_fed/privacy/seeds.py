"""Seeds: one seed from the user, and a separate stream for each purpose.

A private run must not have a seed: its noise and its cohorts come from system
entropy. Anyone who knows the seed of a run can repeat the run and its noise.

    >>> reproducible = SeedStreams(7)
    >>> reproducible.sampling == reproducible.noise
    False
    >>> SeedStreams(7).noise == reproducible.noise
    True
"""

import secrets
from typing import Literal, Optional

import numpy as np
from pda_fed.common import validate

Stream = Literal[
  'sampling', 'initialization', 'shuffling', 'noise', 'public', 'audit'
]
# Never change these numbers: they determine the streams of a seed.
_STREAMS = {
  'sampling': 1,
  'initialization': 2,
  'shuffling': 3,
  'noise': 4,
  'public': 5,
  'audit': 6,
}


def generator(stream: Stream, seed: int, step: int) -> np.random.Generator:
  """Returns the generator of a stream at one step, such as a round.

  Args:
    stream: The name of the stream.
    seed: The seed of the stream.
    step: Index of the step. Different steps have independent generators.

  Raises:
    ValueError: If there is no such stream.
  """
  validate.one_of(tuple(_STREAMS), stream=stream)
  # A spawn key, not a list of numbers: a large seed would overlap the step.
  return np.random.default_rng(
    np.random.SeedSequence(seed, spawn_key=(_STREAMS[stream], step))
  )


class SeedStreams:
  """The seeds of a run.

  Example:

    >>> SeedStreams(7).noise == SeedStreams(7).noise
    True
    >>> SeedStreams().noise == SeedStreams().noise
    False

  Attributes:
    reproducible: Whether the seeds are derived from a seed that the user gave.
    sampling: Seed for sampling the users of a round.
    initialization: Seed of the model's initial weights.
    shuffling: Seed for the order of a user's data.
    noise: Seed of the DP aggregation's noise, 63 bits.
    public: Seed for sampling public users.
    audit: Seed of the audit's canaries and of their participation.
  """

  sampling: int
  initialization: int
  shuffling: int
  noise: int
  public: int
  audit: int

  def __init__(self, seed: Optional[int] = None):
    """Derives the seeds, or draws them.

    Args:
      seed: The user's seed. None draws every seed from system entropy.

    Raises:
      ValueError: If `seed` is negative.
    """
    if seed is not None:
      validate.integers(0, seed=seed)
    self.reproducible = seed is not None
    for name, number in _STREAMS.items():
      if seed is None:
        value = secrets.randbits(63)
      else:
        sequence = np.random.SeedSequence(seed, spawn_key=(number,))
        words = sequence.generate_state(1, np.uint64)
        value = int(words[0]) >> 1  # 63 bits fit into TensorFlow's int64.
      setattr(self, name, value)

  def as_dict(self) -> dict[str, int]:
    """Returns the seed of each stream, for resuming a run without a seed.

    They determine the run's noise: keep them secret.
    """
    return {name: getattr(self, name) for name in _STREAMS}

  @classmethod
  def from_dict(cls, seeds: dict[str, int]) -> 'SeedStreams':
    """Restores secret seeds that `as_dict` returned.

    Args:
      seeds: The seed of each stream.

    Raises:
      TypeError: If a seed is not an integer.
      ValueError: If a stream is missing, or a seed does not fit in 63 bits.
    """
    streams = cls(None)
    if not isinstance(seeds, dict):
      raise TypeError(f'seeds must be a dict. Found {seeds!r}.')
    if sorted(seeds) != sorted(_STREAMS):
      raise ValueError(
        f'seeds must have the streams {", ".join(_STREAMS)}. Found'
        f' {", ".join(sorted(seeds))}.'
      )
    validate.integers(0, **seeds)
    # As drawn by `SeedStreams`: they must fit into TensorFlow's int64.
    validate.in_range(0, 2**63 - 1, **seeds)
    for name, value in seeds.items():
      setattr(streams, name, value)
    return streams

  def statement(self) -> str:
    """Returns the statement about the run's noise in `config.json`."""
    if self.reproducible:
      return (
        'The noise of this run follows from its seed: anyone who knows the seed'
        ' can remove the noise. Runs that share a seed share their noise:'
        ' anyone who sees two of them can cancel it. The guarantee holds only'
        ' against everyone else.'
      )
    return 'The noise of this run was drawn from a fresh secret seed.'
