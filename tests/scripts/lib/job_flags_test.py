"""Progress of binaries that start others."""

from pda_fed.analysis import jobs
import pytest
from scripts.lib import job_flags

from tests import fake_engine
from tests.experiments import runs


@pytest.mark.parametrize(
  ('arguments', 'is_finished'),
  [
    ([], False),
    (['--nofinal_test'], True),
    (['--final_test=false'], True),
    (['--nofinal_test', '--final_test'], False),
  ],
)
def test_a_run_without_a_test_is_finished_if_none_is_wanted(
  tmp_path, arguments, is_finished
):
  config = fake_engine.make_config(final_test=False)
  runs.train(tmp_path / 'run', config)
  job = jobs.Job(
    name='x',
    module='none',
    arguments=tuple(arguments),
    folder=tmp_path / 'run',
  )
  assert job_flags._is_finished(job) == is_finished


def test_a_log_is_told_of_runs_under_way(monkeypatch, capsys, tmp_path):
  job = jobs.Job(name='pda_0', module='none', arguments=(), folder=tmp_path)
  progress = job_flags._Progress(1)
  monkeypatch.setattr(job_flags, '_SECONDS_OF_SILENCE', float('inf'))
  progress([job], [])
  assert capsys.readouterr().err == ''
  monkeypatch.setattr(job_flags, '_SECONDS_OF_SILENCE', -1)
  progress([job], [])
  assert capsys.readouterr().err == 'pda_0: starts\n'
  progress([], [job])
  assert '[1/1] pda_0: starts\n' in capsys.readouterr().err
