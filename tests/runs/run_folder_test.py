"""A run's folder is its own: settings, secrets, engines."""

import json
import os
import shutil
import signal
import stat

import numpy as np
from pda_fed import errors as base_errors
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.runs import checkpoints
from pda_fed.runs import disclosure
from pda_fed.runs import records
from pda_fed.runs.engines import base as engine_lib
import pytest

from tests import fake_engine
from tests.runs import runs


def test_a_run_without_a_seed_keeps_its_secret_until_it_ends(tmp_path):
  config = fake_engine.make_run(seed=None)
  folder = tmp_path / 'run'
  opener = fake_engine.Opener(runs.ending(KeyboardInterrupt, 5))
  with pytest.raises(KeyboardInterrupt):
    runs_lib.train(config, folder, open_engine=opener)
  secret = folder / 'secret_seeds.json'
  assert secret.stat().st_mode & 0o077 == 0
  before = runs.rows(folder)
  _, engine = runs.train(folder, config)
  assert engine.seeds.as_dict() == opener.engine.seeds.as_dict()
  assert runs.rows(folder)[: len(before)] == before
  assert not secret.exists()
  config = json.loads((folder / 'config.json').read_text())
  assert 'fresh secret seed' in config['noise']
  # It may be published, and says what should not be.
  assert config['caveats'][-1] == disclosure.of_run()
  assert 'train_loss' in config['caveats'][-1]
  assert str(engine.seeds.noise) not in (folder / 'config.json').read_text()


def test_a_run_with_seeds_of_hosts_says_who_can_remove_the_noise(tmp_path):
  runs_lib.train(
    fake_engine.make_run(seed=None),
    tmp_path / 'run',
    open_engine=fake_engine.Opener(),
    new_seeds=lambda: privacy.SeedStreams.derived(b's' * 32),
  )
  config = json.loads((tmp_path / 'run/config.json').read_text())
  assert 'whoever has that secret can remove the noise' in config['noise']


def _mode(path):
  return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o002, 0o077])
def umask(request):
  before = os.umask(request.param)
  yield request.param
  os.umask(before)


class TestWhoMayRead:
  """The folder of a run without a seed is for its owner alone."""

  @pytest.mark.parametrize('is_there', [False, True])
  def test_a_run_without_a_seed(self, tmp_path, umask, is_there):
    folder = tmp_path / 'out' / 'run'
    if is_there:
      folder.mkdir(parents=True)
      assert _mode(folder) == 0o777 & ~umask
    runs.train(folder, fake_engine.make_run(seed=None))
    assert _mode(folder) == 0o700
    # Names of warm starts are made from a hash of the data.
    assert _mode(folder.parent / 'warm_start') == 0o700
    # A user who has changed the mode keeps that mode when the run resumes.
    folder.chmod(0o750)
    config = fake_engine.make_run(seed=None, checkpoints_kept=7)
    runs.train(folder, config)
    assert _mode(folder) == 0o750
    # Its files have a hash of the data in their names.
    assert _mode(folder.parent / 'warm_start') == 0o700

  def test_a_simulation(self, tmp_path, umask):
    runs.train(tmp_path / 'run')
    assert _mode(tmp_path / 'run') == 0o777 & ~umask

  def test_a_folder_of_somebody_else(self, tmp_path, monkeypatch):
    def refuse(self, mode):
      raise PermissionError(1, 'Operation not permitted', str(self))

    monkeypatch.setattr('pathlib.Path.chmod', refuse)
    with pytest.raises(runs_lib.OutputError, match='must belong to you'):
      runs.train(tmp_path / 'run', fake_engine.make_run(seed=None))
    assert not (tmp_path / 'run/config.json').exists()

  def test_an_audited_copy(self, tmp_path, umask):
    del umask

    config = fake_engine.make_run(audit='copy', audit_canaries=100)
    killed = runs.ending(KeyboardInterrupt, only_copy=True)
    with pytest.raises(KeyboardInterrupt):
      runs.train(tmp_path / 'run', config, killed)
    assert _mode(tmp_path / 'run/audit') == 0o700


