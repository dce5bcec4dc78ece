"""Feeds damaged files to a loader, and judges what comes of it.

A loader that is given a damaged file may

  * raise one of our errors, or a ValueError or TypeError that our own code
    raises, whose message names the file;
  * return what it would have returned, if the damage does not matter; or, of a
    format without a checksum, something that is as it should be.

Anything else is a bug: an error from inside numpy, json, sqlite3 or Python
itself, a wrong value, much memory, a long time. A failure prints the seed of
its case; `--fuzz_seed=SEED --fuzz_cases=1 -k TARGET` repeats it alone.
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import pathlib
import random
import resource
import signal
import traceback
from typing import Any, Optional
import warnings

import numpy as np
from pda_fed import errors
import pytest

from tests.fuzz import mutations

_ROOT = pathlib.Path(__file__).parents[2]
_OUR_PACKAGES = ('pda_fed', 'data_prep', 'scripts')
_SECONDS_PER_CASE = 30
_MOST_MEMORY = 256 * 2**20


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
    must_find: Share of the cases in which the damage must be found. A loader
      that finds hardly any, or damage that hardly damages, would make a test of
      nothing.
    is_slow: Whether the test is left out of the fast ones.
  """

  write: Callable[[pathlib.Path], Any]
  load: Callable[[pathlib.Path], Any]
  check: Callable[[Any, Any], None] = equal
  files: tuple[str, ...] = ()
  names: tuple[str, ...] = ()
  share: float = 1.0
  must_find: float = 0.3
  is_slow: bool = False


def with_slow(targets: Mapping[str, Target]) -> list:
  """The names of targets, for pytest, with marks on those that are slow."""
  return [
    pytest.param(name, marks=pytest.mark.slow if target.is_slow else ())
    for name, target in targets.items()
  ]


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
  mutate = mutations.mutate_json if is_json else mutations.mutate_bytes
  damaged = mutate(rng, whole[name])
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
