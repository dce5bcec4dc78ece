"""The paper's simulation, as users run it."""

import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.scripts import programs

_SMALL = (
  '--dimensions=200,250',
  '--num_trials=2',
  '--num_private=300',
  '--learning_rates=1,10',
  '--mirror_learning_rates=100',
  '--clip_norms=0.1',
  '--epochs=2',
  '--num_processes=1',
)


def _run(folder, *arguments: str) -> subprocess.CompletedProcess:
  output = f'--output_dir={folder}'
  return programs.run('run_linear_regression', *_SMALL, output, *arguments)


def _table(done: subprocess.CompletedProcess) -> str:
  assert done.code == 0, done.err
  return done.out.split('Written')[0]


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp('finished')
  return folder, _run(folder)


def test_table_csv_and_figures(finished):
  folder, done = finished
  assert 'warm - PDA, same trials' in _table(done)
  assert done.err == ''
  with (folder / 'summary.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert {(int(r['p']), r['method']) for r in rows} == {
    (p, m) for p in (200, 250) for m in ('cold', 'warm', 'pda', 'public')
  }
  assert all(float(r['loss']) > 0.005 for r in rows)
  assert (folder / 'figure_1.png').stat().st_size > 10_000
  assert (folder / 'figure_1.svg').read_text().startswith('<?xml')


@pytest.mark.slow
def test_goes_on_where_it_stopped_with_two_processes(finished):
  folder, done = finished
  trials = sorted((folder / 'trials').iterdir())
  assert [t.name for t in trials] == [
    f'p00{p}_trial00{trial}.json' for p in (200, 250) for trial in (0, 1)
  ]
  for lost in trials[1:3]:
    lost.unlink()
  kept = {t: t.stat().st_mtime_ns for t in (trials[0], trials[3])}
  again = programs.start(
    'run_linear_regression',
    *_SMALL,
    f'--output_dir={folder}',
    '--num_processes=2',
  )
  assert _table(again) == _table(done)
  assert all(t.exists() for t in trials)
  assert {t: t.stat().st_mtime_ns for t in kept} == kept


@pytest.mark.slow
def test_report_of_unfinished_trials(finished, tmp_path):
  folder, _ = finished
  copy = shutil.copytree(folder, tmp_path / 'copy')
  (copy / 'trials' / 'p00250_trial001.json').unlink()
  table = _table(_run(copy, '--report', '--num_trials=5'))
  assert [line.split()[2] for line in table.splitlines()[4:12]] == (
    ['2'] * 4 + ['1'] * 4
  )
  done = _run(tmp_path / 'empty', '--report')
  assert done.code == 2
  assert '--report needs trials. Found none in' in done.err


def test_folder_of_another_simulation(finished):
  folder, _ = finished
  done = _run(folder, '--epsilon=2')
  assert done.code == 2
  assert 'epsilon: 1.0 there, 2.0 now' in done.err
  assert json.loads((folder / 'config.json').read_text())['epsilon'] == 1.0


@pytest.mark.slow
def test_quick_and_few_public_samples(tmp_path):
  # What the user says counts more than --quick.
  done = _run(tmp_path, '--quick', '--public_factor=0.5')
  assert '100 public samples for p = 200' in _table(done)
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['dimensions'] == [200, 250]


def _children(pid: int) -> list[int]:
  path = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(child) for child in path.read_text().split()]


def _num_started_workers(pid: int) -> int:
  # A worker that has started has a second thread, which waits for its parent.
  tasks = [pathlib.Path(f'/proc/{child}/task') for child in _children(pid)]
  return sum(len(list(task.iterdir())) >= 2 for task in tasks)


def _is_alive(pid: int) -> bool:
  try:
    status = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False
  return status.rpartition(')')[2].split()[0] != 'Z'


def _wait_until(condition, seconds=100.0):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.1)


@pytest.mark.parametrize(
  ('number', 'code'), [(signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_workers_end_with_the_program(number, code, tmp_path):
  with subprocess.Popen(
    [
      *(sys.executable, '-m', 'scripts.run_linear_regression', *_SMALL),
      *('--num_processes=2', '--dimensions=250', '--epochs=1000000'),
      f'--output_dir={tmp_path}',
    ],
    cwd=programs.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as program:
    _wait_until(lambda: _num_started_workers(program.pid) == 2)
    workers = _children(program.pid)
    # The terminal would tell all of them; kill tells one.
    for pid in [program.pid] + (workers if number == signal.SIGINT else []):
      os.kill(pid, number)
    _, error = program.communicate(timeout=100)
  assert program.returncode == code
  if number == signal.SIGINT:
    assert error.splitlines()[-1] == 'interrupted'
    assert 'Traceback' not in error
  _wait_until(lambda: not any(_is_alive(pid) for pid in workers))


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--dimensions=100', 'dimensions must be at least 200. Found 100'),
    ('--epsilon=-1', 'epsilon must be positive and finite. Found -1.0'),
    ('--learning_rates=1,x', 'learning_rates must be a finite number'),
  ],
)
def test_bad_flags(argument, message, tmp_path):
  done = _run(tmp_path, argument)
  assert done.code == 2
  assert message in done.err
  assert len(done.err.splitlines()) == 1
