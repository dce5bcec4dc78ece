"""Data preparation, run as a user would."""

import json
import re
import signal
import subprocess
import sys
import time

import data_prep
import numpy as np
import pytest

from tests.scripts import programs

_SMALL = [
  '--synthetic_users=150',
  '--max_sentences=64',
  '--num_public_users=5',
  '--vocabulary_size=1000',
]


def _run(*arguments):
  return programs.run('prepare_users', *arguments)


@pytest.mark.slow
def test_prints_a_summary_and_writes_a_store(tmp_path):
  out = tmp_path / 'out'
  done = _run(*_SMALL, f'--output_dir={out}')
  assert done.code == 0, done.err
  # The source has 12,000 words.
  assert re.fullmatch(
    r'warning: 4\d% of the words of private users .* --vocabulary_size .*\n',
    done.err,
  )
  lines = done.out.splitlines()
  assert lines[0].split()[:3] == ['users', 'number', 'sentences']
  assert lines[3].split()[:2] == ['public', '5']
  assert 'origin generator' in done.out
  assert lines[-1] == f'Wrote {out}, which only you can read.'
  store = data_prep.open_store(out)
  store.verify()
  assert len(store.users('public')) == 5
  assert [path.name for path in tmp_path.iterdir()] == ['out']

  again = _run(*_SMALL, f'--output_dir={out}')
  assert again.code == 2
  assert again.err == (f'error: {out} exists. Replace it with --overwrite.\n')
  replaced = _run(*_SMALL, f'--output_dir={out}', '--overwrite', '--seed=1')
  assert replaced.code == 0, replaced.err
  manifest = json.loads((out / 'manifest.json').read_text())
  assert manifest['settings']['seed'] == 1


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
  assert done.code == 0, done.err
  store = data_prep.open_store(out)
  assert list(store.users('public')) == ['user_000000003', 'user_000000005']
  assert not set(store.users('public')) & set(store.users('private'))


def test_a_table_of_texts(tmp_path):
  rows = [f'u{i % 40},"Word number {i}. And another."' for i in range(800)]
  table = tmp_path / 'posts.csv'
  table.write_text('\n'.join(['user,text', *rows]))
  done = _run(
    f'--source=csv:{table}',
    '--max_sentences=10',
    '--num_public_users=5',
    '--vocabulary_size=8',
    f'--output_dir={tmp_path / "out"}',
  )
  assert done.code == 0, done.err
  store = data_prep.open_store(tmp_path / 'out')
  assert len(store.users('public')) == 5
  users = [u for g in ('private', 'validation', 'test') for u in store.users(g)]
  assert sorted(users) == sorted(f'u{i}' for i in range(40))
  assert store.decode(store.sentences(users[0])[0])[:2] == ['word', 'number']


@pytest.mark.parametrize(
  'arguments, words',
  [
    ([], 'output_dir must be given'),
    (['--source=xml:x'], "source must be synthetic, tff, .* Found 'xml:x'"),
    (['--source=sqlite:none.sqlite'], 'no file none.sqlite'),
    (['--source=jsonl:none.jsonl'], 'no file matches none.jsonl'),
    (['--source=csv'], "source must be .* Found 'csv'"),
    (['--source=csv:none.csv'], 'none.csv is missing'),
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
  assert done.code == 2
  assert done.out == ''
  assert done.err.count('\n') == 1
  assert done.err.startswith('error: ')
  assert re.search(words, done.err), done.err
  assert not list(tmp_path.iterdir())


_X = np.arange(240.0).reshape(60, 4)
_ARRAYS = {'x': _X, 'y': np.arange(60) % 3, 'user': np.arange(60) // 2}
_OF_ARRAYS = [
  '--num_public_users=4',
  '--validation_fraction=0.2',
  '--test_fraction=0.2',
]


def _write(path, **changes):
  """Writes arrays, or a table of them if the name says so."""
  arrays = {n: a for n, a in (_ARRAYS | changes).items() if a is not None}
  if path.suffix == '.npz':
    np.savez(path, **arrays)
    return f'--source=npz:{path}'
  columns = [arrays['user'], arrays['y'], *arrays['x'].T]
  lines = [','.join(map(str, row)) for row in zip(*columns, strict=True)]
  path.write_text('\n'.join(['user,label,a,b,c,d', *lines]))
  return f'--source=csv:{path}'


@pytest.mark.slow
def test_arrays_and_tables(tmp_path):
  for kind in ('npz', 'csv'):
    out = tmp_path / kind
    source = _write(tmp_path / f'x.{kind}')
    done = _run(source, *_OF_ARRAYS, f'--output_dir={out}')
    assert (done.code, done.err) == (0, '')
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ['users', 'number', 'examples']
    assert lines[3].split()[:3] == ['public', '4', '8']
    assert 'Inputs: 4 of float32' in done.out
    assert 'Classes: 3.\nThe number of classes was read off' in done.out
    data_prep.open_store(out).verify()
  for name in ('x.npy', 'y.npy', 'user_ids.bin'):
    both = [(tmp_path / kind / name).read_bytes() for kind in ('npz', 'csv')]
    assert both[0] == both[1]
  cut = _run(
    _write(tmp_path / 'x.npz', num_classes=3),
    *_OF_ARRAYS,
    '--max_sentences=1',
    f'--output_dir={tmp_path / "cut"}',
  )
  assert cut.code == 0, cut.err
  assert re.search('examples beyond the cut +30', cut.out)
  assert 'read off' not in cut.out


_NAN = np.where(_X == 7, np.nan, _X)


@pytest.mark.parametrize(
  ('name', 'changes', 'arguments', 'words'),
  [
    ('x.npz', {'user': None}, [], 'must hold the array user. Found x, y'),
    ('x.npz', {'y': np.zeros(7, int)}, [], 'y must .* 60. Found 7'),
    ('x.npz', {'x': _ARRAYS['x'].astype(object)}, [], 'same shape'),
    ('x.npz', {'num_classes': 2}, [], 'num_classes .* Found 2'),
    ('x.npz', {'y': np.zeros(60)}, [], 'vector of integers. Found float64'),
    ('x.npz', {'x': _NAN}, [], 'finite.* row 1'),
    ('x.npz', {}, ['--num_public_users=30'], 'at most .* Found 30'),
    ('x.npz', {}, ['--test_fraction=1e-9'], 'test_fraction must be larger'),
    ('x.npz', {}, ['--vocabulary_size=9'], '--vocabulary_size must .* text'),
    ('x.csv', {}, ['--synthetic_users=9'], '--synthetic_users must .* text'),
    ('x.csv', {'y': np.arange(60) / 2}, [], "line 2.* '0.0'"),
    ('x.csv', {'x': np.full((60, 4), 'a')}, [], "line 2.* float: 'a'"),
    ('x.csv', {'x': _X[:, :3]}, [], 'line 2.* 6 cells.* Found: 5 cells'),
    ('x.csv', {'x': _NAN}, [], 'finite.* row 1'),
  ],
)
def test_bad_arrays_are_one_line_too(tmp_path, name, changes, arguments, words):
  source = _write(tmp_path / name, **changes)
  out = f'--output_dir={tmp_path / "out"}'
  done = _run(source, *_OF_ARRAYS, out, *arguments)
  assert (done.code, done.out) == (2, '')
  assert re.fullmatch(f'error: .*{words}.*\n', done.err), done.err
  assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path):
  out = tmp_path / 'out'
  with subprocess.Popen(
    [
      sys.executable,
      '-m',
      'scripts.prepare_users',
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
  assert done.code == 0, done.err
  assert [path.name for path in tmp_path.iterdir()] == ['out']
