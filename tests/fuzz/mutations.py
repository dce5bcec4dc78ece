"""Damages files the way that disks, downloads and editors do.

Everything is drawn from one `random.Random`, so that a seed repeats a damage.
"""

import json
import random
from typing import Any, Optional

_ODD_BYTES = (b'\x00', b'\xff', b'\x80', b' ', b'\n', b'9')
# What stands in for a number that a text holds.
_ODD_NUMBERS = (
  *(b'0', b'-1', b'1e999', b'NaN', b'-Infinity', b'0x10', b''),
  *(b'99999999999999999999999999', b'4294967295'),
)
_ODD_VALUES = (
  *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.5, 1e308),
  *(float('nan'), float('inf'), float('-inf'), '', 'x', '0', '\ud800'),
  *([], [0], [[]], {}, {'': None}),
)


def _flip_bits(rng: random.Random, data: bytes) -> bytes:
  damaged = bytearray(data)
  for _ in range(rng.choice((1, 1, 1, 2, 8))):
    damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
  return bytes(damaged)


def _truncate(rng: random.Random, data: bytes) -> bytes:
  return data[: rng.randrange(len(data))]


def _repeat(rng: random.Random, data: bytes) -> bytes:
  del rng
  return data + data


def _change_span(rng: random.Random, data: bytes) -> bytes:
  """Puts something else in place of neighbouring bytes, mostly a few."""
  start = rng.randrange(len(data) + 1)
  most = len(data) if rng.random() < 0.1 else 64
  stop = min(len(data), start + rng.randint(1, most))
  span = data[start:stop]
  other = rng.choice(
    (
      *(b'', span * 2, span * 4, span[::-1], rng.randbytes(64) + span),
      rng.choice(_ODD_BYTES) * len(span),
      data[rng.randrange(len(data)) :][: len(span)],
    )
  )
  return data[:start] + other + data[stop:]


def _change_number(rng: random.Random, data: bytes) -> bytes:
  """Replaces a run of digits, if there is one nearby."""
  places = [i for i, c in enumerate(data[: 2**16]) if 48 <= c < 58]
  if not places:
    return _flip_bits(rng, data)
  start = stop = rng.choice(places)
  while stop < len(data) and 48 <= data[stop] < 58:
    stop += 1
  return data[:start] + rng.choice(_ODD_NUMBERS) + data[stop:]


def _change_line(rng: random.Random, data: bytes) -> bytes:
  """Drops, repeats or moves a line."""
  lines = data.split(b'\n')
  line = lines.pop(rng.randrange(len(lines)))
  for _ in range(rng.choice((0, 1, 2))):
    lines.insert(rng.randrange(len(lines) + 1), line)
  return b'\n'.join(lines)


_BYTE_MUTATIONS = (
  *(_flip_bits, _flip_bits, _flip_bits, _truncate, _repeat),
  *(_change_span, _change_span, _change_span, _change_span),
  *(_change_number, _change_line),
)


def mutate_bytes(rng: random.Random, data: bytes) -> Optional[bytes]:
  """Returns damaged bytes, None for a file that is gone."""
  if rng.random() < 0.01:
    return None
  if not data or rng.random() < 0.02:
    return rng.choice((b'', b'\x00', rng.randbytes(100)))
  return rng.choice(_BYTE_MUTATIONS)(rng, data)


def _places(value: Any, path: tuple = ()) -> list[tuple]:
  inner = ()
  if isinstance(value, dict):
    inner = value.items()
  elif isinstance(value, list):
    inner = enumerate(value)
  return [path, *(p for k, v in inner for p in _places(v, (*path, k)))]


def mutate_json(rng: random.Random, data: bytes) -> bytes:
  """Returns JSON in which one value is another, gone, or elsewhere."""
  if rng.random() < 0.01:
    depth = rng.choice((500, 100_000))
    return b'[' * depth + b']' * depth
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
