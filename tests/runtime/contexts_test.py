"""TFF computations on our workers."""

import atexit
from concurrent import futures
import gc
import os
import signal
import threading
import time

import numpy as np
from pda_fed import runtime
from pda_fed.runtime import executors
import pytest
import tensorflow as tf
import tensorflow_federated as tff


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _sum(values):
  return tff.federated_sum(values)


@pytest.mark.parametrize('num_workers', [1, 2])
def test_workers_share_the_clients(num_workers):
  with runtime.local_workers(num_workers) as workers:
    assert len({w.pid for w in workers}) == num_workers
    assert _sum([1.0, 2.0, 4.0, 8.0, 16.0]) == 31.0
  assert not any(w.alive for w in workers)


def test_the_context_before_is_back_after_the_block():
  before = tff.framework.get_context_stack().current
  with runtime.local_workers():
    assert tff.framework.get_context_stack().current is not before
  assert tff.framework.get_context_stack().current is before


def test_use_local_worker_again_ends_the_first():
  def use():
    first = runtime.use_local_worker()
    second = runtime.use_local_worker()
    assert not first.alive and second.alive
    assert _sum([1.0, 2.0]) == 3.0
    second.stop()
    with pytest.raises(runtime.WorkerDiedError, match='stopped'):
      _sum([1.0, 2.0])

  # A thread has a context stack of its own; this one's may hold a worker that
  # other tests share.
  with futures.ThreadPoolExecutor(1) as executor:
    executor.submit(use).result(timeout=60)


def test_blocks_leave_no_thread_and_no_file_open():
  def one_block():
    with runtime.local_workers():
      assert _sum([1.0]) == 1.0

  one_block()  # What is made once is made now.
  before = threading.active_count(), len(os.listdir('/proc/self/fd'))
  for _ in range(5):
    one_block()
  gc.collect()
  after = threading.active_count(), len(os.listdir('/proc/self/fd'))
  assert after[0] <= before[0]
  assert after[1] <= before[1] + 2  # gRPC closes a little later.


def test_a_forked_process_neither_waits_nor_takes_the_worker():
  with runtime.local_workers() as workers:
    assert _sum([1.0]) == 1.0
    pid = os.fork()
    if pid == 0:
      try:
        _sum([1.0])
      except runtime.WorkerDiedError:
        atexit._run_exitfuncs()  # As at the end of a program.
        os._exit(7)
      os._exit(1)
    deadline = time.monotonic() + 20
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
      if time.monotonic() > deadline:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail('the forked process hangs')
      time.sleep(0.1)
    assert os.waitstatus_to_exitcode(done[1]) == 7
    assert workers[0].alive and _sum([1.0]) == 1.0


def test_an_unreachable_worker_is_an_error():
  with runtime.local_workers() as workers:
    os.unlink(workers[0].target.removeprefix('unix:'))
    with pytest.raises(runtime.WorkerDiedError, match='cannot be reached'):
      _sum([1.0])


def test_a_dead_worker_is_an_error():
  with runtime.local_workers() as workers:
    assert _sum([1.0]) == 1.0
    os.kill(workers[0].pid, signal.SIGKILL)
    with pytest.raises(runtime.WorkerDiedError, match='died'):
      _sum([1.0])


def test_an_error_of_the_computation_comes_through_and_the_worker_lives():
  @tff.tensorflow.computation(np.float32)
  def fails(x):
    with tf.control_dependencies([tf.debugging.assert_greater(x, 1.0)]):
      return tf.identity(x)

  with runtime.local_workers():
    with pytest.raises(Exception, match='assertion failed|InvalidArgument'):
      fails(0.0)
    assert fails(2.0) == 2.0


def test_no_workers_is_an_error():
  with pytest.raises(ValueError, match='num_workers must be at least 1'):
    with runtime.local_workers(0):
      pass


class _FakeExecutor:
  def __init__(self):
    self.closed = False

  def close(self):
    self.closed = True


def test_evicted_executors_are_closed():
  cache = executors._ExecutorCache(2)
  fakes = [_FakeExecutor() for _ in range(4)]
  for clients, executor in enumerate(fakes):
    cache[clients] = executor
  assert [e.closed for e in fakes] == [True, True, False, False]


def _resident_bytes(pid: int) -> int:
  with open(f'/proc/{pid}/statm', encoding='ascii') as f:
    return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def test_memory_stays_flat_with_cohorts_of_changing_size():
  # The promise is 15 % between round 20 and round 100 of a tiny model.
  spec = (
    tf.TensorSpec([None, 4], tf.float32),
    tf.TensorSpec([None, 1], tf.float32),
  )

  def model_fn():
    inputs = tf.keras.layers.Input([4])
    outputs = tf.keras.layers.Dense(1, kernel_initializer='zeros')(inputs)
    return tff.learning.models.from_keras_model(
      tf.keras.Model(inputs, outputs),
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec=spec,
    )

  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn, tff.learning.optimizers.build_sgdm(0.1)
  )
  rng = np.random.default_rng(0)
  features = rng.normal(size=(8, 4)).astype(np.float32)
  data = tf.data.Dataset.from_tensor_slices((features, features[:, :1])).batch(
    4
  )
  memory = {}
  with runtime.local_workers() as workers:
    state = process.initialize()
    for round_num in range(1, 101):
      # More sizes than executors are kept, so that eviction happens.
      cohort = [data] * int(rng.integers(1, 14))
      state = process.next(state, cohort).state
      if round_num in (20, 100):
        memory[round_num] = sum(
          map(_resident_bytes, (os.getpid(), workers[0].pid))
        )
  assert memory[100] < 1.15 * memory[20], memory
