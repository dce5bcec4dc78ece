"""The loop, with an engine of a few lines."""

import dataclasses
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import warnings

from pda_fed import errors as base_errors
from pda_fed import experiments
from pda_fed.experiments import checkpoints
from pda_fed.experiments import epsilons
from pda_fed.experiments import loop
from pda_fed.experiments import outputs
from pda_fed.experiments import progress
import pytest

from tests import fake_engine

_ROOT = pathlib.Path(__file__).parents[2]


def _train(folder, config=None, **options):
  opener = fake_engine.Opener()
  config = config or fake_engine.make_config()
  return experiments.train(config, opener, folder, **options), opener.engine


def _rows(folder):
  """The rows without time, which no seed repeats."""
  rows = outputs.parse_csv((folder / 'metrics.csv').read_text())
  for row in rows:
    del row['seconds']
  return rows


def test_what_a_run_leaves(tmp_path):
  folder, engine = _train(tmp_path / 'run')
  assert {p.name for p in folder.path.iterdir()} == {
    '.lock',
    'checkpoints',
    'config.json',
    'metrics.csv',
    'result.json',
    'tensorboard',
  }
  rows = _rows(folder.path)
  assert [row['round'] for row in rows] == [0, 3, 6, 9, 10]
  assert rows[0]['epsilon'] == 0 < rows[1]['epsilon'] < rows[4]['epsilon']
  # alpha is that of the last round before the row, the loss a mean of three.
  assert rows[1]['alpha'] == pytest.approx(fake_engine.make_config().alpha(2))
  assert rows[1]['clients'] == 2
  assert engine.rounds_run == list(range(10))
  result = folder.read_result()
  assert result['method'] == 'pda'
  assert result['epsilon'] == pytest.approx(rows[4]['epsilon'], rel=1e-5)
  assert result['epsilon'] <= rows[4]['epsilon']
  assert result['test']['loss'] == pytest.approx(rows[4]['loss'] + 1)
  assert result['warm_start'] == {'epochs': 3}
  config = json.loads((folder.path / 'config.json').read_text())
  assert config['settings']['plan']['population'] == 1000
  assert config['settings']['alpha'] == {'kind': 'cosine', 'K': 8}
  assert 'can take the noise off' in config['noise']
  assert config['libraries']['numpy']


def test_a_row_is_the_mean_since_the_row_before(tmp_path):
  class Counting(fake_engine.FakeEngine):
    def run_rounds(self, state, first_round, num_rounds):
      state, metrics = super().run_rounds(state, first_round, num_rounds)
      for i, found in enumerate(metrics):
        found['train_loss'] = float(first_round + i)
      return state, metrics

  config = fake_engine.make_config(rounds=5, rounds_per_dispatch=2)
  folder = experiments.train(
    config, fake_engine.Opener(Counting), tmp_path / 'run'
  )
  losses = [row['train_loss'] for row in _rows(folder.path)]
  assert losses == [None, 1.0, 3.5]


def test_same_seed_same_rows_and_another_one_others(tmp_path):
  first, _ = _train(tmp_path / 'a')
  again, _ = _train(tmp_path / 'b')
  other, _ = _train(tmp_path / 'c', fake_engine.make_config(seed=1))
  assert _rows(first.path) == _rows(again.path)
  assert _rows(first.path) != _rows(other.path)


def test_rounds_may_be_dispatched_together(tmp_path):
  one, _ = _train(tmp_path / 'a')
  many, _ = _train(
    tmp_path / 'b', fake_engine.make_config(rounds_per_dispatch=100)
  )
  assert _rows(one.path) == _rows(many.path)


