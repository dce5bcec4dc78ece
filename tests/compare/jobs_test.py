"""Programs side by side, each on cores of its own."""

import ast
import os
import pathlib

from pda_fed.compare import jobs
from pda_fed.compare import slots
from pda_fed.runs import spec as spec_lib
import pytest


@pytest.fixture(name='job')
def fixture_job(tmp_path, monkeypatch):
  """Makes jobs that run a line of Python instead of `scripts.train`."""
  monkeypatch.setattr(jobs, '_PROGRAM', 'timeit')

  def make(name, line, *setup):
    job = jobs.Job(name, spec_lib.RunSpec(), tmp_path / name)
    words = ('-n1', '-r1', *setup, line)
    monkeypatch.setattr(
      jobs.Job, 'arguments', property(lambda self: lines[self.name])
    )
    lines[name] = words
    return job

  lines = {}
  return make


def test_a_program_sees_its_cores_and_its_log_is_kept(tmp_path, job):
  all_jobs = [
    job('good', 'import os; print(os.sched_getaffinity(0))'),
    job('bad', '1 / 0'),
  ]
  mine = os.sched_getaffinity(0)
  failures = jobs.run_jobs(all_jobs, tmp_path / 'logs', num_processes=2)
  assert os.sched_getaffinity(0) == mine
  assert [(f.job.name, f.exit_code) for f in failures] == [('bad', 1)]
  assert 'ZeroDivisionError' in failures[0].last_lines
  printed = (tmp_path / 'logs/good.log').read_text().splitlines()[0]
  places = slots.make(2, 2, list(mine))
  assert ast.literal_eval(printed) in [slot.cores for slot in places]


def test_jobs_wait_for_a_place(tmp_path, job):
  at_a_time = []
  jobs.run_jobs(
    [job(f'{i}', 'pass') for i in range(3)],
    tmp_path,
    num_processes=1,
    on_change=lambda running, ended: at_a_time.append(
      (len(running), len(ended))
    ),
  )
  assert {running for running, _ in at_a_time} == {0, 1}
  assert at_a_time[-1] == (0, 3)


def test_each_program_sees_its_gpu(tmp_path, job):
  program = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'
  some = [job(f'{i}', program) for i in range(2)]
  assert not jobs.run_jobs(some, tmp_path / 'logs', gpus=['3', 'GPU-5'])
  logs = [(tmp_path / f'logs/{i}.log').read_text() for i in range(2)]
  assert [log.splitlines()[0] for log in logs] == ['3', 'GPU-5']


def test_an_interruption_ends_the_programs(tmp_path, job):
  note = tmp_path / 'pid'
  program = (
    f'pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)'
  )

  def interrupt(running, ended):
    if note.exists() and note.read_text():
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    jobs.run_jobs(
      [job('a', program, '-simport os, pathlib, time')],
      tmp_path,
      on_change=interrupt,
    )
  with pytest.raises(ProcessLookupError):
    os.kill(int(note.read_text()), 0)


def test_a_job_is_a_file_of_settings_and_a_folder(tmp_path):
  spec = spec_lib.RunSpec.for_data('digits')
  job = jobs.Job('a', spec, tmp_path / 'runs/a', ('--trust_code',))
  job.prepare()
  config, output, more = job.arguments
  assert (output, more) == (f'--output_dir={tmp_path}/runs/a', '--trust_code')
  written = pathlib.Path(config.removeprefix('--config='))
  assert spec_lib.RunSpec.from_json(jobs.files.read_json(written)) == spec
  assert not job.is_finished()
