"""Modules that files name are imported only with --trust_code."""

import json
import os
import subprocess
import sys

from absl import flags
from absl.testing import flagsaver
import numpy as np
from pda_fed import errors
from pda_fed import methods
import pytest
from scripts.lib import model_flags
from scripts.lib import trust_flags

from tests.scripts import programs

_MODULE = """
import pathlib
from pda_fed import methods

pathlib.Path(__file__).with_suffix('.ran').touch()


class Mine(methods.Method):
  name = 'mine_of_trust'
  title = 'mine'


def create_spec(store):
  return store
"""


@pytest.fixture(name='folder')
def fixture_folder(tmp_path):
  (tmp_path / 'mine.py').write_text(_MODULE)
  return tmp_path


def _run(folder, module, *arguments):
  return subprocess.run(
    [sys.executable, '-m', module, *arguments],
    cwd=programs.ROOT,
    env={**os.environ, 'PYTHONPATH': str(folder)},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def _write(path, content):
  if not isinstance(content, str):
    content = json.dumps(content)
  path.write_text(content)
  return path


def _chosen(*of_pda):
  choice = {'flags': list(of_pda), 'tries': 0, 'value': None}
  return {
    'format': 'pda_fed chosen settings',
    'command': 'compare',
    'select_by': 'loss',
    'methods': {'pda': choice},
  }


def _task(**changes):
  return {
    'format': 'pda_fed benchmark task',
    'title': 'Tiny',
    'epsilon': 2,
    'binary': 'train_sample_level',
    'data_dir': None,
    'flags': [],
    'search_flags': [],
    'select_by': 'loss',
    'metrics': ['loss'],
    'rates': ['rate=1'],
    'grids': {'warm': ['rate=1']},
    **changes,
  }


_COMPARE = ('scripts.compare', programs.FAKE, '--methods=pda', '--seeds=1')
_SEARCH = ('--tune=rate=1', '--private_search=poisson', '--search_runs=2')
_FAKE = programs.FAKE.partition('=')[2]
# What a file holds, and the command that names the file.
_DOORS = {
  'method': ('--method=mine', (_FAKE, '--flagfile={file}')),
  'method apart': ('--method\nmine', (_FAKE, '--flagfile', '{file}')),
  'a file that trusts itself': (
    '--method=mine\n--trust_code',
    (_FAKE, '--flagfile={file}'),
  ),
  'methods': (
    '--methods=mine',
    ('scripts.compare', programs.FAKE, '--flagfile={file}'),
  ),
  'binary': ('--binary=mine.x', ('scripts.sweep', '--grid=a=1')),
  'grid': ('--grid=model=mine', ('scripts.sweep', programs.FAKE)),
  'method_flags': ('--method_flags=pda:--model=mine', _COMPARE),
  'what follows --': ('--\n--model=mine', _COMPARE),
  'private search': ('--model=mine', (*_COMPARE, *_SEARCH, '--')),
  'chosen': (_chosen('--model=mine'), (*_COMPARE, '--chosen={file}')),
  'chosen, trusting itself': (
    _chosen('--flagfile=x', '--trust_code'),
    (*_COMPARE, '--chosen={file}'),
  ),
  'binary of a task': (
    _task(binary='mine.x'),
    ('scripts.benchmark', '--tasks={file}'),
  ),
  'grid of a task': (
    _task(grids={'mine': ['rate=1']}),
    ('scripts.benchmark', '--tasks={file}'),
  ),
  'flags of a task': (
    _task(search_flags=['--model', 'mine']),
    ('scripts.benchmark', '--tasks={file}'),
  ),
  'runs': (
    '--method=mine --output_dir=/dev/null/x',
    ('scripts.train_sample_level', '--runs_file={file}'),
  ),
}


@pytest.mark.parametrize('door', _DOORS)
def test_a_file_names_a_module_in_vain(folder, door):
  content, (program, *words) = _DOORS[door]
  file = _write(folder / 'given.json', content)
  words = [word.format(file=file) for word in words]
  if str(file) not in ' '.join(words):
    words.append(f'--flagfile={file}')
  if program != _FAKE and program != 'scripts.train_sample_level':
    words.insert(0, f'--output_dir={folder / "out"}')
  done = _run(folder, program, *words)
  assert (done.returncode, done.stdout) == (2, '')
  (line,) = done.stderr.splitlines()
  assert line.startswith(f'error: {file} ')
  assert '--trust_code' in line
  assert "the Python module 'mine" in line or 'trusting itself' in door
  assert not (folder / 'mine.ran').exists()
  assert not (folder / 'out/runs').exists()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['predict', 'export'])
