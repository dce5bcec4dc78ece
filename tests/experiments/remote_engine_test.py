"""A run on remote workers that all die goes on as if nothing had been."""

import contextlib
import os
import signal

from pda_fed import experiments
from pda_fed import runtime
from pda_fed import workers
from pda_fed.experiments import tff_engine
import pytest

from tests.experiments import runs
from tests.experiments import tiny_users
from tests.runtime import remote_workers


class _Opener:
  """Opens one engine again and again: to build another takes long."""

  def __init__(self):
    self.engine = None
    self.before_round = lambda round_num: None
    self.rounds_run = []

  @contextlib.contextmanager
  def __call__(self, config, seeds):
    if self.engine is None:
      self.engine = tff_engine.TffEngine(config, seeds)
      self._run_rounds = self.engine.run_rounds
      self.engine.run_rounds = self._watched
    with tff_engine._workers(config):
      yield self.engine

  def _watched(self, state, first_round, num_rounds):
    self.before_round(first_round)
    result = self._run_rounds(state, first_round, num_rounds)
    self.rounds_run.append(first_round)
    return result


@contextlib.contextmanager
def _serve(folder):
  sockets = [f'unix:{folder}/{name}.sock' for name in 'ab']
  with contextlib.ExitStack() as stack:
    served = [remote_workers.Served(s, tls=None) for s in sockets]
    for s in served:
      stack.callback(s.stop)
    yield served


def test_saved_and_gone_on_with(tmp_path, short_path):
  data_dir = tiny_users.prepare(tmp_path / 'data')
  config = tiny_users.make_config(
    data_dir,
    'cold',
    remote_workers=workers.RemoteWorkers(
      addresses=(f'unix:{short_path}/a.sock', f'unix:{short_path}/b.sock'),
      timeout_s=10,
    ),
  )
  opener = _Opener()
  with _serve(short_path) as served:
    whole = experiments.train(config, opener, tmp_path / 'whole')

    def kill_all(round_num):
      if round_num == 3:
        for s in served:
          s.at_next_call(lambda s=s: os.kill(s.worker.pid, signal.SIGKILL))

    opener.before_round = kill_all
    with (
      pytest.warns(RuntimeWarning, match='worker'),
      pytest.raises(
        experiments.EngineError, match='No worker is left.*after round 3. The'
      ) as error,
    ):
      experiments.train(config, opener, tmp_path / 'run')
  assert isinstance(error.value.__cause__, runtime.WorkerDiedError)
  assert not (tmp_path / 'run' / 'result.json').exists()
  opener.rounds_run.clear()
  opener.before_round = lambda round_num: None
  with _serve(short_path):
    run = experiments.train(config, opener, tmp_path / 'run')
  assert opener.rounds_run == [3]  # Each round that was done counts once.
  assert runs.rows(run.path) == runs.rows(whole.path)
  assert run.read_result()['epsilon'] == whole.read_result()['epsilon']
  assert run.read_result()['test'] == whole.read_result()['test']
  options = run.read_config()['options']['remote_workers']
  assert options['addresses'] == list(config.remote_workers.addresses)


def test_only_tff_has_workers(tmp_path):
  data_dir = tiny_users.prepare(tmp_path / 'data')
  remote = workers.RemoteWorkers(addresses=('unix:/a',))
  with pytest.raises(ValueError, match="with engine tff. Found 'jax'"):
    tiny_users.make_config(data_dir, engine='jax', remote_workers=remote)
