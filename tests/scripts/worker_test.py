"""Workers and a coordinator as programs, which are killed."""

import contextlib
import pathlib
import signal
import subprocess
import sys

from pda_fed import experiments
import pytest

from tests.experiments import runs
from tests.experiments import tiny_users
from tests.runtime import processes
from tests.runtime import remote_workers

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[2]


def _start(script: str, *arguments: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-m', f'scripts.{script}', *arguments],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _tls(name: str) -> list[str]:
  files = remote_workers.tls_files(name)
  return [
    f'--tls_cert={files.cert}',
    f'--tls_key={files.key}',
    f'--tls_ca={files.ca}',
  ]


class _Worker:
  def __init__(self, process: subprocess.Popen):
    self.process = process
    # ready on ADDRESS (process PID; ...
    words = process.stdout.readline().split()
    assert words[:2] == ['ready', 'on'], process.stderr.read()
    self.address = words[2]
    assert int(words[4].rstrip(';')) == process.pid


@pytest.fixture
def two_workers():
  started = []
  with contextlib.ExitStack() as stack:
    for _ in range(2):
      arguments = ['--listen=localhost:0', '--threads=1', *_tls('localhost')]
      started.append(_start('worker', *arguments))
      stack.enter_context(started[-1])
      stack.callback(started[-1].kill)
    yield [_Worker(process) for process in started]


def test_coordinator_and_worker_killed(two_workers, tmp_path):
  data = tiny_users.prepare(tmp_path / 'data')

  def train(folder):
    return _start(
      'train_stackoverflow',
      '--embedding_size=3',
      '--lstm_size=4',
      '--clients_per_round=4',
      '--delta=1e-3',
      f'--data_dir={data}',
      f'--output_dir={folder}',
      '--method=cold',
      '--seed=0',
      '--rounds=5',
      '--rounds_per_evaluation=5',
      '--rounds_per_checkpoint=1',
      '--worker_timeout_s=30',
      f'--workers={",".join(w.address for w in two_workers)}',
      *_tls('coordinator'),
    )

  def kill_after(process, folder, round_num, victim):
    path = folder / 'checkpoints' / f'round_{round_num:08d}.ckpt'
    assert processes.wait_until(
      lambda: path.exists() or process.poll() is not None, 500
    )
    victim.kill()

  whole = train(tmp_path / 'whole')
  _, errors = whole.communicate(timeout=500)
  assert whole.returncode == 0, errors

  folder = tmp_path / 'run'
  first = train(folder)
  kill_after(first, folder, 1, first)
  first.communicate(timeout=120)
  assert first.returncode == -signal.SIGKILL
  assert not (folder / 'result.json').exists()
  again = train(folder)
  kill_after(again, folder, 2, two_workers[1].process)
  _, errors = again.communicate(timeout=500)
  assert again.returncode == 0, errors
  assert 'Another worker does its part' in errors
  assert runs.rows(folder) == runs.rows(tmp_path / 'whole')
  results = [
    experiments.RunFolder(path).read_result()
    for path in (folder, tmp_path / 'whole')
  ]
  assert results[0]['test'] == results[1]['test']
  assert results[0]['epsilon'] == results[1]['epsilon'] > 0
  options = experiments.RunFolder(folder).read_config()['options']
  assert options['remote_workers']['addresses'] == [
    w.address for w in two_workers
  ]

  left = two_workers[0]
  left.process.terminate()
  out, _ = left.process.communicate(timeout=120)
  assert (out, left.process.returncode) == ('stopped\n', 0)


@pytest.mark.parametrize(
  'script, arguments, words',
  [
    ('worker', [], '--listen must be given'),
    ('worker', ['--listen=b'], 'must be HOST:PORT, [IPV6]:PORT or unix:/PATH'),
    ('worker', ['--listen=0.0.0.0:8443'], 'must be protected'),
    (
      'worker',
      ['--listen=0.0.0.0:8443', f'--tls_cert={__file__}'],
      "tls_key must be a file. Found ''",
    ),
  ],
)
def test_bad_flags_are_one_line(script, arguments, words):
  process = _start(script, *arguments)
  out, errors = process.communicate(timeout=120)
  assert (process.returncode, out) == (2, '')
  assert errors.count('\n') == 1
  assert words in errors
