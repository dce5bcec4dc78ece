"""Flags of runs, tried before the first one starts."""

from absl import flags
from pda_fed.compare import jobs
import pytest
from scripts.lib import dry_runs

from tests import fake_engine
from tests.runs import runs


def _job(folder, name, *arguments):
  return jobs.Job(
    name=name,
    module='tests.scripts.fake_train',
    arguments=(f'--output_dir={folder / name}', '--seed=0', *arguments),
    folder=folder / name,
  )


@pytest.mark.slow
def test_shows_one_plan_and_writes_nothing(tmp_path, capsys):
  some = [_job(tmp_path, name, f'--method={name}') for name in ('cold', 'pda')]
  dry_runs.try_all(some)
  shown = capsys.readouterr().err
  assert shown.startswith('cold:\n')
  assert '1,000 private' in shown and 'epsilon' in shown
  assert 'pda:' not in shown
  assert not any(tmp_path.iterdir())


def test_the_first_refusal_is_ours(tmp_path):
  some = [_job(tmp_path, 'cold'), _job(tmp_path, 'pda', '--roundz=3')]
  with pytest.raises(ValueError, match="^pda: Unknown command line flag 'roun"):
    dry_runs.try_all(some)
  assert not any(tmp_path.iterdir())


def test_a_folder_of_other_settings_is_refused(tmp_path):
  runs.train(tmp_path / 'pda', fake_engine.make_config())
  with pytest.raises(ValueError, match='^pda: .*plan.delta: 0.0001 -> 0.0002'):
    dry_runs.try_all([_job(tmp_path, 'pda', '--rounds=10', '--delta=2e-4')])


@pytest.mark.slow
def test_a_program_that_says_nothing(tmp_path):
  with pytest.raises(ValueError, match='^pda: exit code 3.$'):
    dry_runs.try_all([_job(tmp_path, 'pda', '--crash_below=9')])


def test_binaries_of_others_are_not_tried(tmp_path, monkeypatch):
  monkeypatch.setattr(
    'sys.argv', ['compare', '--binary=tests.scripts.fake_train']
  )
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['compare'])
  before = flags.FLAGS.binary
  flags.FLAGS.binary = 'tests.scripts.fake_train'
  try:
    dry_runs.check([_job(tmp_path, 'pda', '--roundz=3')])
  finally:
    flags.FLAGS.binary = before