@pytest.mark.parametrize('seed', [None, 7])
def test_what_a_secret_seed_gave_is_not_in_what_is_left(tmp_path, seed):
  class WithNoise(fake_engine.FakeEngine):
    def to_arrays(self, state):
      secret = engine_lib.numbered(engine_lib.SECRET, [np.ones(3)])
      return super().to_arrays(state) | secret

  config = fake_engine.make_run(seed=seed)
  opener = fake_engine.Opener(WithNoise)
  runs_lib.train(config, tmp_path / 'run', open_engine=opener)
  saved = list((tmp_path / 'run/checkpoints').glob('*.ckpt'))
  assert len(saved) == 3
  for path in saved:
    arrays, _ = checkpoints.read_arrays(path)
    # What is not secret stays: an average of weights is such a state.
    assert {'weights/w', 'fake/m'} <= set(arrays)
    # Whoever knows the seed knows the noise in any case.
    assert (f'{engine_lib.SECRET}/0' in arrays) == (seed is not None)


def test_a_checkpoint_that_cannot_be_read_now_is_not_removed(
  tmp_path, monkeypatch
):
  folder, _ = runs.train(tmp_path / 'run')
  saved = checkpoints.Checkpoints(folder.checkpoints_path)
  before = sorted(folder.checkpoints_path.iterdir())

  def too_many_files(path):
    raise OSError(24, 'Too many open files')

  with monkeypatch.context() as patched:
    patched.setattr('pathlib.Path.read_bytes', too_many_files)
    with pytest.raises(runs_lib.CheckpointError, match='Too many'):
      saved.drop('fake/')
  assert sorted(folder.checkpoints_path.iterdir()) == before
  before[0].write_bytes(b'damaged')
  saved.drop('fake/')
  assert sorted(folder.checkpoints_path.iterdir()) == before[1:]


@pytest.mark.parametrize('gone', ['checkpoints', 'metrics.csv'])
def test_without_a_part_of_it_a_run_is_not_new(tmp_path, gone):
  folder = tmp_path / 'run'
  config = fake_engine.make_run(seed=None)
  with pytest.raises(KeyboardInterrupt):
    runs.train(folder, config, runs.ending(KeyboardInterrupt))
  if gone == 'checkpoints':
    shutil.rmtree(folder / gone)
  else:
    (folder / gone).unlink()
  (folder / 'secret_seeds.json').unlink()
  with pytest.raises(runs_lib.OutputError, match='is missing'):
    runs.train(folder, config)


def test_a_run_that_is_not_tested_keeps_no_secret_either(tmp_path):
  config = fake_engine.make_run(seed=None, final_test=False)
  folder, _ = runs.train(tmp_path / 'run', config)
  assert not (folder.path / 'secret_seeds.json').exists()
  assert runs.train(tmp_path / 'run', config)[1] is None  # It is not opened.
  # As if it had been killed before it had removed them.
  secret = folder.path / 'secret_seeds.json'
  secret.write_text(json.dumps(privacy.SeedStreams(None).as_dict()))
  with pytest.raises(runs_lib.OutputError, match='ended without a test'):
    runs.train(tmp_path / 'run', fake_engine.make_run(seed=None))
  assert not secret.exists()


def test_a_secret_that_outlived_its_run_is_removed(tmp_path):
  run = fake_engine.make_run(seed=None)
  folder, engine = runs.train(tmp_path / 'run', run)
  # As if the run had been killed between its end and the removal.
  secret = folder.path / 'secret_seeds.json'
  secret.write_text(json.dumps(engine.seeds.as_dict()))
  runs.train(tmp_path / 'run', run)
  assert not secret.exists()


def test_other_settings_are_refused_with_the_difference(tmp_path):
  runs.train(tmp_path / 'run')
  other = fake_engine.make_run(seed=3, rounds_per_evaluation=5)
  with pytest.raises(
    runs_lib.OutputError,
    match='other settings: evaluation.rounds_per_eval.*: 3 -> 5; seed: 0 -> 3',
  ):
    runs.train(tmp_path / 'run', other)


def test_settings_with_which_nothing_was_run_bind_nobody(tmp_path):
  class Refusing(fake_engine.Opener):
    def __call__(self, config, seeds):
      self.seeds = seeds
      raise ValueError('momentum must be in [0, 1). Found 1.5.')

  opener = Refusing()
  with pytest.raises(ValueError, match='momentum'):
    runs_lib.train(
      fake_engine.make_run(seed=None), tmp_path / 'run', open_engine=opener
    )
  mended = fake_engine.make_run(seed=None, rounds_per_evaluation=5)
  folder, engine = runs.train(tmp_path / 'run', mended)
  assert folder.read_config().spec.evaluation.rounds_per_evaluation == 5
  assert engine.seeds.as_dict() != opener.seeds.as_dict()


