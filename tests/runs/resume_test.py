"""Runs that are killed, stopped or damaged end as if nothing had been."""

import os
import pathlib
import signal
import subprocess
import sys
import warnings

from pda_fed import errors as base_errors
from pda_fed import runs as runs_lib
import pytest

from tests import fake_engine
from tests.runs import runs

_ROOT = pathlib.Path(__file__).parents[2]


# A run in a process of its own, which is killed in the middle of the n-th call
# of a function: os.fsync is in the middle of writing a file.
_KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tests import fake_engine
from tests.runs import runs

calls = 0
def killing(function):
  def call(*args, **kwargs):
    global calls
    calls += 1
    if calls == {n}:
      os.kill(os.getpid(), signal.{signal})
    return function(*args, **kwargs)
  return call

if {place!r} == 'write':
  os.fsync = killing(os.fsync)
else:
  fake_engine.FakeEngine.run_rounds = killing(
    fake_engine.FakeEngine.run_rounds)
config = fake_engine.make_run(rounds_per_checkpoint=2)
from scripts.lib import cli
cli.run(lambda: runs.train({folder!r}, config))
"""


def _run_killed(folder, place, n, signal_name='SIGKILL'):
  program = _KILLED.format(
    root=str(_ROOT),
    folder=str(folder),
    place=place,
    n=n,
    signal=signal_name,
  )
  return subprocess.run(
    [sys.executable, '-c', program],
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )


@pytest.mark.parametrize(
  'place, n',
  [('round', 4), ('round', 9), ('write', 1), ('write', 9), ('write', 15)],
)
def test_killed_anywhere_it_ends_as_if_nothing_had_been(tmp_path, place, n):
  whole, _ = runs.train(
    tmp_path / 'whole', fake_engine.make_run(rounds_per_checkpoint=2)
  )
  folder = tmp_path / 'killed' / 'run'
  killed = _run_killed(folder, place, n)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  if place == 'write':
    assert list(folder.rglob('.*.tmp-*'))  # It was in the middle of a file.
  assert not (folder / 'result.json').exists()
  resumed, engine = runs.train(
    folder, fake_engine.make_run(rounds_per_checkpoint=2)
  )
  assert runs.rows(resumed.path) == runs.rows(whole.path)
  assert resumed.read_result()['test'] == whole.read_result()['test']
  if (place, n) == ('round', 9):
    assert engine.rounds_run == [8, 9]
  assert not list(folder.rglob('.*.tmp-*'))


@pytest.mark.slow
@pytest.mark.parametrize('name, code', [('SIGTERM', 143), ('SIGINT', 130)])
def test_signals_save_and_exit(tmp_path, name, code):
  whole, _ = runs.train(tmp_path / 'whole')
  folder = tmp_path / 'run'
  done = _run_killed(folder, 'round', 6, name)
  assert done.returncode == code
  assert done.stderr.count('\n') == 1
  assert 'saved after round 6. The same command resumes' in done.stderr
  resumed, engine = runs.train(folder)
  assert engine.rounds_run == [6, 7, 8, 9]
  assert runs.rows(resumed.path) == runs.rows(whole.path)


def test_a_signal_in_the_warm_start_stops_it(tmp_path):
  class Signalled(fake_engine.FakeEngine):
    def pretrain(self, on_epoch=None):
      os.kill(os.getpid(), signal.SIGTERM)
      return super().pretrain(on_epoch)

  with pytest.raises(base_errors.StoppedError, match='in pre-training') as e:
    runs.train(tmp_path / 'run', None, Signalled)
  assert e.value.exit_code == 143
  assert not list((tmp_path / 'warm_start').glob('*.ckpt'))


def test_a_damaged_checkpoint_costs_its_rounds_alone(tmp_path):
  whole, _ = runs.train(tmp_path / 'whole')
  run, _ = runs.train(tmp_path / 'run')
  (run.path / 'result.json').unlink()
  newest = max((run.path / 'checkpoints').iterdir())
  newest.write_bytes(newest.read_bytes()[:100])
  with pytest.warns(UserWarning, match='one before it'):
    run, engine = runs.train(tmp_path / 'run')
  assert engine.rounds_run == [9]
  assert runs.rows(run.path) == runs.rows(whole.path)


def test_tensorboard_has_each_row_once_after_a_resume(tmp_path):
  pytest.importorskip('tensorboard')
  from tensorboard.backend.event_processing import event_accumulator

  _run_killed(tmp_path / 'run', 'round', 8)
  folder, _ = runs.train(
    tmp_path / 'run', fake_engine.make_run(rounds_per_checkpoint=2)
  )
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    log = event_accumulator.EventAccumulator(str(folder.tensorboard_path))
    log.Reload()
  steps = [event.step for event in log.Scalars('accuracy')]
  assert steps == [0, 3, 6, 9, 10]


def _with_chunks(number):
  class Engine(fake_engine.FakeEngine):
    def order_of_sums(self):
      return {'clients_per_chunk': number}

  return fake_engine.Opener(Engine)


@pytest.mark.slow
@pytest.mark.parametrize('n', [1, 6])
def test_a_killed_run_keeps_the_order_of_its_sums(tmp_path, n):
  killed = _run_killed(tmp_path / 'run', 'round', n)
  assert killed.returncode == -signal.SIGKILL
  config = fake_engine.make_run()
  with pytest.raises(
    runs_lib.OutputError, match='killed.*clients_per_chunk: 4 -> 8'
  ):
    runs_lib.train(config, tmp_path / 'run', open_engine=_with_chunks(8))
  runs_lib.train(config, tmp_path / 'run', open_engine=_with_chunks(4))


def test_a_stopped_run_may_change_the_order_of_its_sums(tmp_path):
  _run_killed(tmp_path / 'run', 'round', 6, 'SIGTERM')
  folder = runs_lib.train(
    fake_engine.make_run(), tmp_path / 'run', open_engine=_with_chunks(8)
  )
  assert folder.read_config().order_of_sums == {'clients_per_chunk': 8}


def test_an_order_that_the_engine_changes_is_noted(tmp_path):
  class Halving(fake_engine.FakeEngine):
    def run_rounds(self, state, first_round, num_rounds):
      self.order = {'clients_per_chunk': 4 if first_round < 5 else 2}
      return super().run_rounds(state, first_round, num_rounds)

  folder, _ = runs.train(tmp_path / 'run', None, Halving)
  assert folder.read_config().order_of_sums == {'clients_per_chunk': 2}
