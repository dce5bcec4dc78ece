"""Modules that files name are imported only with --trust_code."""

import json

import pytest

from tests.scripts import programs

_DIGITS = ('--dataset=digits', '--epochs=1')
_RATE = 'server.learning_rate'


def _chosen(settings):
  choice = {'settings': settings, 'trials': 0, 'value': None}
  return {
    'format': 'pda_fed chosen settings',
    'command': 'compare',
    'select_by': 'loss',
    'methods': {'pda': choice},
  }


def _task(grids, **settings):
  return {
    'format': 'pda_fed benchmark task',
    'title': 'Tiny',
    'epsilon': 2,
    'data_dir': None,
    'settings': {'dataset': 'digits', 'epochs': 1, **settings},
    'search_settings': {},
    'select_by': 'loss',
    'metrics': ['loss'],
    'rates': {_RATE: [1]},
    'grids': grids,
  }


_COMPARE = ('compare', '--seeds=1', *_DIGITS)
_SEARCH = ('--tune=clip_norm=1', '--private_search=poisson', '--search_runs=2')
# What a file holds, given a module's name, and the command that names the file.
_DOORS = {
  'method': ('--method={name}', ('train', '--flagfile={file}', *_DIGITS)),
  'method apart': (
    '--method\n{name}',
    ('train', '--flagfile', '{file}', *_DIGITS),
  ),
  'model': ('--model={name}', ('train', '--flagfile={file}', *_DIGITS)),
  'a file that trusts itself': (
    '--method={name}\n--trust_code',
    ('train', '--flagfile={file}', *_DIGITS),
  ),
  'config': (
    {'data': {'dataset': 'digits'}, 'method': '{name}'},
    ('train', '--config={file}'),
  ),
  'model of a config': (
    {'data': {'dataset': 'digits'}, 'model': {'name': '{name}'}},
    ('train', '--config={file}'),
  ),
  'runs': (
    '--method={name} --output_dir=x',
    ('train', '--runs_file={file}', *_DIGITS),
  ),
  'methods': ('--methods={name}', (*_COMPARE, '--flagfile={file}')),
  'set': ('--set=pda:model={name}', (*_COMPARE, '--flagfile={file}')),
  'tune': ('--tune=model={name}', (*_COMPARE, '--flagfile={file}')),
  'tune_set': (
    '--tune_set=model={name}',
    (*_COMPARE, '--tune=clip_norm=1', '--flagfile={file}'),
  ),
  'private search': (
    '--model={name}',
    (*_COMPARE, '--methods=pda', *_SEARCH, '--flagfile={file}'),
  ),
  'private search of models': (
    '--tune=model={name}',
    (*_COMPARE, '--methods=pda', *_SEARCH, '--flagfile={file}'),
  ),
  'chosen': (
    _chosen({'model': '{name}'}),
    (*_COMPARE, '--methods=pda', '--chosen={file}'),
  ),
  'method that is chosen': (
    _chosen({'method': '{name}'}),
    (*_COMPARE, '--methods=pda', '--chosen={file}'),
  ),
  'grid of a task': (
    _task({'{name}': {_RATE: [1]}}),
    ('benchmark', '--tasks={file}'),
  ),
  'model of a task': (
    _task({'warm': {_RATE: [1]}}, model='{name}'),
    ('benchmark', '--tasks={file}'),
  ),
  'models of a grid of a task': (
    _task({'warm': {'model': ['{name}']}}),
    ('benchmark', '--tasks={file}'),
  ),
  'search of a task': (
    {**_task({'warm': {_RATE: [1]}}), 'search_settings': {'model': '{name}'}},
    ('benchmark', '--tasks={file}'),
  ),
}


@pytest.mark.parametrize('door', _DOORS)
def test_a_module_that_a_file_names_is_not_imported(door, stranger, tmp_path):
  content, words = _DOORS[door]
  text = content if isinstance(content, str) else json.dumps(content)
  path = tmp_path / 'file.json'
  path.write_text(text.replace('{name}', stranger))
  program, *words = (word.replace('{file}', str(path)) for word in words)
  done = programs.run(program, *words, f'--output_dir={tmp_path / "out"}')
  assert not (tmp_path / 'ran').exists()
  assert done.code == 2, done.err
  assert stranger in done.error and '--trust_code' in done.error


@pytest.mark.parametrize(
  'words',
  [
    ('train', '--method={name}', *_DIGITS),
    ('train', '--flagfile={file}', '--trust_code', *_DIGITS),
    (*_COMPARE, '--methods={name}'),
  ],
)
def test_a_module_that_is_typed_or_trusted_is(words, stranger, tmp_path):
  path = tmp_path / 'x.flags'
  path.write_text(f'--method={stranger}')
  names = {'{file}': str(path), '{name}': stranger}
  for name, value in names.items():
    words = [word.replace(name, value) for word in words]
  done = programs.run(*words, f'--output_dir={tmp_path / "out"}')
  assert done.code == 0, done.err
  assert (tmp_path / 'ran').exists()
