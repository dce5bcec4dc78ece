"""One computation on several workers."""

import contextlib
import threading

import numpy as np
from pda_fed import learning
from pda_fed import privacy
from pda_fed import runtime
from pda_fed.runtime import sharing
import pytest
import tensorflow as tf
import tensorflow_federated as tff


class _Seat:
  """Runs on a context that it is given, after doing something."""

  name = 'seat'
  usable = True

  def __init__(self, context, before):
    self._context = context
    self._before = before

  def check_owner(self):
    pass

  def invoke(self, comp, arg):
    self._before(comp)
    return self._context.invoke(comp, arg)


@contextlib.contextmanager
def _shared(number: int):
  """Shares clients between seats, all of them in this process."""
  context = runtime.InProcessContext()
  seats = [_Seat(context, lambda comp: None) for _ in range(number)]
  shared = sharing.SharedContext(seats)
  with tff.framework.get_context_stack().install(shared):
    yield
  context.close()


@tff.tensorflow.computation(np.float32)
def _double(x):
  return 2 * x


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(np.float32, tff.CLIENTS),
)
def _both(start, values):
  """A result at the server, and one that each client has for itself."""
  doubled = tff.federated_map(_double, values)
  add = tff.tensorflow.computation(lambda a, b: a + b, (np.float32, np.float32))
  return tff.federated_map(add, (start, tff.federated_sum(doubled))), doubled


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _total(values):
  return tff.federated_sum(values)


def test_an_error_names_the_client_of_the_whole_cohort():
  @tff.tensorflow.computation(np.float32)
  def positive(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
      return tf.identity(x)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def comp(values):
    return tff.federated_sum(tff.federated_map(positive, values))

  with _shared(3):
    with pytest.raises(runtime.ComputationError, match='client 5 of 7') as e:
      comp([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    assert e.value.place.client == 5


def test_results_at_server_and_clients():
  with _shared(3):
    for clients in ([1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.0]):
      total, doubled = _both(1.0, clients)
      assert total == 1.0 + 2 * sum(clients)
      assert list(doubled) == [2 * c for c in clients]
    assert _total([]) == 0.0
    assert _double(4.0) == 8.0  # No clients: one worker does it.


_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_AT_ALL_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True)
_AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)


@pytest.mark.parametrize(
  'type_spec',
  [
    (_AT_CLIENTS, _AT_SERVER),
    (_AT_SERVER, _AT_CLIENTS),
    (_AT_CLIENTS, _AT_ALL_CLIENTS),
    ((_AT_CLIENTS, _AT_CLIENTS), _AT_SERVER),
    (_AT_SERVER, (_AT_CLIENTS, _AT_SERVER), _AT_CLIENTS),
  ],
)
@pytest.mark.parametrize('clients', [0, 1, 2, 3, 5, 6, 7])
def test_each_client_is_in_one_part(type_spec, clients):
  type_spec = tff.to_type(type_spec)
  values = [float(i) for i in range(clients)]

  def argument(of_type, values):
    if isinstance(of_type, tff.StructType):
      return tff.structure.Struct.unnamed(
        *(argument(t, values) for t in of_type)
      )
    return values if of_type == _AT_CLIENTS else -1.0

  expected = [
    argument(type_spec, part.tolist())
    for part in np.array_split(values, max(1, min(3, clients)))
  ]
  arg = argument(type_spec, values)
  assert sharing._split_clients(arg, type_spec, 3) == expected


def test_the_order_of_arguments_is_free():
  add = tff.tensorflow.computation(lambda a, b: a + b, (np.float32, np.float32))

  @tff.federated_computation(_AT_CLIENTS, _AT_SERVER)
  def clients_first(values, start):
    return tff.federated_map(add, (start, tff.federated_sum(values)))

  @tff.federated_computation(_AT_CLIENTS, _AT_ALL_CLIENTS)
  def all_equal_last(values, more):
    return tff.federated_sum(tff.federated_map(add, (values, more)))

  clients = [1.0, 2.0, 4.0, 8.0, 16.0]
  with _shared(2):
    assert clients_first(clients, 0.5) == 31.5
    assert all_equal_last(clients, 10.0) == 81.0
    assert clients_first([], 0.5) == 0.5


def _plan(**options) -> privacy.PrivacyPlan:
  return privacy.PrivacyPlan(
    population=20,
    expected_cohort=5,
    rounds=8,
    delta=1e-2,
    noise_multiplier=0.5,
    clip_norm=1.0,
    **options,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'plan',
  [
    _plan(adaptive_clipping=privacy.AdaptiveClipping(count_stddev=2.0)),
    _plan(mechanism='tree', sampling='epochs'),
  ],
  ids=['adaptive clipping', 'tree'],
)
def test_dp_aggregators_are_those_of_one_worker(plan):
  process = learning.build_dp_aggregator(plan, 7).create(
    tff.TensorType(np.float32, [3])
  )
  rng = np.random.default_rng(0)
  # Some are clipped, one is not finite, and in rounds some workers have none.
  clients = list(rng.normal(size=(7, 3)).astype(np.float32))
  clients[4] = np.full([3], np.nan, np.float32)
  cohorts = [clients, [], clients[:1], clients[3:]]

  def run():
    state = process.initialize()
    found = []
    for cohort in cohorts:
      output = process.next(state, cohort)
      state = output.state
      found += tf.nest.flatten([output.result, output.measurements])
    return found

  alone = run()
  with _shared(3):
    shared = run()
  for a, b in zip(alone, shared, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_workers_compute_at_the_same_time():
  context = runtime.InProcessContext()
  meeting = threading.Barrier(3)

  def meet(comp):
    if _is_up_to_merge(comp):
      meeting.wait(timeout=60)  # Breaks, if one waits for the other.

  shared = sharing.SharedContext([_Seat(context, meet) for _ in range(3)])
  with tff.framework.get_context_stack().install(shared):
    assert _both(0.0, [1.0, 2.0, 4.0])[0] == 14.0


def test_sums_are_merged_in_the_order_of_the_clients():
  # The part of the last worker is done first. In float32 1e8 + 1 is 1e8, so
  # that in that order the sum would be 0.
  context = runtime.InProcessContext()
  done = [threading.Event() for _ in range(3)]

  def seat(index):
    class InTurn(_Seat):
      def invoke(self, comp, arg):
        if not _is_up_to_merge(comp):
          return super().invoke(comp, arg)
        if index < 2:
          done[index + 1].wait(timeout=60)  # The last is the first.
        result = super().invoke(comp, arg)
        done[index].set()
        return result

    return InTurn(context, lambda comp: None)

  shared = sharing.SharedContext([seat(i) for i in range(3)])
  with tff.framework.get_context_stack().install(shared):
    assert _total([1e8, -1e8, 1.0]) == 1.0


def _is_up_to_merge(comp) -> bool:
  """Of the three computations only this one goes from clients to server."""
  signature = comp.type_signature
  return 'CLIENTS' in str(signature.parameter) and isinstance(
    signature.result, tff.FederatedType
  )
