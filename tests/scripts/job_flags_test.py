"""Progress of binaries that start others."""

from pda_fed.experiments import jobs
from scripts import job_flags


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