def test_methods_are_data(tmp_path):
  cold, engine = _train(tmp_path / 'cold', fake_engine.make_config('cold'))
  assert engine.num_pretrainings == 0
  _, engine = _train(tmp_path / 'warm', fake_engine.make_config('warm'))
  assert engine.num_pretrainings == 1
  pda, engine = _train(tmp_path / 'pda', fake_engine.make_config('pda'))
  assert engine.num_pretrainings == 0  # It has found that of `warm`.
  assert _rows(cold.path)[0]['loss'] != _rows(pda.path)[0]['loss'] == 0.75
  others = dataclasses.replace(
    fake_engine.make_config('warm'),
    pretraining=experiments.Pretraining(patience=7),
  )
  _, engine = _train(tmp_path / 'other', others)
  assert engine.num_pretrainings == 1


def test_a_damaged_warm_start_is_trained_again(tmp_path):
  _train(tmp_path / 'a')
  (path,) = (tmp_path / 'warm_start').glob('*.ckpt')
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.warns(UserWarning, match='trained again'):
    _, engine = _train(tmp_path / 'b')
  assert engine.num_pretrainings == 1
  checkpoints.read_arrays(path)


def test_a_finished_run_is_not_run_again(tmp_path):
  _train(tmp_path / 'run')
  folder, engine = _train(tmp_path / 'run')
  assert engine is None
  assert folder.read_result()['test']


def test_the_test_may_be_asked_for_later(tmp_path):
  config = fake_engine.make_config(final_test=False)
  folder, _ = _train(tmp_path / 'run', config)
  assert folder.read_result()['test'] is None
  assert folder.read_result()['validation']['loss']
  folder, engine = _train(tmp_path / 'run')
  assert engine.rounds_run == []
  assert folder.read_result()['test']['loss']


# A run in a process of its own, which is killed in the middle of the n-th call
# of a function: os.fsync is in the middle of writing a file.
_KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pda_fed import experiments
from tests import fake_engine

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
config = fake_engine.make_config(rounds_per_checkpoint=2)
from scripts import cli
cli.run(lambda: experiments.train(config, fake_engine.Opener(), {folder!r}))
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
  whole, _ = _train(
    tmp_path / 'whole', fake_engine.make_config(rounds_per_checkpoint=2)
  )
  folder = tmp_path / 'killed' / 'run'
  killed = _run_killed(folder, place, n)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  if place == 'write':
    assert list(folder.rglob('.*.tmp-*'))  # It was in the middle of a file.
  assert not (folder / 'result.json').exists()
  resumed, engine = _train(
    folder, fake_engine.make_config(rounds_per_checkpoint=2)
  )
  assert _rows(resumed.path) == _rows(whole.path)
  assert resumed.read_result()['test'] == whole.read_result()['test']
  if (place, n) == ('round', 9):
    assert engine.rounds_run == [8, 9]
  assert not list(folder.rglob('.*.tmp-*'))


@pytest.mark.parametrize('name, code', [('SIGTERM', 143), ('SIGINT', 130)])
def test_signals_save_and_exit(tmp_path, name, code):
  whole, _ = _train(tmp_path / 'whole')
  folder = tmp_path / 'run'
  done = _run_killed(folder, 'round', 6, name)
  assert done.returncode == code
  assert done.stderr.count('\n') == 1
  assert 'saved after round 6. The same command goes on' in done.stderr
  resumed, engine = _train(folder)
  assert engine.rounds_run == [6, 7, 8, 9]
  assert _rows(resumed.path) == _rows(whole.path)


def test_a_signal_in_the_warm_start_stops_it(tmp_path):
  class Signalled(fake_engine.FakeEngine):
    def pretrain(self, on_epoch=None):
      os.kill(os.getpid(), signal.SIGTERM)
      return super().pretrain(on_epoch)

  with pytest.raises(base_errors.StoppedError, match='in pre-training') as e:
    experiments.train(
      fake_engine.make_config(),
      fake_engine.Opener(Signalled),
      tmp_path / 'run',
    )
  assert e.value.exit_code == 143
  assert not list((tmp_path / 'warm_start').glob('*.ckpt'))


