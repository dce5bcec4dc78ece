"""Programs side by side, each on cores of its own."""

import ast
import os

from pda_fed.compare import jobs
from pda_fed.compare import slots
import pytest


def test_a_program_sees_its_cores_and_its_log_is_kept(tmp_path):
  program = ('-n1', '-r1', 'import os; print(os.sched_getaffinity(0))')
  all_jobs = [
    jobs.Job('good', 'timeit', program, tmp_path),
    jobs.Job('bad', 'timeit', ('-n1', '-r1', '1 / 0'), tmp_path),
  ]
  mine = os.sched_getaffinity(0)
  failures = jobs.run_jobs(all_jobs, tmp_path / 'logs', num_processes=2)
  assert os.sched_getaffinity(0) == mine
  assert [(f.job.name, f.exit_code) for f in failures] == [('bad', 1)]
  printed = (tmp_path / 'logs' / 'good.log').read_text().splitlines()[0]
  assert ast.literal_eval(printed) in slots.shares(2, mine)


def test_jobs_wait_for_a_place(tmp_path):
  at_a_time = []
  jobs.run_jobs(
    [
      jobs.Job(f'{i}', 'timeit', ('-n1', '-r1', 'pass'), tmp_path)
      for i in range(3)
    ],
    tmp_path,
    num_processes=1,
    on_change=lambda running, ended: at_a_time.append(
      (len(running), len(ended))
    ),
  )
  assert {running for running, _ in at_a_time} == {0, 1}
  assert at_a_time[-1] == (0, 3)


def test_each_program_sees_its_gpu(tmp_path):
  program = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'
  some = [
    jobs.Job(str(i), 'timeit', ('-n1', '-r1', program), tmp_path)
    for i in range(2)
  ]
  assert not jobs.run_jobs(some, tmp_path / 'logs', gpus=['3', 'GPU-5'])
  logs = [(tmp_path / f'logs/{i}.log').read_text() for i in range(2)]
  assert [log.splitlines()[0] for log in logs] == ['3', 'GPU-5']


def test_an_interruption_ends_the_programs(tmp_path):
  note = tmp_path / 'pid'
  program = (
    f'pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)'
  )
  words = ('-n1', '-r1', '-simport os, pathlib, time', program)

  def interrupt(running, ended):
    if note.exists() and note.read_text():
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    job = jobs.Job('a', 'timeit', words, tmp_path)
    jobs.run_jobs([job], tmp_path, on_change=interrupt)
  with pytest.raises(ProcessLookupError):
    os.kill(int(note.read_text()), 0)
