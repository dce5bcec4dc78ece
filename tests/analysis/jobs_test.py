"""Programs side by side, each on cores of its own."""

import ast
import os

from pda_fed.analysis import jobs
import pytest


@pytest.mark.parametrize(
  'num_processes, shares',
  [
    (1, [{2, 3, 5, 7, 11}]),
    (2, [{2, 5, 11}, {3, 7}]),
    (5, [{2}, {3}, {5}, {7}, {11}]),
    (6, [{2, 3, 5, 7, 11}] * 6),
  ],
)
def test_cores_are_shared_out(monkeypatch, num_processes, shares):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {7, 2, 11, 3, 5})
  assert jobs._shares(num_processes) == shares


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
  assert ast.literal_eval(printed) in jobs._shares(2)


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
