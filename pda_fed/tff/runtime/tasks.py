"""A pool of threads that runs tasks as soon as their inputs are ready.

A `Run` is the work of one call: tasks that depend on each other, one for each
client and step. No thread ever waits for a task, so any number of threads can
finish any run. A task's result depends only on its inputs, not on the thread
that runs it or on the time. TensorFlow operations with their own state, such as
random ones with `seed=`, are the exception.
"""

from collections.abc import Callable, Iterable
import heapq
import itertools
import os
import threading
from typing import Any, Optional

from pda_fed.tff import _contexts
from pda_fed.tff.runtime import errors
import tensorflow as tf

# TensorFlow exports no other way to stop a running graph.
from tensorflow.python.eager import cancellation

# Seconds to wait for threads that were told to stop.
_END_SECONDS = 5.0
_of_thread = threading.local()


def cancellation_manager() -> cancellation.CancellationManager:
  """Returns the object that cancels TensorFlow calls of this thread's task.

  Outside a task, nothing cancels them.
  """
  found = getattr(_of_thread, 'manager', None)
  return cancellation.CancellationManager() if found is None else found


class Task:
  """A function call with a future result.

  Attributes:
    place: Where the task runs, for error messages.
    result: The result, once the task is done.
  """

  def __init__(self, run: 'Run', function, place: errors.Place, urgency: int):
    self.place = place
    self.result: Any = None
    self._run = run
    self._function = function
    self._urgency = urgency
    self._done = False
    self._missing = 0
    self._followers: list[Task] = []


class Run:
  """The tasks of one call."""

  def __init__(self, pool: 'Pool', on_end: Callable[['Run'], None]):
    """Initializes the run; `start` adds tasks.

    Args:
      pool: Runs the tasks.
      on_end: Called with the run by the thread that finishes its last task.
    """
    self._pool = pool
    self._on_end = on_end
    self._root: Optional[Task] = None
    self._open = 0
    self._cancelled = False  # No further task starts.
    self._stopped = False  # By `cancel`, not by a failure.
    self._failure: Optional[tuple[errors.Place, BaseException]] = None
    self._finished = threading.Event()
    self._stop = cancellation.CancellationManager()

  def start(
    self,
    function: Callable[[], Any],
    inputs: Iterable[Task] = (),
    *,
    place: errors.Place = errors.NOWHERE,
    urgency: int = 0,
  ) -> Task:
    """Adds a task.

    Args:
      function: Called without arguments when all inputs are done.
      inputs: Tasks of this run.
      place: Where the task runs, for error messages.
      urgency: The task's priority; higher runs first. Later steps should have a
        higher priority, so that their inputs are freed early.

    Returns:
      The task.
    """
    task = Task(self, function, place, urgency)
    with self._pool.lock:
      self._open += 1
      for other in inputs:
        if not other._done:
          other._followers.append(task)
          task._missing += 1
      if not task._missing:
        self._pool.push(task)
    return task

  def wait(self) -> Any:
    """Waits until all tasks are done, and returns `result()`.

    Raises:
      KeyboardInterrupt: On Ctrl-C, after running graphs were told to stop.
    """
    try:
      self._finished.wait()
    except BaseException:
      self.cancel()
      self._finished.wait(_END_SECONDS)
      raise
    return self.result()

  def result(self) -> Any:
    """Returns the result of a run whose tasks are done.

    Raises:
      ComputationError: If a task failed. Tasks that had not started were
        dropped.
      RuntimeClosedError: If the run was cancelled.
    """
    if self._failure is not None:
      raise errors.as_computation_error(*self._failure)
    if self._stopped:
      raise errors.RuntimeClosedError('The TFF computation was stopped.')
    return self._root.result

  def cancel(self) -> None:
    """Drops tasks that have not started, and stops running ones."""
    with self._pool.lock:
      self._cancelled = self._stopped = True
    self._stop.start_cancel()

  def execute(self, task: Task) -> None:
    """Runs a task; called by a thread of the pool."""
    result = None
    if not self._cancelled:
      try:
        _of_thread.manager = self._stop
        result = task._function()
      except BaseException as e:
        self._fail(task, e)
      finally:
        _of_thread.manager = None
    self._finish(task, result)

  def _fail(self, task: Task, error: BaseException) -> None:
    """Records the error to report, and drops tasks that have not started."""
    with self._pool.lock:
      # A graph that fails cancels all graphs of its run. Their errors may come
      # first, but are not the cause.
      is_cause = not isinstance(error, tf.errors.CancelledError)
      has_cause = self._failure is not None and not isinstance(
        self._failure[1], tf.errors.CancelledError
      )
      if not self._stopped and (self._failure is None or is_cause > has_cause):
        self._failure = task.place, error
      self._cancelled = True

  def _finish(self, task: Task, result: Any) -> None:
    with self._pool.lock:
      task.result, task._done = result, True
      task._function = None  # It holds the inputs.
      for follower in task._followers:
        follower._missing -= 1
        if not follower._missing:
          self._pool.push(follower)
      task._followers = []
      self._open -= 1
      has_ended = not self._open
      if has_ended:
        self._pool.forget(self)
        self._finished.set()
    if has_ended:
      self._on_end(self)