def test_a_model_names_a_module(folder, name):
  about = {'format': 'pda_fed model', 'version': 1, 'round': 1}
  about |= {'weights': ['w'], 'privacy': [''], 'spec': {'kind': 'mine.Spec'}}
  np.savez(folder / 'model.npz', about=json.dumps(about), w=np.ones(1))
  words = {
    'predict': ['--text=a'],
    'export': ['--format=npz', f'--output={folder / "new.npz"}'],
  }[name]
  words.append(f'--run={folder / "model.npz"}')
  program = f'scripts.{name}'
  done = _run(folder, program, *words)
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  named = f"error: {folder / 'model.npz'} names the Python module 'mine'"
  assert line.startswith(named)
  assert not (folder / 'mine.ran').exists()
  # It has no class of this name, but it was imported.
  done = _run(folder, program, *words, '--trust_code')
  assert done.returncode == 2
  assert "has no attribute 'Spec'" in done.stderr
  assert (folder / 'mine.ran').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  'content, words',
  [('--method=mine', ['--trust_code']), ('--delta=1e-4', ['--method=mine'])],
)
def test_what_is_trusted_or_typed_is_imported(folder, content, words):
  file = _write(folder / 'my.flags', content)
  done = _run(
    folder, _FAKE, *words, f'--flagfile={file}', f'--output_dir={folder / "o"}'
  )
  assert done.returncode == 0, done.stderr
  config = json.loads((folder / 'o/config.json').read_text())
  assert config['settings']['method'] == 'mine_of_trust'


@pytest.mark.slow
def test_a_comparison_passes_trust_on(folder):
  file = _write(folder / 'my.flags', '--methods=mine,pda')
  done = _run(
    folder,
    'scripts.compare',
    *(programs.FAKE, '--seeds=1', '--trust_code', f'--flagfile={file}'),
    *(f'--output_dir={folder / "out"}', '--', '--rounds=2'),
  )
  assert done.returncode == 0, done.stderr
  assert 'mine' in done.stdout
  assert (folder / 'out/runs/mine_of_trust_0/result.json').exists()


def test_a_model_of_a_flag_file(folder, monkeypatch):
  # The module's method must not stay known to later tests.
  monkeypatch.setattr(methods.base, 'REGISTRY', dict(methods.base.REGISTRY))
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['train_stackoverflow'])
  file = _write(folder / 'my.flags', '--model=mine')
  monkeypatch.syspath_prepend(folder)
  monkeypatch.setattr('sys.argv', ['train', f'--flagfile={file}'])
  with flagsaver.flagsaver(model='mine'):
    with pytest.raises(errors.UntrustedCodeError, match=f'{file} names'):
      model_flags.spec_for(None)
    assert not (folder / 'mine.ran').exists()
    for word in ('--model=mine', '--trust_code'):
      monkeypatch.setattr('sys.argv', ['train', word])
      with pytest.raises(ValueError, match='create_spec of mine must return'):
        model_flags.spec_for(None)
  sys.modules.pop('mine')


def test_models_that_are_no_modules():
  known = {*model_flags._OF_TEXT, *model_flags._OF_ARRAYS}
  assert known == set(trust_flags.MODELS)
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['train_stackoverflow'])
  with flagsaver.flagsaver(model='lstm'):
    with pytest.raises(ValueError, match='linear or cnn for arrays.*is not fo'):
      model_flags.spec_for(None)


@pytest.mark.parametrize(
  ('line', 'modules'),
  [
    ('--method=pda --model=cnn --binary=train_sample_level', set()),
    ('--model=wrn-16-4 --binary=scripts.predict', set()),
    ('--method=a.b -model c x', {'a.b', 'c'}),
    ('--methods=pda,a.b,c', {'a.b', 'c'}),
    # A method is no model, and the other way round.
    ('--method=cnn --model=pda', {'cnn', 'pda'}),
    ('--binary=a.b --output_dir=a.c --chosen=d/e.json', {'a.b'}),
    ('--binary=a-b.c --model=a-b', {'a-b.c'}),
    ('--grid=model=a,linear --grid=rate=1,2', {'a'}),
    ('--tune=pda:model=a --tune=method=b', {'a', 'b'}),
    ('"--tune_flags=--model=a --rate=1"', {'a'}),
    ('"--method_flags=c.d:--model a"', {'a'}),
    ('x -- --model=a', {'a'}),
  ],
)
def test_modules_of_a_command_line(line, modules):
  assert trust_flags.modules_in(trust_flags._split(line)) == modules


def test_the_flags_of_a_run(monkeypatch):
  def run(*typed):
    monkeypatch.setattr('sys.argv', ['compare', *typed])
    return trust_flags.for_run('--model=a', '--rate=1')

  assert run('--', '--model=a') == ('--model=a', '--rate=1')
  assert run('--trust_code', '--') == ('--trust_code', '--model=a', '--rate=1')
  # It is among the flags of the runs already.
  assert run('-trust_code=true')[0] == '--trust_code'
  assert run('--', '--trust_code') == ('--model=a', '--rate=1')
  # The name of a folder is no module that the user has named.
  for word in ('--output_dir=a', '--chosen=a/chosen.json', '--notrust_code'):
    with pytest.raises(errors.UntrustedCodeError, match="module 'a'"):
      run(word)
