"""Workers that die, hang or are not there change no number."""

import warnings

import numpy as np
from pda_fed import runtime
import pytest
import tensorflow_federated as tff

from tests.runtime import processes
from tests.runtime import remote_workers as remote

pytestmark = pytest.mark.slow

_ROUNDS = [remote.DATASETS, remote.DATASETS[:4], remote.DATASETS]
# Of a worker that hangs; one on a busy machine is still fast enough.
_TIMEOUT_S = 8.0


def _run(served, before_round=lambda i: None, **options):
  with remote.connected(served, **options) as workers:
    weights = remote.run_rounds(remote.pda_dpmd(0.5), _ROUNDS, before_round)
    return weights, [worker.usable for worker in workers]


@pytest.fixture(scope='module')
def undisturbed():
  """The weights of 3 workers to which nothing happens."""
  with remote.serve(3) as served:
    return _run(served)[0]


def _assert_same(weights, expected):
  for a, b in zip(weights, expected, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  'fault, victims', [('die', [0]), ('die', [1, 2]), ('hang', [1])]
)
def test_in_the_middle_of_a_round(undisturbed, fault, victims):
  with remote.serve(3) as served:

    def before_round(i):
      if i == 1:
        for v in victims:
          served[v].at_next_call(getattr(served[v], fault))

    with pytest.warns(RuntimeWarning, match='Another worker does its part'):
      weights, usable = _run(served, before_round, timeout_s=_TIMEOUT_S)
    assert [served[v].calls > 0 for v in victims] == [True] * len(victims)
    assert not any(usable[v] for v in victims)
  _assert_same(weights, undisturbed)


def test_missing_at_the_start(undisturbed):
  with remote.serve(2) as served:
    missing = f'{remote.HOST}:1'
    with pytest.warns(RuntimeWarning, match=f'{missing} cannot be reached'):
      weights, usable = _run(
        [served[0], missing, served[1]], timeout_s=_TIMEOUT_S
      )
    assert not usable[1]
  _assert_same(weights, undisturbed)


def test_started_anew_it_is_found_again(undisturbed, short_path):
  first = remote.Served(f'unix:{short_path}/w.sock', tls=None)
  alive = [first]

  def before_round(i):
    if i == 1:
      first.stop()
      alive[0] = remote.Served(f'unix:{short_path}/w.sock', tls=None)
      assert processes.wait_until(lambda: is_new_used(), 60)

  with remote.serve(2) as served:
    try:
      with remote.connected([first, *served], timeout_s=_TIMEOUT_S) as workers:
        instance = workers[0]._connection.instance

        def is_new_used():
          connection = workers[0]._connection
          return connection is not None and connection.instance != instance

        weights = remote.run_rounds(remote.pda_dpmd(0.5), _ROUNDS, before_round)
        assert all(worker.usable for worker in workers)
    finally:
      alive[0].stop()
  _assert_same(weights, undisturbed)


def test_none_left_is_an_error():
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  with remote.serve(2) as served:
    with remote.connected(served, timeout_s=_TIMEOUT_S):
      assert total([1.0, 2.0, 4.0]) == 7.0
      for s in served:
        s.die()
      with (
        # Of the first that is tried, unless both are known to be lost before.
        warnings.catch_warnings(action='ignore', category=RuntimeWarning),
        pytest.raises(runtime.WorkerDiedError, match='No worker of .* is left'),
      ):
        total([1.0, 2.0, 4.0])
