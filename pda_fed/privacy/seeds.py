"""Seeds: one number of the user's, separate streams for each purpose.

A run that is meant to be private takes no seed: its noise and its cohorts come
from the system's entropy. A run with a seed can be repeated, and so can its
noise, by whoever knows the seed.

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
# Numbers of streams must never change: they are part of what a seed means.
_STREAMS = {
  'sampling': 1,
  'initialization': 2,
  'shuffling': 3,
  'noise': 4,
  'public': 5,
  'audit': 6,
}


def generator(stream: Stream, seed: int, step: int) -> np.random.Generator:
  """Returns the generator of a stream at one step, a round for example.

  Args:
    stream: What the numbers are for.
    seed: The seed of the stream.
    step: Different steps have independent generators.

  Raises:
    ValueError: If there is no such stream.
  """
  validate.one_of(tuple(_STREAMS), stream=stream)
  # A spawn key, not one list of numbers: a large seed would run into the step.
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
    reproducible: Whether the seeds follow from one that the user gave.
    sampling: Which users are in a round.
    initialization: The model's first weights.
    shuffling: The order of a user's data.
    noise: The noise of the DP aggregation, 63 bits.
    public: Which public users are used when.
    audit: Which canaries an audit has, and when they take part.
  """

  def __init__(self, seed: Optional[int] = None):
    """Derives the seeds, or draws them.

    Args:
      seed: None draws every seed from the system's entropy.

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
    """Returns the seed of each stream, to go on with a run that has no seed.

    They are the key to the run's noise: keep them where nobody reads them.
    """
    return {name: getattr(self, name) for name in _STREAMS}

  @classmethod
  def from_dict(cls, seeds: dict[str, int]) -> 'SeedStreams':
    """Returns the fresh secret seeds that `as_dict` gave.

    Args:
      seeds: The seed of each stream.

    Raises:
      TypeError: If a seed is no integer.
      ValueError: If a stream is missing, or a seed has not 63 bits.
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
    # As `SeedStreams` draws them: they must fit into TensorFlow's int64.
    validate.in_range(0, 2**63 - 1, **seeds)
    for name, value in seeds.items():
      setattr(streams, name, value)
    return streams

  def statement(self) -> str:
    """What `config.json` says about the noise of the run."""
    if self.reproducible:
      return (
        'The noise of this run follows from its seed: whoever knows the seed'
        ' can take the noise off. The guarantee holds against those who do not,'
        ' and see no other run of that seed, which shares the noise.'
      )
    return 'The noise of this run was drawn from a fresh secret seed.'
