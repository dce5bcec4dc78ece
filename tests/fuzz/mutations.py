"""Damages files the way that disks, downloads and editors do.

Everything is drawn from one `random.Random`, so that a seed repeats a damage.
"""

import json
import random
from typing import Any, Optional

_LONGEST = 64
# What stands in for a number that a text holds.
_ODD_NUMBERS = (
  b'0',
  b'-1',
  b'1e999',
  b'NaN',
  b'-Infinity',
  b'99999999999999999999999999',
  b'4294967295',
  b'0x10',
  b'',
)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
  """Some neighbouring bytes, few more often than many."""
  start = rng.randrange(len(data) + 1)
  most = len(data) if rng.random() < 0.1 else _LONGEST
  return start, min(len(data), start + rng.randint(1, most))


def flip_bits(rng: random.Random, data: bytes) -> bytes:
  damaged = bytearray(data)
  for _ in range(rng.choice((1, 1, 1, 2, 8))):
    damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
  return bytes(damaged)


def set_bytes(rng: random.Random, data: bytes) -> bytes:
  start, stop = _span(rng, data)
  value = rng.choice((b'\x00', b'\xff', b'\x7f', b'\x80', b' ', b'\n', b'9'))
  return data[:start] + value * (stop - start) + data[stop:]


def truncate(rng: random.Random, data: bytes) -> bytes:
  return data[: rng.randrange(len(data))]


def remove(rng: random.Random, data: bytes) -> bytes:
  start, stop = _span(rng, data)
  return data[:start] + data[stop:]


def duplicate(rng: random.Random, data: bytes) -> bytes:
  start, stop = _span(rng, data)
  return data[:stop] + data[start:stop] * rng.choice((1, 1, 3)) + data[stop:]


def repeat(rng: random.Random, data: bytes) -> bytes:
  del rng
  return data + data


def insert(rng: random.Random, data: bytes) -> bytes:
  start, _ = _span(rng, data)
  return data[:start] + rng.randbytes(rng.randint(1, _LONGEST)) + data[start:]


def swap(rng: random.Random, data: bytes) -> bytes:
  a, b = sorted((_span(rng, data), _span(rng, data)))
  if a[1] > b[0]:
    return data[::-1]
  return (
    data[: a[0]]
    + data[b[0] : b[1]]
    + data[a[1] : b[0]]
    + data[a[0] : a[1]]
    + data[b[1] :]
  )


def change_number(rng: random.Random, data: bytes) -> bytes:
  """Replaces a run of digits, if there is one nearby."""
  places = [i for i, c in enumerate(data[: 2**16]) if 48 <= c < 58]
  if not places:
    return flip_bits(rng, data)
  start = stop = rng.choice(places)
  while stop < len(data) and 48 <= data[stop] < 58:
    stop += 1
  return data[:start] + rng.choice(_ODD_NUMBERS) + data[stop:]


def change_line(rng: random.Random, data: bytes) -> bytes:
  """Drops, repeats or moves a line."""
  lines = data.split(b'\n')
  line = lines.pop(rng.randrange(len(lines)))
  for _ in range(rng.choice((0, 1, 2))):
    lines.insert(rng.randrange(len(lines) + 1), line)
  return b'\n'.join(lines)


_BYTE_MUTATIONS = (
  flip_bits,
  flip_bits,
  flip_bits,
  set_bytes,
  truncate,
  remove,
  duplicate,
  repeat,
  insert,
  swap,
  change_number,
  change_line,
)


def mutate_bytes(rng: random.Random, data: bytes) -> Optional[bytes]:
  """Returns damaged bytes, None for a file that is gone."""
  if rng.random() < 0.01:
    return None
  if not data or rng.random() < 0.02:
    return rng.choice((b'', b'\x00', rng.randbytes(100)))
  return rng.choice(_BYTE_MUTATIONS)(rng, data)


_ODD_VALUES = (
  None,
  True,
  False,
  0,
  -1,
  1,
  2**31,
  2**63,
  10**30,
  0.5,
  -0.5,
  1e308,
  float('nan'),
  float('inf'),
  float('-inf'),
  '',
  'x',
  '0',
  '\ud800',
  [],
  [0],
  [[]],
  {},
  {'': None},
)


def _places(value: Any, path: tuple = ()) -> list[tuple]:
  inner = ()
  if isinstance(value, dict):
    inner = value.items()
  elif isinstance(value, list):
    inner = enumerate(value)
  return [path, *(p for k, v in inner for p in _places(v, (*path, k)))]


def _deep(depth: int) -> str:
  return '[' * depth + ']' * depth


def mutate_json(rng: random.Random, data: bytes) -> bytes:
  """Returns JSON in which one value is another, gone, or elsewhere."""
  if rng.random() < 0.01:
    return _deep(rng.choice((500, 100_000))).encode()
  tree = {'root': json.loads(data)}
  place = rng.choice(_places(tree['root']))
  owner, key = tree, 'root'
  for step in place:
    owner, key = owner[key], step
  kind = rng.randrange(8)
  if kind == 0 and place:
    del owner[key]
  elif kind == 1 and isinstance(owner, dict) and place:
    owner[key + rng.choice(('', 'x', ' ', '\x00'))] = owner.pop(key)
  elif kind == 2 and place:
    other = rng.choice(list(owner) if isinstance(owner, dict) else [0])
    owner[key], owner[other] = owner[other], owner[key]
  else:
    owner[key] = rng.choice(_ODD_VALUES)
  # Not every writer of JSON is as careful as ours: NaN is written as such.
  return json.dumps(tree['root']).encode()