def test_a_damaged_checkpoint_costs_its_rounds_alone(tmp_path):
  whole, _ = _train(tmp_path / 'whole')
  run, _ = _train(tmp_path / 'run')
  (run.path / 'result.json').unlink()
  newest = max((run.path / 'checkpoints').iterdir())
  newest.write_bytes(newest.read_bytes()[:100])
  with pytest.warns(UserWarning, match='one before it'):
    run, engine = _train(tmp_path / 'run')
  assert engine.rounds_run == [9]
  assert _rows(run.path) == _rows(whole.path)


def test_a_run_without_a_seed_keeps_its_secret_until_it_ends(tmp_path):
  class Dying(fake_engine.FakeEngine):
    def run_rounds(self, state, first_round, num_rounds):
      if first_round == 5:
        raise KeyboardInterrupt
      return super().run_rounds(state, first_round, num_rounds)

  config = fake_engine.make_config(seed=None)
  folder = tmp_path / 'run'
  opener = fake_engine.Opener(Dying)
  with pytest.raises(KeyboardInterrupt):
    experiments.train(config, opener, folder)
  secret = folder / 'secret_seeds.json'
  assert secret.stat().st_mode & 0o077 == 0
  before = _rows(folder)
  _, engine = _train(folder, config)
  assert engine.seeds.as_dict() == opener.engine.seeds.as_dict()
  assert _rows(folder)[: len(before)] == before
  assert not secret.exists()
  config = json.loads((folder / 'config.json').read_text())
  assert 'fresh secret seed' in config['noise']
  assert str(engine.seeds.noise) not in (folder / 'config.json').read_text()


def test_without_its_secret_a_run_does_not_go_on(tmp_path):
  config = fake_engine.make_config(seed=None, final_test=False)
  folder, _ = _train(tmp_path / 'run', config)
  (folder.path / 'secret_seeds.json').unlink()
  with pytest.raises(
    experiments.OutputError, match='secret_seeds.json is gone'
  ):
    _train(tmp_path / 'run', fake_engine.make_config(seed=None))


def test_other_settings_are_refused_with_the_difference(tmp_path):
  _train(tmp_path / 'run')
  other = fake_engine.make_config(seed=3, rounds_per_evaluation=5)
  with pytest.raises(
    experiments.OutputError,
    match='other settings: rounds_per_evaluation: 3 -> 5; seed: 0 -> 3',
  ):
    _train(tmp_path / 'run', other)


def test_fewer_rounds_than_are_done_are_refused(tmp_path):
  _train(tmp_path / 'run')
  with pytest.raises(
    experiments.OutputError, match='rounds must be at least 10.* Found 9'
  ):
    _train(tmp_path / 'run', fake_engine.make_config(rounds=9))


def test_what_does_not_matter_may_differ(tmp_path):
  _train(tmp_path / 'run')
  _train(tmp_path / 'run', fake_engine.make_config(checkpoints_kept=7))


def test_folders_of_others_are_refused(tmp_path):
  (tmp_path / 'photos').mkdir()
  (tmp_path / 'photos' / 'cat.png').touch()
  with pytest.raises(experiments.OutputError, match='must be empty.*cat.png'):
    _train(tmp_path / 'photos')
  (tmp_path / 'web').mkdir()
  (tmp_path / 'web' / 'config.json').write_text('{"port": 80}')
  with pytest.raises(experiments.OutputError, match='is not of a run'):
    _train(tmp_path / 'web')
  (tmp_path / 'file').touch()
  with pytest.raises(experiments.OutputError, match='is not a folder'):
    _train(tmp_path / 'file')


def test_folders_of_others_stay_as_they_are(tmp_path):
  theirs = tmp_path / '.notes.tmp-1'
  theirs.touch()
  with pytest.raises(experiments.OutputError, match='must be empty'):
    _train(tmp_path)
  assert theirs.exists()


