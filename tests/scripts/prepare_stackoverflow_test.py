"""Data preparation, run as a user would."""

import json
import re
import signal
import subprocess
import sys
import time

import data_prep
import pytest

from tests.scripts import programs

_SMALL = [
  '--synthetic_users=150',
  '--max_sentences=64',
  '--num_public_users=5',
  '--vocabulary_size=1000',
]


def _run(*arguments):
  return programs.run('prepare_stackoverflow', *arguments)


def test_prints_a_summary_and_writes_a_store(tmp_path):
  out = tmp_path / 'out'
  done = _run(*_SMALL, f'--output_dir={out}')
  assert done.returncode == 0, done.stderr
  assert done.stderr == ''
  lines = done.stdout.splitlines()
  assert lines[0].split()[:3] == ['users', 'number', 'sentences']
  assert lines[3].split()[:2] == ['public', '5']
  assert 'origin generator' in done.stdout
  assert lines[-1] == f'Wrote {out}.'
  store = data_prep.open_store(out)
  store.verify()
  assert len(store.users('public')) == 5
  assert (out / 'sentences_per_user.png').read_bytes()[:4] == b'\x89PNG'
  assert [path.name for path in tmp_path.iterdir()] == ['out']

  again = _run(*_SMALL, f'--output_dir={out}')
  assert again.returncode == 2
  assert again.stderr == (
    f'error: {out} exists. Replace it with --overwrite.\n'
  )
  replaced = _run(*_SMALL, f'--output_dir={out}', '--overwrite', '--seed=1')
  assert replaced.returncode == 0, replaced.stderr
  manifest = json.loads((out / 'manifest.json').read_text())
  assert manifest['settings']['seed'] == 1


def test_export_then_prepare(tmp_path):
  database = tmp_path / 'export.sqlite'
  both = ['--vocabulary=train', *_SMALL]
  export = _run(
    *both, f'--export_sqlite={database}', f'--output_dir={tmp_path / "direct"}'
  )
  assert export.returncode == 0, export.stderr
  assert export.stdout.startswith('Wrote ')
  read = _run(
    *both, f'--source=sqlite:{database}', f'--output_dir={tmp_path / "read"}'
  )
  assert read.returncode == 0, read.stderr
  stores = [data_prep.open_store(tmp_path / n) for n in ('direct', 'read')]
  assert stores[0].manifest['files'] == stores[1].manifest['files']
  again = _run(*both, f'--export_sqlite={database}')
  assert again.returncode == 2
  assert '--overwrite' in again.stderr


def test_people_who_opted_in(tmp_path):
  ids = tmp_path / 'ids.txt'
  ids.write_text('user_000000003\nuser_000000005\n')
  out = tmp_path / 'out'
  done = _run(
    '--synthetic_users=20',
    '--vocabulary=public',
    '--vocabulary_size=50',
    f'--public_user_ids={ids}',
    f'--output_dir={out}',
  )
  assert done.returncode == 0, done.stderr
  store = data_prep.open_store(out)
  assert list(store.users('public')) == ['user_000000003', 'user_000000005']
  assert not set(store.users('public')) & set(store.users('private'))


@pytest.mark.parametrize(
  'arguments, words',
  [
    ([], 'output_dir or export_sqlite must be given'),
    (['--source=csv:x'], "source must be synthetic, tff, .* Found 'csv:x'"),
    (['--source=sqlite:none.sqlite'], 'no file none.sqlite'),
    (['--source=jsonl:none.jsonl'], 'no file matches none.jsonl'),
    (['--source=stackexchange:none'], 'no folder none'),
    (['--num_public_users=1000'], r'num_public_users must be at most \d+'),
    (['--vocabulary_size=20000'], 'vocabulary_size must be at most 12002'),
    (['--vocabulary=best'], "vocabulary must be .* Found 'best'"),
    (['--vocabulary=file:none.txt'], 'none.txt'),
    (['--public_user_ids=none.txt'], 'none.txt'),
    (['--max_sentences=0'], 'max_sentences must be at least 1. Found 0'),
    (['--seed=-1'], 'seed must be at least 0. Found -1'),
    (['--test_fraction=2'], 'test_fraction must be in'),
    (['--synthetic_users=0'], 'num_users must be at least 1'),
    (['--synthetic_words=999'], 'num_words must be at least 1000'),
    (['--nonsense'], 'nonsense'),
  ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, arguments, words):
  if arguments:
    arguments = [*_SMALL, f'--output_dir={tmp_path / "out"}', *arguments]
  done = _run(*arguments)
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr.count('\n') == 1
  assert done.stderr.startswith('error: ')
  assert re.search(words, done.stderr), done.stderr
  assert not list(tmp_path.iterdir())


def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path):
  out = tmp_path / 'out'
  with subprocess.Popen(
    [
      sys.executable,
      '-m',
      'scripts.prepare_stackoverflow',
      '--synthetic_users=20000',
      '--num_processes=2',
      f'--output_dir={out}',
    ],
    cwd=programs.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  ) as process:
    while not list(tmp_path.glob('.out.partial-*/new/tokens.npy')):
      assert process.poll() is None
      time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    # Its output closes when its workers, too, have ended.
    process.communicate(timeout=120)
  assert not out.exists()
  with pytest.raises(data_prep.StoreError):
    data_prep.open_store(out)
  done = _run(*_SMALL, f'--output_dir={out}')
  assert done.returncode == 0, done.stderr
  assert [path.name for path in tmp_path.iterdir()] == ['out']
