"""TensorFlow's stateless uniform generator, in numpy.

The TFF engine draws the public users of a round inside a TFF computation, with
`tf.random.stateless_uniform`. Other engines must draw the same users without
TensorFlow. The generator is Philox 4x32-10 ("Parallel Random Numbers: As Easy
as 1, 2, 3", Salmon et al., SC 2011). TensorFlow guarantees how that function
derives the key and the counter from a seed, and values from bits.
"""

import numpy as np

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_SCRAMBLING_KEY = 0x3EC8F720, 0x02461E29
_ROUNDS = 10


def _philox(counters: np.ndarray, key: np.ndarray) -> np.ndarray:
  """Encrypts counters, uint32 [n, 4], with a key, uint32 [2]."""
  a, b, c, d = (counters[:, i] for i in range(4))
  k0, k1 = key[:1], key[1:]
  for _ in range(_ROUNDS):
    left = a.astype(np.uint64) * _MULTIPLIERS[0]
    right = c.astype(np.uint64) * _MULTIPLIERS[1]
    high_left = (left >> np.uint64(32)).astype(np.uint32)
    high_right = (right >> np.uint64(32)).astype(np.uint32)
    a, b = high_right ^ b ^ k0, right.astype(np.uint32)
    c, d = high_left ^ d ^ k1, left.astype(np.uint32)
    k0, k1 = k0 + _KEY_STEPS[0], k1 + _KEY_STEPS[1]
  return np.stack([a, b, c, d], axis=1)


def _words(seed: tuple[int, int]) -> list[int]:
  return [word for s in seed for word in (s & 0xFFFFFFFF, s >> 32)]


def _bits(seed: tuple[int, int], count: int) -> np.ndarray:
  """Returns random bits, uint32 [count], from a seed of two 63-bit integers."""
  scrambled = _philox(
    np.array([_words(seed)], np.uint32), np.array(_SCRAMBLING_KEY, np.uint32)
  )[0]
  counters = np.zeros((-(-count // 4), 4), np.uint32)
  counters[:, 0] = np.arange(len(counters))
  counters[:, 2:] = scrambled[2:]
  return _philox(counters, scrambled[:2]).reshape(-1)[:count]


def uniform(seed: tuple[int, int], count: int) -> np.ndarray:
  """Returns `tf.random.stateless_uniform([count], seed)`: float32 in [0, 1)."""
  mantissas = _bits(seed, count) & np.uint32(0x7FFFFF)
  return (mantissas | np.uint32(127 << 23)).view(np.float32) - np.float32(1)


def integers(seed: tuple[int, int], count: int, high: int) -> np.ndarray:
  """Returns `tf.random.stateless_uniform([count], seed, 0, high, tf.int32)`."""
  return (_bits(seed, count) % np.uint32(high)).astype(np.int32)