def _stopped_at(round_num, kind=fake_engine.FakeEngine, how=signal.SIGTERM):
  """An opener of an engine that is stopped, or fails, in a round."""

  class Stopped(kind):
    def run_rounds(self, state, first_round, num_rounds):
      if first_round == round_num:
        if how is None:
          raise KeyboardInterrupt
        os.kill(os.getpid(), how)
      return super().run_rounds(state, first_round, num_rounds)

  return fake_engine.Opener(Stopped)


class TestAnotherEngine:
  """The engines draw other noise for the same round."""

  _OLD = fake_engine.make_config()
  _NEW = fake_engine.make_config(engine='other')

  def test_goes_on_after_a_stop(self, tmp_path):
    with pytest.raises(base_errors.StoppedError, match='saved after round 5'):
      experiments.train(self._OLD, _stopped_at(4), tmp_path / 'run')
    with pytest.raises(experiments.OutputError, match='or --change_engine'):
      _train(tmp_path / 'run', self._NEW)
    folder, engine = _train(tmp_path / 'run', self._NEW, change_engine=True)
    assert engine.rounds_run == [5, 6, 7, 8, 9]
    config = folder.read_config()
    assert config['settings']['engine'] == 'other'
    assert config['engines'] == [
      {'engine': 'fake', 'first_round': 0},
      {'engine': 'other', 'first_round': 5},
    ]
    assert not (folder.path / 'stopped.json').exists()

  @pytest.mark.parametrize('resumed', [False, True])
  def test_no_round_is_run_again_with_other_noise(self, tmp_path, resumed):
    if resumed:  # What a stop has noted does not hold any longer.
      with pytest.raises(base_errors.StoppedError):
        experiments.train(self._OLD, _stopped_at(4), tmp_path / 'run')
    with pytest.raises(KeyboardInterrupt):
      experiments.train(self._OLD, _stopped_at(8, how=None), tmp_path / 'run')
    with pytest.raises(experiments.OutputError, match='rounds after 6.* may'):
      _train(tmp_path / 'run', self._NEW, change_engine=True)
    _, engine = _train(tmp_path / 'run', self._OLD, change_engine=True)
    assert engine.rounds_run == [6, 7, 8, 9]

  def test_a_damaged_checkpoint_is_no_way_around_it(self, tmp_path):
    with pytest.raises(base_errors.StoppedError):
      experiments.train(self._OLD, _stopped_at(4), tmp_path / 'run')
    newest = max((tmp_path / 'run' / 'checkpoints').iterdir())
    whole = newest.read_bytes()
    newest.write_bytes(whole[:100])
    with (
      pytest.warns(UserWarning, match='one before it'),
      pytest.raises(experiments.OutputError, match='rounds after 3'),
    ):
      _train(tmp_path / 'run', self._NEW, change_engine=True)
    newest.write_bytes(whole)
    opener = _stopped_at(5, how=None)
    with pytest.raises(KeyboardInterrupt):
      experiments.train(self._NEW, opener, tmp_path / 'run', change_engine=True)
    newest.write_bytes(whole[:100])
    with (
      pytest.warns(UserWarning, match='one before it'),
      pytest.raises(experiments.CheckpointError, match='after round 5'),
    ):
      _train(tmp_path / 'run', self._NEW)

  def test_other_settings_are_refused_all_the_same(self, tmp_path):
    with pytest.raises(base_errors.StoppedError):
      experiments.train(self._OLD, _stopped_at(4), tmp_path / 'run')
    other = dataclasses.replace(self._NEW, seed=1)
    with pytest.raises(experiments.OutputError, match='settings: seed: 0 -> 1'):
      _train(tmp_path / 'run', other, change_engine=True)

  def test_before_the_first_round(self, tmp_path):
    class Signalled(fake_engine.FakeEngine):
      def pretrain(self, on_epoch=None):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().pretrain(on_epoch)

    with pytest.raises(base_errors.StoppedError):
      experiments.train(
        self._OLD, fake_engine.Opener(Signalled), tmp_path / 'run'
      )
    folder, _ = _train(tmp_path / 'run', self._NEW, change_engine=True)
    assert folder.read_result()['engine'] == 'other'


