"""Seeds: one seed from the user, and a separate stream for each purpose.

A private run must not have a seed: its noise and its cohorts come from system
entropy. Anyone who knows the seed of a run can repeat the run and its noise.
"""

import hmac
import re
import secrets
from typing import Any, Literal, Optional

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


class ReusedNoiseError(ValueError):
  """The noise of a round would serve for two sums, and reveal their difference.

  Example: see `SeedStreams`.
  """


def generator(stream: Stream, seed: int, step: int) -> np.random.Generator:
  """Returns the generator of a stream at one step, such as a round."""
  validate.one_of(tuple(_STREAMS), stream=stream)
  # A spawn key, not a list of numbers: a large seed would overlap the step.
  return np.random.default_rng(
    np.random.SeedSequence(seed, spawn_key=(_STREAMS[stream], step))
  )


def _checked(nonce: Any) -> str:
  if not isinstance(nonce, str) or not re.fullmatch('[0-9a-f]{64}', nonce):
    raise ValueError(f'nonce must have 64 hex digits. Found {nonce!r}.')
  return nonce


class SeedStreams:
  """The seeds of a run: its cohorts, its noise and the rest.

  One object holds them all, so that cohorts and noise share one secret. It
  stays in its process: its text tells no seed, and it cannot be pickled.

  Example:

    >>> SeedStreams(7).noise == SeedStreams(7).noise
    True
    >>> SeedStreams().noise == SeedStreams().noise
    False
    >>> seeds = SeedStreams()
    >>> seeds.claim(0, b'Ann and Bo')
    >>> seeds.claim(0, b'Ann')
    Traceback (most recent call last):
    ...
    pda_fed.privacy.seeds.ReusedNoiseError: Round 0 must have ...

  Attributes:
    reproducible: Whether the seeds are derived from a seed that the user gave.
    sampling: Seed for sampling the users of a round.
    initialization: Seed of the model's initial weights.
    shuffling: Seed for the order of a user's data.
    noise: Seed of the DP aggregation's noise, 63 bits.
    public: Seed for sampling public users.
    audit: Seed of the audit's canaries and of their participation.
    nonce: What `derived` made of a secret into these seeds; otherwise None.
  """

  sampling: int
  initialization: int
  shuffling: int
  noise: int
  public: int
  audit: int
  nonce: Optional[str] = None

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
    self._claims: dict[int, bytes] = {}
    for name, number in _STREAMS.items():
      if seed is None:
        value = secrets.randbits(63)
      else:
        sequence = np.random.SeedSequence(seed, spawn_key=(number,))
        words = sequence.generate_state(1, np.uint64)
        value = int(words[0]) >> 1  # 63 bits fit into TensorFlow's int64.
      setattr(self, name, value)

  @classmethod
  def derived(cls, secret: bytes, nonce: Optional[str] = None) -> 'SeedStreams':
    """Derives seeds from a secret that several processes have.

    Args:
      secret: At least 32 random bytes, which may serve for many runs.
      nonce: The nonce of an earlier call, to get the same seeds; it need not be
        secret. None draws 256 bits, so that no two runs share their seeds.

    Raises:
      ValueError: If the secret is too short, or `nonce` is not a nonce.
    """
    if len(secret) < 32:
      raise ValueError(
        f'secret must have at least 32 bytes. Found {len(secret)}.'
      )
    nonce = _checked(secrets.token_hex(32) if nonce is None else nonce)
    streams = cls(None)
    streams.nonce = nonce
    for name in _STREAMS:
      words = f'pda_fed seeds 1 {nonce} {name}'.encode()
      digest = hmac.digest(secret, words, 'sha256')
      setattr(streams, name, int.from_bytes(digest[:8], 'big') >> 1)
    return streams

  def __repr__(self) -> str:
    """Tells no seed."""
    return f'SeedStreams(reproducible={self.reproducible})'

  def __reduce__(self):
    """Raises TypeError: a pickle would leave the process with the secret."""
    raise TypeError(
      'SeedStreams must not be pickled or copied: whoever has the seeds can'
      ' remove the noise. To keep them in a secret place, use as_dict.'
    )

  def claim(self, round_num: int, digest: bytes) -> None:
    """Binds the noise of a round to what it is added to.

    The noise follows from the seeds and the round. The difference of two sums
    with the same noise has none: it reveals the user in whom they differ.

    Args:
      round_num: The index of the round.
      digest: A digest of the users, and of all else that may differ.

    Raises:
      ReusedNoiseError: If the round has had another digest. The same one may
        come again: a repeated round reveals nothing new.
    """
    if self._claims.setdefault(round_num, digest) != digest:
      raise ReusedNoiseError(
        f'Round {round_num} must have the users and the weights that it had'
        ' before: the same noise with others would reveal the difference.'
        ' Start again with fresh seeds.'
      )

  def as_dict(self) -> dict[str, Any]:
    """Returns the seed of each stream, for resuming a run without a seed.

    They determine the run's noise: keep them secret. Derived seeds come with
    their nonce.
    """
    found = {name: getattr(self, name) for name in _STREAMS}
    return {**found, 'nonce': self.nonce} if self.nonce else found

  @classmethod
  def from_dict(cls, seeds: dict[str, Any]) -> 'SeedStreams':
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
    if 'nonce' in seeds:
      streams.nonce = _checked(seeds['nonce'])
      seeds = {name: seeds[name] for name in seeds.keys() - {'nonce'}}
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
    if self.nonce:
      return (
        'The noise of this run follows from the secret of its hosts, also after'
        ' its end: whoever has that secret can remove the noise. The guarantee'
        ' holds only against everyone else.'
      )
    return 'The noise of this run was drawn from a fresh secret seed.'
