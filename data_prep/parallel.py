"""A parallel map that keeps the order and bounds the memory."""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import process
import multiprocessing
from multiprocessing import connection
import os
import signal
import threading
from typing import Any, TypeVar

from data_prep import errors
from pda_fed.common import validate

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')

# Waiting results per process, so that no process idles.
_WINDOW = 3

_task: Any = None  # A worker's task, sent once instead of per item.


def _end_with_parent() -> None:
  connection.wait([multiprocessing.parent_process().sentinel])
  os._exit(1)


def _start_worker(task: Callable[[Any], Any]) -> None:
  global _task
  _task = task
  # Only the parent handles Ctrl-C. It then ends its workers.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # If the parent is killed, its workers would wait forever.
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _run_task(item: Any) -> Any:
  return _task(item)


def ordered_map(
  task: Callable[[_Item], _Result],
  items: Iterable[_Item],
  num_processes: int,
) -> Iterator[_Result]:
  """Yields the task's results in the order of the items.

  Args:
    task: Called with each item. Must be picklable for several processes.
    items: The items. Only a few are held in memory at a time.
    num_processes: Number of processes to start. 1 runs the task in this
      process.

  Yields:
    `task(item)` for each item.

  Raises:
    ValueError: If `num_processes` is less than 1.
    SourceError: If a process was killed.
  """
  validate.integers(1, num_processes=num_processes)
  if num_processes == 1:
    yield from map(task, items)
    return
  # Not fork: the caller may have threads, such as TensorFlow's.
  pool = futures.ProcessPoolExecutor(
    num_processes,
    mp_context=multiprocessing.get_context('spawn'),
    initializer=_start_worker,
    initargs=(task,),
  )
  waiting: collections.deque[futures.Future] = collections.deque()
  try:
    for item in items:
      waiting.append(pool.submit(_run_task, item))
      if len(waiting) >= _WINDOW * num_processes:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()
  except process.BrokenProcessPool as e:
    raise errors.SourceError(
      'A worker process was killed, perhaps for lack of memory. Use fewer'
      f' processes. Found num_processes={num_processes}.'
    ) from e
  finally:
    pool.shutdown(wait=True, cancel_futures=True)
