"""Programs side by side, each on cores of its own, and shared by hosts."""

import ast
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from pda_fed.analysis import claims
from pda_fed.analysis import jobs
from pda_fed.analysis import members
from pda_fed.analysis import slots
from pda_fed.common import files
from pda_fed.experiments import outputs
import pytest

_ROOT = pathlib.Path(__file__).parents[2]


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


def _shared_jobs(folder, programs_by_name):
  """Jobs that note each start of theirs."""
  found = []
  for name, program in programs_by_name.items():
    (folder / name).mkdir(parents=True, exist_ok=True)
    noted = f'open({str(folder / name / "starts")!r}, "a").write("x"); '
    arguments = ('-n1', '-r1', noted + program)
    found.append(jobs.Job(name, 'timeit', arguments, folder / name))
  return found


def _starts(folder):
  return {p.parent.name: len(p.read_text()) for p in folder.glob('*/starts')}


@pytest.fixture
def quick(monkeypatch):
  monkeypatch.setattr(members, '_LOOK_SECONDS', 0.1)
  monkeypatch.setattr(claims, '_BEAT_SECONDS', 0.1)
  monkeypatch.setattr(claims, '_WAIT_SECONDS', 0.05)
  monkeypatch.setattr(jobs, '_SECONDS_BETWEEN_CHECKS', 0.1)


@pytest.mark.usefixtures('quick')
class TestSharedJobs:
  def test_each_job_runs_once_and_all_know_how_it_ended(self, tmp_path):
    some = _shared_jobs(
      tmp_path, {**{f'{i}': 'pass' for i in range(5)}, 'bad': '1 / 0'}
    )
    failures, together = {}, threading.Barrier(3)

    def work(number):
      with claims.joined(tmp_path / '.claims', 'test') as mine:
        together.wait()
        failures[number] = jobs.run_jobs(
          some, tmp_path / 'logs', num_processes=1, claims=mine
        )
        assert (tmp_path / '.claims').exists()

    threads = [
      threading.Thread(target=work, args=(i,), daemon=True) for i in range(3)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(timeout=20)
    assert _starts(tmp_path) == {job.name: 1 for job in some}
    assert len(failures) == 3
    for (failure,) in failures.values():
      assert (failure.job.name, failure.exit_code) == ('bad', 1)
      assert 'ZeroDivisionError' in failure.last_lines
    assert not (tmp_path / '.claims').exists()

  def test_jobs_of_others_are_waited_for_and_named(self, tmp_path):
    some = _shared_jobs(tmp_path, {'mine': 'pass', 'theirs': 'pass'})
    seen = []
    with (
      claims.joined(tmp_path / '.claims', 'test') as theirs,
      claims.joined(tmp_path / '.claims', 'test') as mine,
    ):
      key = theirs.key(some[1].folder)
      assert theirs.take(key)

      def changed(running, ended):
        seen.append([job.name for job in running])
        if [job.name for job in ended] == ['mine']:
          theirs.finish(key, claims.Outcome(0, '', ('starts', 'late')))
          if len(seen) > 10:
            (tmp_path / 'theirs/late').touch()

      (tmp_path / 'theirs/starts').touch()
      assert not jobs.run_jobs(
        some, tmp_path / 'logs', claims=mine, on_change=changed
      )
    assert _starts(tmp_path) == {'mine': 1, 'theirs': 0}
    assert len(seen) > 10  # Not before its files were there.
    names = {name for running in seen for name in running}
    assert any(name.startswith('theirs on ') for name in names)

  def test_an_interruption_lets_go(self, tmp_path):
    some = _shared_jobs(tmp_path, {'a': 'import time; time.sleep(60)'})

    def interrupt(running, ended):
      if _starts(tmp_path):
        raise KeyboardInterrupt

    with (
      claims.joined(tmp_path / '.claims', 'test') as mine,
      claims.joined(tmp_path / '.claims', 'test') as theirs,
    ):
      with pytest.raises(KeyboardInterrupt):
        jobs.run_jobs(some, tmp_path, claims=mine, on_change=interrupt)
      time.sleep(2 * members._LOOK_SECONDS)
      assert theirs.take(theirs.key(some[0].folder))

  def test_a_job_that_was_taken_over_is_stopped(self, tmp_path):
    some = _shared_jobs(
      tmp_path, {'a': 'import time; time.sleep(30); print("not stopped")'}
    )
    with claims.joined(tmp_path / '.claims', 'test') as mine:
      key = mine.key(some[0].folder)

      def take_over(running, ended):
        path = tmp_path / f'.claims/{key}.1'
        if _starts(tmp_path) and not path.exists():
          path.write_text('somebody')
        elif path.exists() and not running:
          mine.finish(key, claims.Outcome(7))

      failures = jobs.run_jobs(some, tmp_path, claims=mine, on_change=take_over)
    assert [f.exit_code for f in failures] == [7]
    assert 'not stopped' not in (tmp_path / 'a.log').read_text()
    assert _starts(tmp_path) == {'a': 1}

  def test_a_folder_in_use_is_waited_for(self, tmp_path, monkeypatch):
    some = _shared_jobs(tmp_path, {'a': 'pass'})
    with (
      claims.joined(tmp_path / '.claims', 'test') as mine,
      files.locked(tmp_path / 'a' / outputs._LOCK),
    ):
      calls = []

      def patience(running, ended):
        calls.append(_starts(tmp_path))
        if len(calls) == 3:
          monkeypatch.setattr(jobs, '_SECONDS_TO_SAVE', -1)

      jobs.run_jobs(some, tmp_path, claims=mine, on_change=patience)
    assert calls[:3] == [{}, {}, {}]
    assert _starts(tmp_path) == {'a': 1}

  def test_jobs_of_a_process_that_was_killed_are_taken_over(self, tmp_path):
    hold = tmp_path / 'hold'
    hold.touch()
    wait = (
      f'import os, time\nwhile os.path.exists({str(hold)!r}): time.sleep(.1)'
    )
    some = _shared_jobs(tmp_path, {'a': wait, 'b': wait})
    program = f"""
import pathlib
from pathlib import PosixPath
from pda_fed.analysis import claims, jobs
from pda_fed.analysis.jobs import Job
claims._BEAT_SECONDS = 0.1
path = pathlib.Path({str(tmp_path)!r})
some = {some!r}
with claims.joined(path / '.claims', 'test') as mine:
  jobs.run_jobs(some, path / 'logs', num_processes=1, claims=mine)
"""
    other = subprocess.Popen([sys.executable, '-c', program], cwd=_ROOT)
    while not _starts(tmp_path):
      assert other.poll() is None
      time.sleep(0.05)
    is_killed = False

    def kill(running, ended):
      nonlocal is_killed
      if len(running) == 2 and not is_killed:
        other.send_signal(signal.SIGKILL)
        other.wait()
        is_killed = True
        hold.unlink()

    with claims.joined(tmp_path / '.claims', 'test') as mine:
      assert not jobs.run_jobs(
        some, tmp_path / 'logs', num_processes=1, claims=mine, on_change=kill
      )
    assert is_killed
    assert _starts(tmp_path) == {'a': 2, 'b': 1}
    assert not (tmp_path / '.claims').exists()
