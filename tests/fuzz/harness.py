"""Feeds damaged files to a loader, and judges what comes of it.

Files are damaged the way that disks, downloads and editors do. A loader that is
given a damaged file may

  * raise one of our errors, or a ValueError or TypeError that our own code
    raises, whose message names the file;
  * return what it would have returned, if the damage does not matter; or, of a
    format without a checksum, something that is as it should be.

Anything else is a bug: an error from inside numpy, json, sqlite3 or Python
itself, a wrong value, much memory, a long time. A failure prints the seed of
its case; `--fuzz_seed=SEED --fuzz_cases=1 -k TARGET` repeats it alone.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import json
import pathlib
import random
import resource
import signal
import traceback
from typing import Any, Optional
import warnings

import numpy as np
from pda_fed import errors

_ROOT = pathlib.Path(__file__).parents[2]
_OUR_PACKAGES = ('pda_fed', 'data_prep', 'scripts')
_SECONDS_PER_CASE = 30
_MOST_MEMORY = 256 * 2**20
# What stands in for a number that a text holds, or for a value of JSON.
_ODD_NUMBERS = (
  *(b'0', b'-1', b'1e999', b'NaN', b'-Infinity', b'0x10', b''),
  *(b'99999999999999999999999999', b'4294967295'),
)
_ODD_VALUES = (
  *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.5, 1e308),
  *(float('nan'), float('inf'), float('-inf'), '', 'x', '0', '\ud800'),
  *([], [0], [[]], {}, {'': None}),
)


def _damaged_bytes(rng: random.Random, data: bytes) -> Optional[bytes]:
  """Returns damaged bytes, None for a file that is gone."""
  kind = rng.random()
  if kind < 0.01:
    return None
  if not data or kind < 0.03:
    return rng.choice((b'', b'\x00', rng.randbytes(100)))
  start = rng.randrange(len(data))
  if kind < 0.3:
    damaged = bytearray(data)
    damaged[start] ^= 1 << rng.randrange(8)
    return bytes(damaged)
  if kind < 0.4:
    return rng.choice((data[:start], data + data))
  digits = [i for i, c in enumerate(data[: 2**16]) if 48 <= c < 58]
  if kind < 0.55 and digits:
    start = stop = rng.choice(digits)
    while stop < len(data) and 48 <= data[stop] < 58:
      stop += 1
    return data[:start] + rng.choice(_ODD_NUMBERS) + data[stop:]
  if kind < 0.65:  # A line is gone, twice there, or elsewhere.
    lines = data.split(b'\n')
    line = lines.pop(rng.randrange(len(lines)))
    for _ in range(rng.randrange(3)):
      lines.insert(rng.randrange(len(lines) + 1), line)
    return b'\n'.join(lines)
  # Something else is in place of neighbouring bytes.
  most = len(data) if rng.random() < 0.1 else 64
  span = data[start : start + rng.randint(1, most)]
  other = rng.choice(
    (
      *(b'', span * 2, span[::-1], rng.randbytes(64) + span),
      rng.choice((b'\x00', b'\xff', b'\x80', b' ', b'\n', b'9')) * len(span),
      data[rng.randrange(len(data)) :][: len(span)],
    )
  )
  return data[:start] + other + data[start + len(span) :]


def _places(value: Any, path: tuple = ()) -> list[tuple]:
  inner = ()
  if isinstance(value, dict):
    inner = value.items()
  elif isinstance(value, list):
    inner = enumerate(value)
  return [path, *(p for k, v in inner for p in _places(v, (*path, k)))]


def _damaged_json(rng: random.Random, data: bytes) -> bytes:
  """Returns JSON in which one value is another, gone, or elsewhere."""
  if rng.random() < 0.01:
    depth = rng.choice((500, 100_000))
    return b'[' * depth + b']' * depth
  tree = {'root': json.loads(data)}
  place = rng.choice(_places(tree['root']))
  owner, key = tree, 'root'
  for step in place:
    owner, key = owner[key], step
  kind = rng.randrange(8) if place else 7
  if kind == 0:
    del owner[key]
  elif kind == 1 and isinstance(owner, dict):
    owner[key + rng.choice(('', 'x', ' ', '\x00'))] = owner.pop(key)
  elif kind == 2:
    other = rng.choice(list(owner) if isinstance(owner, dict) else [0])
    owner[key], owner[other] = owner[other], owner[key]
  else:
    owner[key] = rng.choice(_ODD_VALUES)
  # Not every writer of JSON is as careful as ours: NaN is written as such.
  return json.dumps(tree['root']).encode()


class _HangsError(Exception):
  """Not one that a loader could take for its own."""


@contextlib.contextmanager
def memory_below(limit: int):
  """Fails if the most memory of this process grows by more."""
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  yield
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert 1024 * (after - before) < limit, f'{after - before} KiB of memory'


def equal(expected: Any, found: Any) -> None:
  """Raises AssertionError unless two trees of arrays are the same."""
  assert type(expected) is type(found), f'{expected!r} became {found!r}'
  if isinstance(expected, np.ndarray):
    assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
    assert expected.tobytes() == found.tobytes(), 'another array'
  elif isinstance(expected, dict):
    equal(list(expected), list(found))
    equal(list(expected.values()), list(found.values()))
  elif isinstance(expected, (tuple, list)):
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
      equal(one, other)
  else:
    assert repr(expected) == repr(found), f'{expected!r} became {found!r}'


def anything(expected: Any, found: Any) -> None:
  """For what has no checksum: the loader has looked at all there is."""
  del expected, found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
  """A loader and files for it.

  Attributes:
    write: Writes whole files into a folder.
    load: Reads them from the folder.
    check: Raises AssertionError for (what whole files gave, what damaged ones
      gave) if that is wrong; by default, unless they are equal.
    files: Names of the files that are damaged; by default all.
    names: What else than the files' names a message may name.
    share: Fraction of the cases of --fuzz_cases to run.
    must_find: Share of the cases in which the damage must be found. Damage that
      hardly damages would make a test of nothing.
  """

  write: Callable[[pathlib.Path], Any]
  load: Callable[[pathlib.Path], Any]
  check: Callable[[Any, Any], None] = equal
  files: tuple[str, ...] = ()
  names: tuple[str, ...] = ()
  share: float = 1.0
  must_find: float = 0.2


@contextlib.contextmanager
def _time_limit():
  def stop(*_):
    raise _HangsError(f'more than {_SECONDS_PER_CASE} s')

  before = signal.signal(signal.SIGALRM, stop)
  signal.setitimer(signal.ITIMER_REAL, _SECONDS_PER_CASE)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _is_ours(error: Exception) -> bool:
  """Whether it is an error of ours, or one that our code raised itself."""
  if isinstance(error, errors.PdaFedError):
    return True
  if type(error) not in (ValueError, TypeError, FileNotFoundError):
    return False
  place = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
  return any(_ROOT / name in place.parents for name in _OUR_PACKAGES)


def _problem(error: Exception, names: set[str], is_gone: bool) -> Optional[str]:
  """What is wrong with an error; None if it is as it should be."""
  if is_gone and type(error) is FileNotFoundError and error.filename:
    return None  # Python's own names the file.
  if not _is_ours(error):
    return 'not an error of ours'
  if not any(name in str(error) for name in names):
    return 'the message does not name the file'
  return None


def _case(target, folder, whole, expected, seed) -> bool:
  """Runs one case; returns whether the damage was found."""
  rng = random.Random(seed)
  name = rng.choice(target.files or sorted(whole))
  is_json = name.endswith('.json') and rng.random() < 0.6
  damaged = (_damaged_json if is_json else _damaged_bytes)(rng, whole[name])
  path = folder / name
  if damaged is None:
    path.unlink()
  else:
    path.write_bytes(damaged)
  what = f'seed {seed}, {name}: '
  try:
    with warnings.catch_warnings(), _time_limit():
      warnings.simplefilter('ignore')
      found = target.load(folder)
  except Exception as e:
    names = {pathlib.Path(n).name for n in whole} | {folder.name, *target.names}
    problem = _problem(e, names, damaged is None)
    if problem is not None:
      raise AssertionError(f'{what}{problem}: {e!r}') from e
    return True
  finally:
    path.write_bytes(whole[name])
  try:
    target.check(expected, found)
  except Exception as e:
    raise AssertionError(f'{what}a wrong result: {e!r}') from e
  return False


def run(
  target: Target, folder: pathlib.Path, cases: int, first_seed: int = 0
) -> None:
  """Runs cases of a target.

  Args:
    target: The loader and its files.
    folder: An empty one; its name is in messages that name a folder.
    cases: How many.
    first_seed: Of the first; the next has the next.

  Raises:
    AssertionError: With the seed of the first case that is a bug.
  """
  target.write(folder)
  paths = sorted(p for p in folder.rglob('*') if p.is_file())
  whole = {str(p.relative_to(folder)): p.read_bytes() for p in paths}
  expected = target.load(folder)
  target.check(expected, target.load(folder))
  cases = max(1, round(target.share * cases))
  seeds = range(first_seed, first_seed + cases)
  with memory_below(_MOST_MEMORY):
    found = sum(_case(target, folder, whole, expected, seed) for seed in seeds)
  if cases >= 50:
    assert found >= target.must_find * cases, f'{found} of {cases} found'
