"""The ordered map."""

import os
import signal
import time

from data_prep import errors
from data_prep import parallel
import pytest


def _square(x):
  time.sleep(0.001 * (7 - x % 7))  # Later items finish earlier.
  return x * x


def _fail(x):
  raise errors.SourceError(f'cannot read {x}')


def _die(x):
  os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize('num_processes', [1, 2])
def test_keeps_the_order_and_takes_few_items_ahead(num_processes):
  taken = []

  def items():
    for i in range(50):
      taken.append(i)
      yield i

  results = parallel.ordered_map(_square, items(), num_processes)
  for i, found in enumerate(results):
    assert found == i * i
    assert len(taken) <= i + 6
  assert len(taken) == 50


@pytest.mark.parametrize('num_processes', [1, 2])
def test_errors_come_through(num_processes):
  with pytest.raises(errors.SourceError, match='cannot read 0'):
    list(parallel.ordered_map(_fail, range(9), num_processes))


def test_a_killed_process_is_an_error():
  with pytest.raises(errors.SourceError, match='killed.*num_processes=2'):
    list(parallel.ordered_map(_die, range(9), 2))


def test_bad_number():
  with pytest.raises(ValueError, match='num_processes .* Found 0'):
    list(parallel.ordered_map(_square, [], 0))
