"""TFF's functions for local contexts create ours."""

import asyncio
import warnings

import numpy as np
from pda_fed.tff import _contexts
from pda_fed.tff import runtime
import pytest
import tensorflow_federated as tff
from tensorflow_federated.python.core.backends.native import (
  execution_contexts as native_module,
)
from tensorflow_federated.python.core.backends.test import (
  execution_contexts as test_module,
)

_PLACES = [
  (tff.backends.native, 'local'),
  (native_module, 'local'),
  (tff.backends.test, 'test'),
  (test_module, 'test'),
]


@tff.federated_computation
def _count_clients():
  one = tff.tensorflow.computation(lambda: 1)
  return tff.federated_sum(tff.federated_eval(one, tff.CLIENTS))


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum(values):
  return tff.federated_sum(values)


@pytest.fixture(autouse=True)
def fixture_default():
  stack = tff.framework.get_context_stack()
  before = stack.current
  yield
  tff.framework.set_default_context(before)


@pytest.mark.parametrize('module, place', _PLACES)
@pytest.mark.parametrize('arguments', [{}, {'default_num_clients': 3}])
def test_synchronous_ones(module, place, arguments):
  clients = arguments.get('default_num_clients', 0)
  create = getattr(module, f'create_sync_{place}_cpp_execution_context')
  assert create(**arguments).invoke(_count_clients, None) == clients
  getattr(module, f'set_sync_{place}_cpp_execution_context')(**arguments)
  assert _count_clients() == clients


@pytest.mark.parametrize('module, place', _PLACES)
def test_asynchronous_ones(module, place):
  create = getattr(module, f'create_async_{place}_cpp_execution_context')
  found = create(default_num_clients=3).invoke(_count_clients, None)
  assert asyncio.run(found) == 3
  getattr(module, f'set_async_{place}_cpp_execution_context')(
    default_num_clients=2
  )
  assert asyncio.run(_count_clients()) == 2


def test_arguments_by_position():
  context = tff.backends.native.create_sync_local_cpp_execution_context(4, 1)
  assert isinstance(context, runtime.InProcessContext)
  assert context.invoke(_count_clients, None) == 4


def test_clients_of_the_argument_come_first():
  tff.backends.native.set_sync_local_cpp_execution_context(
    default_num_clients=3
  )
  assert _sum([1, 2]) == 3
  with runtime.in_process(default_num_clients=5):
    assert _count_clients() == 5


def test_what_has_no_effect_is_said_once():
  _contexts._warn_of_streaming.cache_clear()
  create = tff.backends.native.create_sync_local_cpp_execution_context
  with pytest.warns(UserWarning, match='stream_structs has no effect'):
    create(stream_structs=True)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    create(stream_structs=True)


@pytest.mark.parametrize(
  'name, value',
  [
    ('default_num_clients', -1),
    ('default_num_clients', 1.5),
    ('default_num_clients', 'x'),
    ('max_concurrent_computation_calls', 1.5),
    ('max_concurrent_computation_calls', 'x'),
  ],
)
def test_a_wrong_number(name, value):
  with pytest.raises((TypeError, ValueError), match=name):
    tff.backends.native.set_sync_local_cpp_execution_context(**{name: value})


def test_the_default_stays_the_default_when_it_is_used():
  stack = tff.framework.get_context_stack()
  before = stack.current
  assert _count_clients() == 0
  assert stack.current is before
