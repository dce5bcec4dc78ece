"""One computation on several local workers."""

import os
import signal
import threading

import numpy as np
from pda_fed import runtime
from pda_fed.runtime import sharing
import pytest
import tensorflow_federated as tff


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


def test_results_at_server_and_clients():
  with runtime.local_workers(3):
    for clients in ([1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.0]):
      total, doubled = _both(1.0, clients)
      assert total == 1.0 + 2 * sum(clients)
      assert list(doubled) == [2 * c for c in clients]
    assert _total([]) == 0.0
    assert _double(4.0) == 8.0  # No clients: one worker does it.


def test_a_local_worker_that_dies_is_stood_in_for():
  with runtime.local_workers(2) as workers:
    assert _both(0.0, [1.0, 2.0])[0] == 6.0
    os.kill(workers[1].pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match='died.*done by another worker'):
      assert _both(0.0, [1.0, 2.0])[0] == 6.0
    os.kill(workers[0].pid, signal.SIGKILL)
    with (
      pytest.warns(RuntimeWarning, match='died'),
      pytest.raises(runtime.WorkerDiedError, match='No worker is left'),
    ):
      _both(0.0, [1.0, 2.0])


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


def test_workers_compute_at_the_same_time(tff_worker):
  del tff_worker
  context = tff.framework.get_context_stack().current
  meeting = threading.Barrier(3)

  def meet(comp):
    if _is_up_to_merge(comp):
      meeting.wait(timeout=60)  # Breaks, if one waits for the other.

  shared = sharing.SharedContext([_Seat(context, meet) for _ in range(3)])
  with tff.framework.get_context_stack().install(shared):
    assert _both(0.0, [1.0, 2.0, 4.0])[0] == 14.0


def test_sums_are_merged_in_the_order_of_the_clients(tff_worker):
  # The part of the last worker is done first. In float32 1e8 + 1 is 1e8, so
  # that in that order the sum would be 0.
  del tff_worker
  context = tff.framework.get_context_stack().current
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
