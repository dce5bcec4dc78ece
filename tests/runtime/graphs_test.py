"""Graphs of TFF computations: loops, state, and what stays of them."""

import gc

import numpy as np
from pda_fed import runtime
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
import tensorflow_federated as tff


class _Collector(tf.Module):
  """Writes to a growing array in a loop, which uses a resource."""

  def __init__(self, kind: str):
    super().__init__(name='collector')
    make = {
      'variable': lambda: tf.Variable(0),
      'generator': lambda: tf.random.Generator.from_seed(1),
      'queue': lambda: tf.queue.FIFOQueue(9, [tf.int32], [()]),
      'table': lambda: tf.lookup.experimental.MutableHashTable(
        tf.int32, tf.int32, 0
      ),
    }
    self._kind, self._resource = kind, make[kind]()

  def _use(self, i):
    resource = self._resource
    if self._kind == 'variable':
      resource.assign_add(i)
      return resource.read_value()
    if self._kind == 'generator':
      return i + resource.uniform([], 0, 1, tf.int32)
    if self._kind == 'queue':
      resource.enqueue(i)
      return resource.dequeue()
    resource.insert(i, i)
    return resource.lookup(i)

  @tf.function
  def collect(self, n):
    array = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
    return tf.while_loop(
      lambda i, _: i < n,
      lambda i, array: (i + 1, array.write(array.size(), self._use(i))),
      (0, array),
    )[1].stack()


def _collect(kind: str) -> tff.Computation:
  made = []  # A function holds its module weakly.

  @tff.tensorflow.computation(np.int32)
  def comp(n):
    made.append(_Collector(kind))
    return made[0].collect(n)

  return comp


# A graph that was cut with `prune` failed in 1 to 5 of 20 traces.
@pytest.mark.parametrize('trace', range(8))
@pytest.mark.parametrize('kind', ['variable', 'generator', 'queue', 'table'])
def test_loops_with_resources(kind, trace):
  del trace
  comp = _collect(kind)
  expected = [0, 1, 3, 6] if kind == 'variable' else [0, 1, 2, 3]
  for _ in range(2):
    np.testing.assert_array_equal(comp(4), expected)


def test_heavy_hitters():
  comp = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
    capacity=20, string_max_bytes=10, repetitions=3, max_words_per_user=5
  )
  words = [['a', 'b', 'a'], ['c', 'a'], ['b']]
  users = [tf.data.Dataset.from_tensor_slices(w).batch(2) for w in words]
  found = comp(users)
  counts = zip(found.heavy_hitters, found.heavy_hitters_counts, strict=True)
  assert dict(counts) == {b'a': 3, b'b': 2, b'c': 1}


def test_a_result_that_is_the_argument_and_one_that_stands_twice():
  @tff.tensorflow.computation(np.int32)
  def comp(x):
    return x, x + 1, x

  assert comp(3) == (3, 4, 3)


def test_an_argument_that_is_only_waited_for():
  @tff.tensorflow.computation(np.int32, np.int32)
  def comp(x, y):
    with tf.control_dependencies([y]):
      return tf.identity(x)

  assert comp(3, 4) == 3


def test_a_result_without_elements():
  @tff.tensorflow.computation(np.int32)
  def comp(x):
    del x
    return ()

  assert comp(3) == ()


def test_an_assertion_before_the_result_is_checked():
  @tff.tensorflow.computation(np.int32)
  def comp(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
      return tf.identity(x)

  assert comp(3) == 3
  with pytest.raises(runtime.ComputationError):
    comp(-1)


def test_no_function_stays_of_what_was_dropped():
  def names():
    gc.collect()
    with runtime.in_process():
      pass  # The end of a block frees what was dropped before.
    return eager_context.context().list_function_names()

  double = tf.function(lambda x: 2 * x)

  # The initial value and the result both call the function.
  @tff.tensorflow.computation(np.int32)
  def comp(n):
    return double(tf.Variable(double(n)))

  before = names()
  with runtime.in_process():
    assert comp(2) == 8
    assert len(names()) > len(before) + 2
    del comp
  assert names() <= before