def test_a_secret_that_outlived_its_run_is_removed(tmp_path):
  config = fake_engine.make_config(seed=None)
  folder, engine = _train(tmp_path / 'run', config)
  secret = folder.path / 'secret_seeds.json'
  secret.write_text(json.dumps(engine.seeds.as_dict()))
  _train(tmp_path / 'run', config)
  assert not secret.exists()


def test_epsilon_that_is_shown_is_never_less_than_spent(tmp_path):
  class Shown(progress.Progress):
    def __init__(self):
      self.epsilons = {0: 0.0}

    def rounds(self, done, metrics):
      self.epsilons[done] = metrics['epsilon']

  shown = Shown()
  _train(tmp_path / 'run', progress=shown)
  plan = fake_engine.make_config().plan
  spent = epsilons.spent(plan, range(11))
  assert all(shown.epsilons[t] >= spent[t] > 0 for t in range(1, 11))
  assert shown.epsilons[3] == pytest.approx(spent[3])

  stream = io.StringIO()
  lines = progress.PlainProgress(stream)
  lines.evaluated({'round': 1, 'epsilon': 4.6911})
  assert 'epsilon 4.7' in stream.getvalue()


def test_columns_have_one_order():
  rows = [{'round': 1, 'alpha': 1.0, 'cosine': 0.1}, {'round': 2, 'clients': 1}]
  text = outputs.format_csv(rows)
  assert text.splitlines()[0] == 'round,epsilon,alpha,clients,cosine'


def test_two_processes_in_one_folder_are_refused(tmp_path):
  class Nested(fake_engine.FakeEngine):
    def initialize(self):
      _train(tmp_path / 'run')

  with pytest.raises(experiments.OutputError, match='Another process'):
    experiments.train(
      fake_engine.make_config(), fake_engine.Opener(Nested), tmp_path / 'run'
    )


def test_without_dp_accounting_epsilon_is_left_empty(tmp_path, monkeypatch):
  monkeypatch.setattr(loop.epsilons, 'spent', lambda plan, rounds: None)
  folder, _ = _train(tmp_path / 'run')
  assert {row['epsilon'] for row in _rows(folder.path)} == {None}
  assert folder.read_result()['epsilon'] is None


def test_evaluated_rounds():
  config = fake_engine.make_config(rounds=6)
  assert loop.evaluated_rounds(config) == [0, 3, 6]


def test_tensorboard_has_each_row_once_after_a_resume(tmp_path):
  pytest.importorskip('tensorboard')
  from tensorboard.backend.event_processing import event_accumulator

  _run_killed(tmp_path / 'run', 'round', 8)
  folder, _ = _train(
    tmp_path / 'run', fake_engine.make_config(rounds_per_checkpoint=2)
  )
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    log = event_accumulator.EventAccumulator(str(folder.tensorboard_path))
    log.Reload()
  steps = [event.step for event in log.Scalars('accuracy')]
  assert steps == [0, 3, 6, 9, 10]


def test_epsilon_can_be_filled_in_elsewhere(tmp_path, monkeypatch):
  whole, _ = _train(tmp_path / 'whole')
  monkeypatch.setattr(loop.epsilons, 'spent', lambda plan, rounds: None)
  filled, _ = _train(tmp_path / 'filled')
  monkeypatch.undo()
  assert _rows(filled.path) != _rows(whole.path)
  assert epsilons.fill(tmp_path / 'filled') == [filled.path]
  assert _rows(filled.path) == _rows(whole.path)
  assert filled.read_result()['epsilon'] == whole.read_result()['epsilon']
  with pytest.raises(experiments.OutputError, match='must hold a run'):
    epsilons.fill(tmp_path / 'warm_start')
