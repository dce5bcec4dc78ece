"""TFF computations in this process."""

import collections
import gc
import os
import pathlib
import signal
import threading
import time

import numpy as np
from pda_fed.tff import runtime
from pda_fed.tff.runtime import graphs
from pda_fed.tff.runtime import interpreter
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.core.impl.computation import computation_impl
from tensorflow_federated.python.core.impl.types import type_serialization

_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)


@tff.tensorflow.computation(np.float32)
def _add_one(x):
  return x + 1


@tff.tensorflow.computation(np.float32)
def _above_one(x):
  with tf.control_dependencies([tf.debugging.assert_greater(x, 1.0)]):
    return tf.identity(x)


@tff.federated_computation(_AT_CLIENTS)
def _sum(values):
  return tff.federated_sum(values)


@tff.federated_computation(_AT_CLIENTS)
def _sum_above_one(values):
  return tff.federated_sum(tff.federated_map(_above_one, values))


def test_it_is_the_default_without_a_block():
  assert _sum([1.0, 2.0, 4.0]) == 7.0


def test_the_context_before_is_back_after_the_block():
  before = tff.framework.get_context_stack().current
  with runtime.in_process() as context:
    assert tff.framework.get_context_stack().current is context
    assert _sum([1.0, 2.0]) == 3.0
  assert tff.framework.get_context_stack().current is before
  with pytest.raises(runtime.RuntimeClosedError, match='block has ended'):
    context.invoke(_sum, [1.0])


def test_use_in_process_again_closes_the_first():
  first = runtime.use_in_process(max_concurrent_clients=1)
  assert _sum([1.0, 2.0]) == 3.0
  second = runtime.use_in_process()
  assert _sum([1.0, 2.0]) == 3.0
  with pytest.raises(runtime.RuntimeClosedError):
    first.invoke(_sum, [1.0])
  assert second.invoke(_sum, [1.0]) == 1.0


@pytest.mark.parametrize('number', [0, -1, 1.5])
def test_max_concurrent_clients_is_checked(number):
  with pytest.raises((TypeError, ValueError), match='max_concurrent_clients'):
    with runtime.in_process(max_concurrent_clients=number):
      pass


class TestIntrinsics:
  def test_sums_means_and_extremes(self):
    @tff.federated_computation(_AT_CLIENTS, _AT_CLIENTS)
    def all_of_them(values, weights):
      return (
        tff.federated_sum(values),
        tff.federated_mean(values),
        tff.federated_mean(values, weights),
        tff.federated_min(values),
        tff.federated_max(values),
      )

    found = all_of_them([1.0, 2.0, 6.0], [1.0, 1.0, 2.0])
    assert found == (9.0, 3.0, 3.75, 1.0, 6.0)

  def test_placements(self):
    @tff.tensorflow.computation(np.float32, np.float32)
    def add(a, b):
      return a + b

    @tff.federated_computation(_AT_CLIENTS, _AT_SERVER)
    def comp(values, start):
      sent = tff.federated_broadcast(tff.federated_map(_add_one, start))
      shared = tff.federated_map(_add_one, sent)
      moved = tff.federated_map(add, (values, shared))
      total = tff.federated_map(add, (tff.federated_sum(moved), start))
      constant = tff.federated_value(5.0, tff.CLIENTS)
      return total, moved, constant, tff.federated_value(6.0, tff.SERVER)

    total, moved, constant, at_server = comp([1.0, 2.0], 10.0)
    assert (total, moved, constant, at_server) == (37.0, [13.0, 14.0], 5.0, 6.0)

  def test_eval(self):
    draw = tff.tensorflow.computation(lambda: tf.constant(3.0))

    @tff.federated_computation(_AT_CLIENTS)
    def comp(values):
      at_clients = tff.federated_eval(draw, tff.CLIENTS)
      pairs = tff.federated_zip((values, at_clients))
      return pairs, tff.federated_eval(draw, tff.SERVER)

    assert comp([1.0, 2.0]) == ([(1.0, 3.0), (2.0, 3.0)], 3.0)

  def test_aggregate_with_functions_of_ones_own(self):
    zero = tff.tensorflow.computation(lambda: tf.constant([0.0, 0.0]))

    @tff.tensorflow.computation(tff.TensorType(np.float32, [2]), np.float32)
    def accumulate(total, value):
      return 10 * total + tf.stack([value, 1.0])

    @tff.tensorflow.computation(
      tff.TensorType(np.float32, [2]), tff.TensorType(np.float32, [2])
    )
    def merge(a, b):
      return a + b

    @tff.tensorflow.computation(tff.TensorType(np.float32, [2]))
    def report(total):
      return total[0] - total[1]

    @tff.federated_computation(_AT_CLIENTS)
    def comp(values):
      return tff.federated_aggregate(values, zero(), accumulate, merge, report)

    assert comp([1.0, 2.0, 3.0]) == 123.0 - 111.0  # In the clients' order.

  @pytest.mark.parametrize('secure', [False, True])
  def test_select(self, secure):
    @tff.tensorflow.computation(tff.TensorType(np.float32, [4]), np.int32)
    def choose(values, key):
      return collections.OrderedDict(key=key, value=values[key])

    select = tff.federated_secure_select if secure else tff.federated_select

    @tff.federated_computation(
      tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
      tff.FederatedType(np.int32, tff.SERVER),
      tff.FederatedType(tff.TensorType(np.float32, [4]), tff.SERVER),
    )
    def comp(keys, max_key, values):
      return select(keys, max_key, values, choose)

    found = comp(
      [np.int32([0, 3]), np.int32([2, 2])], 4, np.float32([0, 10, 20, 30])
    )
    assert [[int(e['value']) for e in of_one] for of_one in found] == [
      [0, 30],
      [20, 20],
    ]

  def test_sequences(self):
    add = tff.tensorflow.computation(
      lambda a, b: a + b, (np.float32, np.float32)
    )

    @tff.federated_computation(tff.SequenceType(np.float32))
    def comp(values):
      moved = tff.sequence_map(_add_one, values)
      return (
        tff.sequence_sum(moved),
        tff.sequence_reduce(moved, 100.0, add),
        moved,
      )

    total, reduced, moved = comp([1.0, 2.0, 3.0])
    assert (total, reduced, list(moved.as_numpy_iterator())) == (
      9.0,
      109.0,
      [2.0, 3.0, 4.0],
    )

  def test_secure_sums_are_simulated(self):
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def comp(values):
      return (
        tff.federated_secure_sum(values, 100),
        tff.federated_secure_sum_bitwidth(values, 8),
      )

    assert comp([1, 2, 4]) == (7, 7)


