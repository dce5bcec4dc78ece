"""The files and commands of docs/extending.md, as they stand there."""

import os
import re
import shlex
import subprocess
import sys

import numpy as np
from pda_fed import runs as runs_lib
import pytest

from tests.docs import pages

pytestmark = pytest.mark.slow

_PAGE = pages.ROOT / 'docs/extending.md'
_BLOCKS = pages.blocks(_PAGE)
_FILES = re.findall(r'`(\w+\.(?:py|flags))`[:.]\n', _PAGE.read_text())
_COMMANDS = [
  words
  for block in _BLOCKS
  if block.language == 'shell'
  for words in pages.commands(block.code)
]


def _commands(*parts):
  """Those with one of these parts, as words after the interpreter."""
  return [
    words[1:] for words in _COMMANDS if any(p in ' '.join(words) for p in parts)
  ]


def _run(folder, arguments, lines=()):
  done = subprocess.run(
    [sys.executable, *arguments],
    cwd=folder,
    input='\n'.join(map(shlex.join, lines)),
    env={**os.environ, 'PYTHONPATH': f'{pages.ROOT}:.'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('extending')
  codes = [b.code for b in _BLOCKS if b.language in ('python', 'text')]
  for name, code in zip(_FILES, codes, strict=True):
    (path / name).write_text(code)
  for words in _commands('digits_users.py', 'prepare_users'):
    _run(path, words)
  return path


def test_the_page_has_a_file_for_each_thing():
  assert _FILES == [
    'digits_users.py',
    'digits.flags',
    'public_momentum.py',
    'wide_model.py',
    'half_life.py',
  ]
  assert [w[0] for w in _COMMANDS] == ['.venv/bin/python'] * len(_COMMANDS)


@pytest.mark.parametrize('block', _BLOCKS, ids=str)
def test_programs_are_short(block):
  lines = block.code.splitlines()
  assert len(lines) <= 80
  assert max(map(len, lines)) <= 80


def test_a_method_is_one_short_file():
  (method,) = [b for b in _BLOCKS if 'methods.Method)' in b.code]
  assert len(method.code.splitlines()) <= 60


@pytest.mark.parametrize('engine', ['jax', 'tff'])
def test_programs_run_in_both_engines(folder, engine):
  lines = [
    words
    for words in _commands(f'--engine={engine}', f'half_life.py {engine}')
    if 'scripts.compare' not in words
  ]
  assert len(lines) >= 3
  script = pages.ROOT / 'tests/docs/run_commands.py'
  output = _run(folder, [script], lines)
  assert output.count('RUNS') == len(lines)
  # alpha of the rounds, from the program's schedule.
  assert '[1.0, 1.0, 0.707]' in output
  for name in ('digits', 'wide', 'half_life'):
    run = runs_lib.RunFolder(folder / f'out/{name}_{engine}')
    _, rows, result = run.read_finished()
    assert result['engine'] == engine
    assert np.isfinite([row['loss'] for row in rows]).all()
    assert result['test']['accuracy'] > 0.2  # Far above chance.


def test_a_method_from_flag_to_table(folder):
  for words in _commands('scripts.compare'):
    output = _run(folder, words)
    assert 'public momentum' in output
    (place,) = (w for w in words if w.startswith('--output_dir'))
    page = (folder / place.partition('=')[2] / 'index.html').read_text()
    assert 'public momentum' in page
    assert '#c2185b' in page  # The curve.
  jax = runs_lib.RunFolder(folder / 'out/momentum_jax/runs/public_momentum_0')
  settings = jax.read_config().settings['method']
  assert settings == {'name': 'public_momentum', 'weight': 0.7, 'decay': 0.8}
