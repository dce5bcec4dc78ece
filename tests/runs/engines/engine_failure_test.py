"""What the loop does when an engine fails or a disk is full."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys

from pda_fed import errors as base_errors
from pda_fed import runs as runs_lib
from pda_fed.runs import hosts
import pytest

from tests import fake_engine
from tests.runs import runs

_ROOT = pathlib.Path(__file__).parents[3]


class _FailingEngine(fake_engine.FakeEngine):
  """Fails in a round, or in the evaluation after it."""

  place = ''

  def _fail(self, place):
    if place == self.place:
      raise base_errors.PdaFedError('The device is gone.')

  def run_rounds(self, state, first_round, num_rounds):
    self._fail(f'round {first_round}')
    return super().run_rounds(state, first_round, num_rounds)

  def evaluate(self, weights, group, max_users=None):
    last = self.rounds_run[-1] if self.rounds_run else -1
    self._fail(f'evaluation after {last}')
    return super().evaluate(weights, group, max_users)


@pytest.mark.parametrize(
  'place, saved',
  [
    ('round 0', 0),
    ('round 5', 5),
    ('evaluation after 5', 6),
    ('evaluation after 9', 10),
  ],
)
def test_rounds_that_are_done_are_saved(tmp_path, place, saved):
  whole, _ = runs.train(tmp_path / 'whole')

  class Failing(_FailingEngine):
    pass

  Failing.place = place
  with pytest.raises(
    runs_lib.EngineError, match=f'device is gone. Saved after round {saved}'
  ):
    runs.train(tmp_path / 'run', None, Failing)
  run, engine = runs.train(tmp_path / 'run')
  assert engine.rounds_run == list(range(saved, 10))
  assert runs.rows(run.path) == runs.rows(whole.path)
  assert run.read_result()['test'] == whole.read_result()['test']


def test_a_run_that_lost_a_host_may_go_on_with_other_devices(tmp_path):
  class Failing(fake_engine.FakeEngine):
    order = {'num_devices': 2}

    def __init__(self, *arguments):
      super().__init__(*arguments)
      self.order = type(self).order

    def run_rounds(self, state, first_round, num_rounds):
      if first_round == 5 and self.order == {'num_devices': 2}:
        raise hosts.HostError('Host 1 is lost.')
      return super().run_rounds(state, first_round, num_rounds)

  def train():
    return runs.train(tmp_path / 'run', None, Failing)[0]

  with pytest.raises(runs_lib.EngineError, match='Saved after round 5'):
    train()
  Failing.order = {'num_devices': 3}
  assert train().read_result()['rounds'] == 10


class _KilledError(Exception):
  """Ends a run as a kill does: nothing is saved or marked."""


def test_rounds_of_a_killed_run_are_not_forgotten_by_a_later_stop(tmp_path):
  """What a killed process has shown must not be repeated with other sums."""
  order = {'num_devices': 2}
  fate = {8: _KilledError()}

  class Mortal(fake_engine.FakeEngine):
    def __init__(self, *arguments):
      super().__init__(*arguments)
      self.order = dict(order)

    def run_rounds(self, state, first_round, num_rounds):
      if first_round in fate:
        raise fate.pop(first_round)
      return super().run_rounds(state, first_round, num_rounds)

  def train():
    config = fake_engine.make_run(
      rounds_per_checkpoint=5, rounds_per_dispatch=1
    )
    opener = fake_engine.Opener(Mortal)
    return runs_lib.train(config, tmp_path / 'run', open_engine=opener)

  with pytest.raises(_KilledError):
    train()  # Rounds up to 8 were run, 5 are saved.
  fate[6] = hosts.HostError('Host 1 is lost.')
  with pytest.raises(runs_lib.EngineError, match='Saved after round 6'):
    train()
  order['num_devices'] = 3
  with pytest.raises(runs_lib.OutputError, match='num_devices: 2 -> 3'):
    train()
  order['num_devices'] = 2
  # Once past what was seen, a lost host is a clean stop.
  fate[10 - 1] = hosts.HostError('Host 1 is lost.')
  with pytest.raises(runs_lib.EngineError, match='Saved after round 9'):
    train()
  order['num_devices'] = 3
  with pytest.raises(runs_lib.OutputError, match='num_devices: 2 -> 3'):
    train()  # The next save, of round 10, is the bound that is known.
  order['num_devices'] = 2
  assert train().read_result()['rounds'] == 10


def test_a_disk_that_is_full_for_a_while(tmp_path, monkeypatch):
  whole, _ = runs.train(tmp_path / 'whole')
  calls = []

  def full(descriptor):
    path = os.readlink(f'/proc/self/fd/{descriptor}')
    if 'round_00000006.ckpt' in path:
      calls.append(path)
      raise OSError(errno.ENOSPC, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', full)
    with pytest.raises(runs_lib.CheckpointError, match='The disk is full'):
      runs.train(tmp_path / 'run')
  assert calls
  kept = tmp_path / 'run' / 'checkpoints'
  assert sorted(p.name for p in kept.iterdir()) == [
    'round_00000000.ckpt',
    'round_00000003.ckpt',
  ]
  run, engine = runs.train(tmp_path / 'run')
  assert engine.rounds_run == list(range(3, 10))
  assert runs.rows(run.path) == runs.rows(whole.path)


# A tmpfs of 96 kB, seen by this process and its children alone.
_ON_A_TINY_DISK = """
set -e
mkdir "$1/disk"
mount -t tmpfs -o size=96k tmpfs "$1/disk"
cd "$2"
"$3" -c "$4" "$1/disk/run" "$1/whole"
"""
_RUN_UNTIL_IT_IS_FULL = """
import os, sys
from pda_fed import runs as runs_lib
from tests import fake_engine
from tests.runs import runs

folder, whole = sys.argv[1:]
config = fake_engine.make_run(
    rounds=200, rounds_per_evaluation=5, checkpoints_kept=1)
ballast = os.path.dirname(folder) + '/ballast'
with open(ballast, 'wb') as f:
  f.write(bytes(56 * 1024))
try:
  runs.train(folder, config)
  print('never full')
except (runs_lib.CheckpointError, OSError) as e:
  print(type(e).__name__, e)
os.unlink(ballast)
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
  if shutil.which('unshare') is None:
    pytest.skip('unshare is not installed')
  done = subprocess.run(
    ['unshare', '--user', '--map-root-user', '--mount', 'sh', '-c',
     _ON_A_TINY_DISK + 'df "$1/disk"; cp -r "$1/disk/run" "$1/kept"', 'sh',
     tmp_path, _ROOT, sys.executable, _RUN_UNTIL_IT_IS_FULL],
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )  # fmt: skip
  if 'mount' in done.stderr or 'unshare' in done.stderr:
    pytest.skip(f'no tmpfs of our own: {done.stderr}')
  assert done.returncode == 0, done.stderr
  assert 'No space left' in done.stdout or 'disk is full' in done.stdout
  # Elsewhere, with space, it goes on.
  config = fake_engine.make_run(
    rounds=200, rounds_per_evaluation=5, checkpoints_kept=1
  )
  whole, _ = runs.train(tmp_path / 'whole', config)
  run, engine = runs.train(tmp_path / 'kept', config)
  assert 0 < len(engine.rounds_run) < 200
  assert runs.rows(run.path) == runs.rows(whole.path)