class TestValues:
  def test_kinds_and_containers_of_results(self):
    @tff.tensorflow.computation
    def comp():
      return collections.OrderedDict(
        b=(tf.constant([1, 2]), tf.constant('x')), a=[tf.constant(True)]
      )

    found = comp()
    assert list(found) == ['b', 'a']
    assert isinstance(found['b'], tuple) and isinstance(found['a'], list)
    np.testing.assert_array_equal(found['b'][0], [1, 2])
    assert found['b'][1] == b'x' and found['a'][0]

  @pytest.mark.parametrize(
    'value',
    [
      tf.data.Dataset.from_tensor_slices([1, 2, 3]),
      [1, 2, 3],
    ],
    ids=['dataset', 'list'],
  )
  def test_sequences_are_datasets_or_lists(self, value):
    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def total(dataset):
      return dataset.reduce(0, lambda a, b: a + b)

    assert total(value) == 6
    assert total([]) == 0

  @pytest.mark.parametrize(
    'comp, argument, words',
    [
      (_add_one, np.float64(1), 'float32'),
      (_add_one, tf.constant(1), 'int32'),
      (_add_one, np.float32([1, 2]), 'float32'),
      (_sum, [1.0, 'a'], 'float32'),
      (_sum, 1.0, 'list'),
    ],
  )
  def test_what_does_not_fit_is_refused(self, comp, argument, words):
    with pytest.raises(TypeError, match=words):
      comp(argument)

  def test_a_dataset_of_other_elements_is_refused(self):
    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def total(dataset):
      return dataset.reduce(0, lambda a, b: a + b)

    with pytest.raises(TypeError, match='float32'):
      total(tf.data.Dataset.from_tensor_slices([1.0]))

  def test_variables_start_anew_with_each_call_and_client(self):
    @tff.tensorflow.computation(np.float32)
    def count(x):
      variable = tf.Variable(x * 0)
      return variable.assign_add(1.0)

    @tff.federated_computation(_AT_CLIENTS)
    def comp(values):
      return tff.federated_map(count, values)

    for _ in range(3):
      assert comp([5.0] * 20) == [1.0] * 20

  @pytest.mark.parametrize('kind', ['mutable', 'static', 'dense', 'queue'])
  def test_tables_and_queues_start_anew_with_each_call_and_client(self, kind):
    @tff.tensorflow.computation(np.float32)
    def count(x):
      keys = tf.constant([1], tf.int64)
      if kind == 'static':
        table = tf.lookup.StaticHashTable(
          tf.lookup.KeyValueTensorInitializer(keys, x[tf.newaxis]), 0.0
        )
        return table.lookup(keys)[0]
      if kind == 'queue':
        line = tf.queue.FIFOQueue(99, [tf.float32], [[]])
        with tf.control_dependencies([line.enqueue(x)]):
          return x + tf.cast(line.size(), tf.float32) - 1
      if kind == 'dense':
        table = tf.lookup.experimental.DenseHashTable(
          tf.int64, tf.float32, 0.0, empty_key=-1, deleted_key=-2
        )
      else:
        table = tf.lookup.experimental.MutableHashTable(
          tf.int64, tf.float32, 0.0
        )
      total = table.lookup(keys) + x
      with tf.control_dependencies([table.insert(keys, total)]):
        return table.lookup(keys)[0]

    @tff.federated_computation(_AT_CLIENTS)
    def comp(values):
      return tff.federated_map(count, values)

    with runtime.in_process(max_concurrent_clients=1):
      for _ in range(2):
        assert comp([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]

  def test_a_value_for_all_clients_under_a_type_for_each(self):
    same = tff.federated_computation(lambda v: v, _AT_CLIENTS)

    @tff.federated_computation(_AT_CLIENTS, _AT_SERVER)
    def comp(values, start):
      sent = same(tff.federated_broadcast(start))
      return sent, tff.federated_sum(values)

    assert comp([1.0, 2.0, 3.0], 5.0) == ([5.0, 5.0, 5.0], 6.0)


class TestErrors:
  def test_one_inside_a_client_names_it(self):
    with pytest.raises(
      runtime.ComputationError, match=r'client 2 of 4 .*assertion failed'
    ) as caught:
      _sum_above_one([2.0, 3.0, 0.0, 4.0])
    assert '\n' not in str(caught.value)
    assert caught.value.place.client == 2
    assert isinstance(caught.value.__cause__, tf.errors.InvalidArgumentError)
    assert _sum_above_one([2.0, 3.0]) == 5.0  # It goes on.

  def test_one_at_the_server_says_so(self):
    @tff.federated_computation(_AT_SERVER)
    def comp(value):
      return tff.federated_map(_above_one, value)

    with pytest.raises(runtime.ComputationError, match='At the server: assert'):
      comp(0.0)

  def test_jax_code_is_named(self):
    type_spec = tff.FunctionType(np.float32, np.float32)
    of_jax = computation_impl.ConcreteComputation(
      computation_proto=computation_pb2.Computation(
        type=type_serialization.serialize_type(type_spec),
        xla=computation_pb2.Xla(),
      ),
      context_stack=tff.framework.get_context_stack(),
    )

    @tff.federated_computation(_AT_CLIENTS)
    def at_clients(values):
      return tff.federated_sum(tff.federated_map(of_jax, values))

    for comp, argument in ((of_jax, 1.0), (at_clients, [1.0])):
      with pytest.raises(runtime.UnsupportedComputationError, match='tff.jax'):
        comp(argument)
    with pytest.raises(ImportError, match='tff.jax is not available'):
      tff.jax.computation(lambda x: x + 1, np.float32)

  def test_an_argument_that_is_a_function_is_named(self):
    @tff.federated_computation(tff.FunctionType(np.int32, np.int32), np.int32)
    def comp(function, x):
      return function(x)

    with pytest.raises(
      runtime.UnsupportedComputationError, match='an argument of type .*->'
    ):
      comp(tff.tensorflow.computation(lambda x: x, np.int32), 1)

  def test_a_result_that_is_a_function_is_named(self):
    @tff.federated_computation
    def comp():
      return 1, _add_one

    with pytest.raises(
      runtime.UnsupportedComputationError, match='a result of type .*->'
    ):
      comp()

  def test_an_unknown_intrinsic_is_named(self, monkeypatch):
    uri = interpreter.intrinsics.FEDERATED_AGGREGATE.uri
    monkeypatch.delitem(interpreter._METHODS, uri)
    with pytest.raises(
      runtime.UnsupportedComputationError, match="'federated_aggregate'"
    ):
      with runtime.in_process():
        _sum([1.0])

  @pytest.mark.parametrize('is_new', [False, True])
  def test_a_forked_process_is_refused(self, is_new):
    with runtime.in_process() as context:
      assert _sum([1.0]) == 1.0
      pid = os.fork()
      if pid == 0:
        try:
          if is_new:
            context = runtime.InProcessContext()
          context.invoke(_sum, [1.0])
        except runtime.RuntimeClosedError as e:
          context.close()  # As at the end of the block; it must not hang.
          os._exit(7 if 'forked' in str(e) else 1)
        finally:
          os._exit(1)
      assert _exit_code(pid) == 7
      assert _sum([1.0]) == 1.0


def _exit_code(pid: int) -> int:
  """Waits for a forked process, which might hang."""
  deadline = time.monotonic() + 60
  while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
    if time.monotonic() > deadline:
      os.kill(pid, signal.SIGKILL)
      os.waitpid(pid, 0)
      pytest.fail('the forked process hangs')
    time.sleep(0.05)
  return os.waitstatus_to_exitcode(done[1])


def _linear_fedavg():
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

  return tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn, tff.learning.optimizers.build_sgdm(0.1)
  )