def test_a_round_that_was_run_binds_whoever_goes_on(tmp_path):
  # Before anything of the round is saved.
  dying = runs.ending(KeyboardInterrupt, is_after=True)
  config = fake_engine.make_run(seed=None)
  with pytest.raises(KeyboardInterrupt):
    runs.train(tmp_path / 'run', config, dying)
  other = fake_engine.make_run(seed=None, rounds_per_evaluation=5)
  with pytest.raises(runs_lib.OutputError, match='other settings'):
    runs.train(tmp_path / 'run', other)


def test_what_does_not_matter_may_differ(tmp_path):
  runs.train(tmp_path / 'run')
  runs.train(tmp_path / 'run', fake_engine.make_run(checkpoints_kept=7))


def test_folders_of_others_are_refused(tmp_path):
  (tmp_path / 'photos').mkdir()
  (tmp_path / 'photos' / 'cat.png').touch()
  (tmp_path / 'photos' / '.notes.tmp-1').touch()
  with pytest.raises(runs_lib.OutputError, match='must be empty.*cat.png'):
    runs.train(tmp_path / 'photos')
  assert len(list((tmp_path / 'photos').iterdir())) == 2  # As it was.
  (tmp_path / 'web').mkdir()
  (tmp_path / 'web' / 'config.json').write_text('{"port": 80}')
  with pytest.raises(runs_lib.OutputError, match='does not belong to a run'):
    runs.train(tmp_path / 'web')
  (tmp_path / 'file').touch()
  with pytest.raises(runs_lib.OutputError, match='is not a folder'):
    runs.train(tmp_path / 'file')


def test_another_engine_does_not_go_on_with_a_run(tmp_path):
  # It draws other noise for the rounds that somebody may have seen.
  stopped = runs.ending(signal.SIGTERM, 4)
  config = fake_engine.make_run()
  with pytest.raises(base_errors.StoppedError, match='saved after round 5'):
    runs.train(tmp_path / 'run', config, stopped)
  other = fake_engine.make_run(engine='tff')
  with pytest.raises(runs_lib.OutputError, match='engine: .jax. -> .tff'):
    runs.train(tmp_path / 'run', other)
  _, engine = runs.train(tmp_path / 'run', config)
  assert engine.rounds_run == [5, 6, 7, 8, 9]


def test_columns_have_one_order():
  rows = [{'round': 1, 'alpha': 1.0, 'cosine': 0.1}, {'round': 2, 'clients': 1}]
  text = records.format_csv(rows)
  assert text.splitlines()[0] == 'round,epsilon,alpha,clients,cosine'


def test_two_processes_in_one_folder_are_refused(tmp_path):
  class Nested(fake_engine.FakeEngine):
    def initialize(self):
      runs.train(tmp_path / 'run')

  with pytest.raises(runs_lib.OutputError, match='Another process'):
    runs.train(tmp_path / 'run', None, Nested)


def test_a_run_with_noise_of_another_kind_is_not_gone_on_with(tmp_path):
  # Rounds that come again would have other noise, or other sums, of the same
  # users.
  folder, _ = runs.train(tmp_path / 'run')
  path = folder.path / 'config.json'
  content = json.loads(path.read_text())
  content['settings']['noise_version'] -= 1
  path.write_text(json.dumps(content))
  with pytest.raises(
    runs_lib.OutputError, match='noise_version: .* use another --output_dir'
  ):
    runs.train(tmp_path / 'run')


def test_a_run_of_an_older_version_gets_one_line(tmp_path):
  folder, _ = runs.train(tmp_path / 'run')
  path = folder.path / 'config.json'
  content = json.loads(path.read_text())
  path.write_text(json.dumps(content | {'version': 1}))
  for use in (folder.read_config, lambda: runs.train(tmp_path / 'run')):
    with pytest.raises(
      runs_lib.OutputError, match='a run of another version .* format 1.'
    ) as e:
      use()
    assert '\n' not in str(e.value)