class Pool:
  """Threads that take the most urgent task of any run.

  Attributes:
    lock: Guards the pool's and its runs' state.
  """

  def __init__(self, num_threads: int):
    """Initializes the pool; threads start with the first task.

    Args:
      num_threads: Number of tasks that run at a time.
    """
    self.lock = threading.RLock()
    self._num_threads = num_threads
    self._ready = threading.Condition(self.lock)
    self._queue: list[tuple[int, int, Task]] = []
    self._order = itertools.count()
    self._threads: list[threading.Thread] = []
    self._runs: set[Run] = set()
    self._closed = False
    self._owner_pid = _contexts.process_of_tensorflow()

  @property
  def is_ours(self) -> bool:
    """Whether this process can use the pool; False in a forked process."""
    return os.getpid() == self._owner_pid

  def check_usable(self) -> None:
    """Raises if this process cannot use the pool.

    Raises:
      RuntimeClosedError: If the pool is closed, or belongs to another process.
    """
    if not self.is_ours:
      raise errors.RuntimeClosedError(
        f'The TFF runtime belongs to process {self._owner_pid}: TensorFlow does'
        ' not work in a forked process. Start a new process (in'
        " multiprocessing, use the 'spawn' method)."
      )
    if self._closed:
      raise errors.RuntimeClosedError(
        'The TFF runtime is closed: its `with` block has ended, or'
        ' use_in_process was called again.'
      )

  def start(
    self,
    function: Callable[[Run], Any],
    on_end: Callable[[Run], None] = lambda run: None,
  ) -> Run:
    """Starts a function on a thread.

    Args:
      function: Called with the run, to which it may add tasks.
      on_end: Called with the run by the thread that finishes its last task.

    Returns:
      The run; its result is the function's.

    Raises:
      RuntimeClosedError: If the pool cannot be used.
      UnsupportedComputationError: If a thread of the pool calls.
    """
    if threading.current_thread() in self._threads:
      raise errors.UnsupportedComputationError(
        'A TFF computation cannot be called from within another computation.'
      )
    run = Run(self, on_end)
    with self.lock:  # Atomically, so that closing the pool ends the run.
      self.check_usable()
      self._runs.add(run)
      run._root = run.start(lambda: function(run))
    return run

  def call(self, function: Callable[[Run], Any]) -> Any:
    """Calls a function on a thread and waits for all tasks that it starts.

    Args:
      function: Called with the run, to which it may add tasks.

    Returns:
      The function's result; tasks in it are done.

    Raises:
      ComputationError: If the function or a task failed.
      RuntimeClosedError: If the pool cannot be used.
    """
    return self.start(function).wait()

  def forget(self, run: Run) -> None:
    """Removes a run that has ended; the caller holds the lock."""
    self._runs.discard(run)

  def push(self, task: Task) -> None:
    """Queues a task whose inputs are done; the caller holds the lock."""
    heapq.heappush(self._queue, (-task._urgency, next(self._order), task))
    if len(self._threads) < self._num_threads:
      # A daemon, so that the program can exit if a graph does not stop.
      thread = threading.Thread(
        target=self._work, name='pda_fed-tff', daemon=True
      )
      self._threads.append(thread)
      thread.start()
    self._ready.notify()

  def _work(self) -> None:
    while True:
      with self._ready:
        while not self._queue and not self._closed:
          self._ready.wait()
        if not self._queue:
          return  # The pool is closed, and no task is left.
        task = heapq.heappop(self._queue)[-1]
      task._run.execute(task)
      del task  # Otherwise an idle thread would keep the last result alive.

  def stop(self) -> None:
    """Stops running tasks and tells the threads to end."""
    with self.lock:
      self._closed = True
      runs = list(self._runs)
      self._ready.notify_all()
    for run in runs:
      run.cancel()

  def close(self) -> None:
    """Stops running tasks and ends the threads; may be called twice."""
    if not self.is_ours:
      return
    self.stop()
    for thread in self._threads:
      if thread is not threading.current_thread():
        thread.join(_END_SECONDS)