def _datasets(count: int) -> list[tf.data.Dataset]:
  rng = np.random.default_rng(0)
  return [
    tf.data.Dataset.from_tensor_slices(
      (x, x.sum(axis=1, keepdims=True) * scale)
    ).batch(4)
    for x, scale in zip(
      rng.normal(size=(count, 8, 4)).astype(np.float32),
      rng.lognormal(sigma=3, size=count).astype(np.float32),
      strict=True,
    )
  ]


@pytest.mark.slow
def test_results_have_the_same_bits_whatever_the_threads():
  process, cohort = _linear_fedavg(), _datasets(23)
  found = []
  for threads in (1, 2, 5, 5):
    with runtime.in_process(max_concurrent_clients=threads):
      state = process.initialize()
      for _ in range(2):
        state = process.next(state, cohort).state
    weights = state.global_model_weights.trainable
    found.append(b''.join(w.tobytes() for w in weights))
  assert len(set(found)) == 1


def test_the_clients_run_side_by_side(monkeypatch):
  meeting = threading.Barrier(3)
  call = graphs.GraphFunction.__call__

  def meet(self, argument):
    meeting.wait(timeout=60)  # Breaks, if one waits for the other.
    return call(self, argument)

  @tff.federated_computation(_AT_CLIENTS)
  def comp(values):
    return tff.federated_map(_add_one, values)

  with runtime.in_process(max_concurrent_clients=3):
    monkeypatch.setattr(graphs.GraphFunction, '__call__', meet)
    assert comp([1.0, 2.0, 3.0]) == [2.0, 3.0, 4.0]


