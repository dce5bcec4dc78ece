"""The tutorials run, and what is kept of them is readable and clean."""

import pathlib
import re
import subprocess
import sys

import nbformat
import numpy as np
import pytest

from tests.docs import pages

# Modules beside the pages, as the notebooks import them.
sys.path[:0] = [str(pages.ROOT), str(pages.ROOT / 'docs/tutorials')]
import notebook_setup

from tools import run_notebooks

_NAMES = [path.name for path in pages.TUTORIALS]


def _read(path):
  return nbformat.read(path, as_version=4)


def _code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def test_there_are_three_tutorials():
  assert _NAMES == [
    'exact_mirror_descent.ipynb',
    'pda_dpmd_in_tff.ipynb',
    'public_data_and_privacy.ipynb',
  ]


class TestExactMirrorDescent:
  def test_runs(self):
    run_notebooks.execute(pages.TUTORIALS[0])


@pytest.mark.needs_tff
class TestPdaDpmdInTff:
  def test_runs(self):
    run_notebooks.execute(pages.TUTORIALS[1])


class TestPublicDataAndPrivacy:
  def test_runs(self):
    run_notebooks.execute(pages.TUTORIALS[2])


@pytest.mark.parametrize('path', pages.TUTORIALS, ids=_NAMES)
class TestKept:
  def test_can_be_read_without_running(self, path):
    cells = _code_cells(_read(path))
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert sum('image/png' in o.get('data', {}) for o in outputs) >= 2
    assert not [o for o in outputs if o.output_type == 'error']

  def test_ends_with_an_assertion(self, path):
    assert 'assert ' in _code_cells(_read(path))[-1].source

  def test_begins_with_the_same_setup(self, path):
    first = _code_cells(_read(path))[0].source
    other = _code_cells(_read(pages.TUTORIALS[0]))[0].source
    start = 'import notebook_setup\n'
    assert start in first
    assert first.partition(start)[0] == other.partition(start)[0]

  def test_says_nothing_of_the_machine(self, path):
    text = path.read_text()
    assert not re.search(r'/(home|root|tmp|work|usr|opt)/', text)
    assert 'stderr' not in text
    assert run_notebooks.clean(_read(path)) == _read(path)
    assert path.stat().st_size < 400_000


class TestSetup:
  def test_nothing_to_do_where_all_is_installed(self):
    assert 'Ready' in notebook_setup.set_up(pages.ROOT, ['numpy', 'json'])

  def test_installs_the_lock_without_the_kernel(self, monkeypatch):
    monkeypatch.setattr(notebook_setup, 'check_platform', lambda *_, **__: None)
    seen = {}

    def run(command, check):
      seen['command'] = command
      seen['lock'] = pathlib.Path(command[-1]).read_text()
      assert check

    assert np.__name__ in sys.modules
    said = notebook_setup.set_up(pages.ROOT, ['no_such_module'], run=run)
    assert 'estart' in said  # Another numpy is already loaded here.
    assert '--no-deps' in seen['command']
    names = re.findall(r'^([\w.-]+)==', seen['lock'], re.MULTILINE)
    assert {'tensorflow-federated', 'numpy', 'jax'} <= set(names)
    assert not {'ipykernel', 'ipython', 'tornado', 'pyzmq'} & set(names)
    # Hashes stay with their packages.
    assert seen['lock'].count('--hash') > len(names)
    assert '\n    --hash' not in seen['lock'].partition('==')[0]

  def test_says_why_it_cannot_install(self, monkeypatch):
    monkeypatch.setattr(notebook_setup, 'check_platform', lambda *_, **__: None)

    def run(command, check):
      raise subprocess.CalledProcessError(1, command)

    with pytest.raises(notebook_setup.SetupError, match='make setup'):
      notebook_setup.set_up(pages.ROOT, ['no_such_module'], run=run)

  @pytest.mark.parametrize(
    'where, why',
    [
      (('Darwin', 'arm64', (3, 11)), 'Linux'),
      (('Linux', 'aarch64', (3, 11)), 'x86_64'),
      (('Linux', 'aarch64', (3, 11), False), 'make setup'),
      (('Linux', 'x86_64', (3, 12)), r'Python 3\.11.*3\.12'),
    ],
  )
  def test_says_which_python_it_needs(self, where, why):
    with pytest.raises(notebook_setup.SetupError, match=why):
      notebook_setup.check_platform(*where)

  def test_takes_the_python_of_the_lock(self):
    notebook_setup.check_platform('Linux', 'x86_64', (3, 11, 7))
