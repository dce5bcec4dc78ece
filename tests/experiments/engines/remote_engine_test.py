"""The TFF engine on remote workers that all die."""

import contextlib

import numpy as np
from pda_fed import privacy
from pda_fed import runtime
from pda_fed.common import workers
from pda_fed.experiments.engines import tff_federated
import pytest

from tests.experiments import tiny_users
from tests.runtime import remote_workers


@contextlib.contextmanager
def _serve(folder):
  sockets = [f'unix:{folder}/{name}.sock' for name in 'ab']
  with contextlib.ExitStack() as stack:
    served = [remote_workers.Served(s, tls=None) for s in sockets]
    for s in served:
      stack.callback(s.stop)
    yield served


@pytest.mark.slow
def test_what_was_computed_outlives_all_workers(tmp_path, short_path):
  config = tiny_users.make_config(
    tiny_users.prepare(tmp_path / 'data'),
    'cold',
    remote_workers=workers.RemoteWorkers(
      addresses=(f'unix:{short_path}/a.sock', f'unix:{short_path}/b.sock'),
      timeout_s=20,
    ),
  )
  engine = tff_federated.TffEngine(config, privacy.SeedStreams(0))
  with _serve(short_path) as served, tff_federated._runtime(config):
    state, _ = engine.run_rounds(engine.initialize(), 0, 1)
    straight, metrics = engine.run_rounds(state, 1, 1)
    for s in served:
      s.at_next_call(s.die)
    with (
      pytest.warns(RuntimeWarning, match='Another worker does its part'),
      pytest.raises(runtime.WorkerDiedError, match='No worker of .* is left'),
    ):
      engine.run_rounds(state, 1, 1)
    saved = engine.to_arrays(state)  # As the loop does; see `engine_failure`.
  with _serve(short_path), tff_federated._runtime(config):
    resumed, again = engine.run_rounds(engine.from_arrays(saved, 1), 1, 1)
  assert again == metrics
  expected = engine.to_arrays(straight)
  assert expected.keys() == saved.keys()
  for name, array in engine.to_arrays(resumed).items():
    np.testing.assert_array_equal(array, expected[name])


def test_only_tff_has_workers(tmp_path):
  data_dir = tiny_users.prepare(tmp_path / 'data')
  remote = workers.RemoteWorkers(addresses=('unix:/a',))
  with pytest.raises(ValueError, match="with remote workers. Found 'jax'"):
    tiny_users.make_config(data_dir, engine='jax', remote_workers=remote)
