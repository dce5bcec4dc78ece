"""The tutorials run, and what is kept of them is readable and clean."""

import pathlib
import re
import subprocess
import sys
import sysconfig

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


@pytest.mark.slow
@pytest.mark.parametrize('path', pages.TUTORIALS, ids=_NAMES)
def test_a_tutorial_runs(path):
  run_notebooks.execute(path)


@pytest.mark.parametrize('path', pages.TUTORIALS, ids=_NAMES)
class TestKept:
  def test_can_be_read_without_running(self, path):
    cells = _code_cells(_read(path))
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert sum('image/png' in o.get('data', {}) for o in outputs) >= 2
    assert not [o for o in outputs if o.output_type == 'error']

  def test_says_nothing_of_the_machine(self, path):
    text = path.read_text()
    assert not re.search(r'/(home|root|tmp|work|usr|opt)/', text)
    assert 'stderr' not in text
    assert run_notebooks.clean(_read(path)) == _read(path)
    assert path.stat().st_size < 400_000


class TestSetup:
  @pytest.fixture
  def commands(self, monkeypatch):
    """Runs `set_up` where a module is missing; returns what it ran."""
    monkeypatch.setattr(notebook_setup.platform, 'system', lambda: 'Linux')
    monkeypatch.setattr(notebook_setup.platform, 'machine', lambda: 'x86_64')
    found = []

    def run(command, check):
      assert check
      is_install = '-r' in command
      text = pathlib.Path(command[-1]).read_text() if is_install else ''
      found.append((command, text))

    def set_up(installed=()):
      monkeypatch.setattr(
        notebook_setup, '_is_installed', lambda name: name in installed
      )
      said = notebook_setup.set_up(pages.ROOT, ['no_such_module'], run=run)
      assert np.__name__ in sys.modules
      assert 'estart' in said  # Another numpy is already loaded here.
      return found

    return set_up

  def test_nothing_to_do_where_all_is_installed(self):
    assert 'Ready' in notebook_setup.set_up(pages.ROOT, ['numpy', 'json'])

  def test_installs_the_lock_without_the_kernel(self, commands):
    (command, lock), (second, others) = commands()
    assert {'--no-deps', '--require-hashes'} <= set(command)
    names = re.findall(r'^([\w.-]+)==', lock, re.MULTILINE)
    assert {'tensorflow-cpu', 'numpy', 'jax'} <= set(names)
    assert not {'ipykernel', 'ipython', 'tornado', 'pyzmq'} & set(names)
    # Hashes stay with their packages.
    assert '\n    --hash' not in lock.partition('==')[0]
    assert f'--target={sysconfig.get_path("purelib")}' in second
    assert '\ntensorflow-federated==' in others

  def test_removes_a_tensorflow_with_the_same_files(self, commands):
    (command, _), *_ = commands(installed=['tensorflow'])
    assert 'uninstall' in command
    assert command[-2:] == ['tensorflow', 'tensorflow-cpu']

  def test_says_why_it_cannot_install(self, monkeypatch):
    monkeypatch.setattr(notebook_setup, 'check_platform', lambda *_: None)

    def run(command, check):
      raise subprocess.CalledProcessError(1, command)

    with pytest.raises(notebook_setup.SetupError, match='make setup'):
      notebook_setup.set_up(pages.ROOT, ['no_such_module'], run=run)

  def test_says_what_it_needs(self):
    with pytest.raises(notebook_setup.SetupError, match='Darwin arm64'):
      notebook_setup.check_platform('Darwin', 'x86_64', (3, 11))
    notebook_setup.check_platform('Darwin', 'arm64', (3, 12, 1))