def _threads_and_files() -> tuple[int, int]:
  gc.collect()
  return threading.active_count(), len(os.listdir('/dev/fd'))


@pytest.mark.slow
def test_blocks_leave_no_thread_and_no_file_open():
  def one_block():
    with runtime.in_process():
      assert _sum([1.0, 2.0]) == 3.0
      with pytest.raises(runtime.ComputationError):
        _sum_above_one([0.0, 0.0, 0.0])

  one_block()  # What is made once is made now.
  before = _threads_and_files()
  for _ in range(5):
    one_block()
  assert _threads_and_files() == before


@pytest.mark.skipif(
  not pathlib.Path('/proc/self/statm').exists(), reason='Linux tells memory'
)
class TestMemory:
  """The promise is 15 % between round 20 and round 100 of a tiny model."""

  @staticmethod
  def _resident() -> int:
    gc.collect()
    pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
    return int(pages) * os.sysconf('SC_PAGE_SIZE')

  @pytest.mark.slow
  def test_stays_flat_with_cohorts_of_changing_size(self):
    process, data = _linear_fedavg(), _datasets(14)
    rng = np.random.default_rng(0)
    memory = {}
    with runtime.in_process():
      state = process.initialize()
      for round_num in range(1, 101):
        cohort = data[: rng.integers(1, 14)]
        state = process.next(state, cohort).state
        if round_num in (20, 100):
          memory[round_num] = self._resident()
    assert memory[100] < 1.15 * memory[20], memory

  @pytest.mark.slow
  def test_variables_go_with_the_block(self):
    size = 2**22  # 16 MB.

    @tff.tensorflow.computation(np.float32)
    def large(x):
      variable = tf.Variable(tf.fill([size], x))
      return tf.reduce_max(variable)

    memory = {}
    for i in range(1, 21):
      with runtime.in_process():
        assert large(2.0) == 2.0
      memory[i] = self._resident()
    assert memory[20] - memory[4] < 3 * 4 * size, memory
