"""The package as others get it: sdist, wheel, and empty environments."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

from packaging import requirements
import pytest

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).parents[2]
_GENERATED = ('.*', '*.egg-info', 'bazel-*', 'build', 'data', 'dist', 'out')
_PIP = ('venv/bin/pip', 'install', '--quiet', '--no-compile')
_BUILD_SDIST = """
import sys
from setuptools import build_meta
build_meta.build_sdist(sys.argv[1])
"""
# With numpy alone.
_IMPORTS = """
import data_prep.sources
from pda_fed import methods, models, privacy, schedules
plan = privacy.PrivacyPlan(
  population=200, expected_cohort=20, rounds=10, delta=1e-3,
  noise_multiplier=0.6, clip_norm=0.5)
assert len(plan.cohort(0, seed=1)) > 0
try:
  import scripts
except ModuleNotFoundError:
  print('no clash')
"""
_VERSIONS = """
import importlib.util
import jax
import numpy
print('numpy', numpy.__version__, 'jax', jax.__version__)
for name in ('tensorflow', 'tensorflow_federated', 'tf_keras'):
  assert importlib.util.find_spec(name) is None, name
"""


def _run(*command, cwd):
  # Byte code is worth it: the same packages are imported several times. XLA's
  # flags are for the lock's jaxlib.
  unwanted = ('PYTHONDONTWRITEBYTECODE', 'PYTHONPATH', 'XLA_FLAGS')
  environment = {k: v for k, v in os.environ.items() if k not in unwanted}
  return subprocess.run(
    [str(word) for word in command],
    cwd=cwd,
    env=environment,
    capture_output=True,
    text=True,
    timeout=600,  # Of a machine that is busy.
    check=False,
  )


def _succeed(*command, cwd):
  done = _run(*command, cwd=cwd)
  assert done.returncode == 0, f'{done.stdout[-2000:]}{done.stderr[-4000:]}'
  return done.stdout


def _build(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """Builds an sdist of a copy of the clone, and a wheel of that sdist."""
  clone, dist = folder / 'clone', folder / 'dist'
  dist.mkdir()
  ignore = shutil.ignore_patterns(*_GENERATED, '__pycache__')
  shutil.copytree(_ROOT, clone, ignore=ignore)
  _succeed(sys.executable, '-c', _BUILD_SDIST, dist, cwd=clone)
  (sdist,) = dist.glob('*.tar.gz')
  wheel = ('-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation')
  _succeed(sys.executable, *wheel, '-w', dist, sdist, cwd=folder)
  (wheel,) = dist.glob('*.whl')
  return sdist, wheel


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  return _build(tmp_path_factory.mktemp('built'))


def _names(packages):
  paths = [p for name in packages for p in (_ROOT / name).rglob('*.py')]
  return {str(path.relative_to(_ROOT)) for path in paths}


def test_an_sdist_is_the_whole_project(built):
  with tarfile.open(built[0]) as sdist:
    found = {name.partition('/')[2] for name in sdist.getnames()}
  assert _names(['pda_fed', 'data_prep', 'scripts', 'tests', 'tools']) <= found
  assert {'Makefile', 'requirements.txt', 'docs/method.md'} <= found


def test_a_wheel_is_our_packages_alone_and_typed(built):
  found = set(zipfile.ZipFile(built[1]).namelist())
  of_scripts = {f'pda_fed/_programs/{name}' for name in _names(['scripts'])}
  assert _names(['pda_fed', 'data_prep']) | of_scripts <= found
  assert {'pda_fed/py.typed', 'data_prep/py.typed'} <= found
  assert 'pda_fed/_programs/scripts/presets/tiny.flags' in found
  assert 'data_prep/samples/stackexchange/users.jsonl.xz' in found
  top = {name.partition('/')[0] for name in found}
  assert {t for t in top if '.' not in t} == {'pda_fed', 'data_prep'}
  assert len(top) == 3  # And what pip knows of it.


def test_requirements_are_those_of_the_lock():
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']
  assert project['dependencies'] == ['numpy']
  lines = re.findall(
    r'^[a-z][^#\n]*', (_ROOT / 'requirements.in').read_text(), re.MULTILINE
  )
  locked = [requirements.Requirement(line) for line in lines]
  extras = project['optional-dependencies']
  assert set(extras) == {'jax', 'tff', 'docs', 'dev'}
  given = {*project['dependencies'], *(r for e in extras.values() for r in e)}
  given = [requirements.Requirement(line) for line in given]
  given = [r for r in given if r.name != project['name']]
  # The lock has an older dp-accounting, and these, against metadata.
  own = {'dp-accounting', 'tensorflow-cpu', 'tensorflow-federated'}
  own |= {'tensorflow-model-optimization', 'tensorflow-privacy'}
  pins, locked = (
    {(r.name, str(r.specifier)) for r in found if r.name not in own}
    for found in (given, locked)
  )
  assert pins == locked


def _newest_python() -> str:
  """The newest at hand: the newest numpy may be for no older one."""
  pyenv = os.environ.get('PYENV_ROOT', pathlib.Path.home() / '.pyenv')
  for version in ('3.13', '3.12'):
    installed = pathlib.Path(pyenv, 'versions').glob(f'{version}.*/bin/python')
    for candidate in (f'python{version}', *map(str, installed)):
      if not shutil.which(candidate):
        continue
      done = _run(candidate, '-c', 'import ensurepip, venv', cwd='/')
      if done.returncode == 0:
        return candidate
  return sys.executable


class TestInstalled:
  @pytest.fixture(scope='class')
  def folder(self, tmp_path_factory, built):
    """A folder with an empty environment, and a `scripts` of somebody else."""
    folder = tmp_path_factory.mktemp('installed')
    _succeed(_newest_python(), '-m', 'venv', 'venv', cwd=folder)
    reach = ('--dry-run', '--no-deps', '--retries=0', '--timeout=10', 'numpy')
    done = _run(*_PIP, *reach, cwd=folder)
    if done.returncode:
      pytest.skip(f'no package index in reach: {done.stderr[-200:].strip()}')
    _succeed(*_PIP, built[1], cwd=folder)
    (folder / 'scripts').mkdir()
    (folder / 'scripts/__init__.py').write_text('raise AssertionError')
    return folder

  def test_numpy_alone_is_required(self, folder):
    python = folder / 'venv/bin/python'
    elsewhere = folder / 'venv'
    listed = _succeed(python, '-m', 'pip', 'freeze', cwd=elsewhere)
    names = {re.split('[ =]', line)[0] for line in listed.splitlines()}
    assert names == {'numpy', 'pda_fed'}
    assert _succeed(python, '-c', _IMPORTS, cwd=elsewhere) == 'no clash\n'
    assert 'compare' in _succeed('venv/bin/pda-fed', '--help', cwd=folder)
    done = _run('venv/bin/pda-fed', 'compare', cwd=folder)
    assert done.returncode == 2
    assert done.stderr.count('\n') == 1 and 'pda_fed[jax]' in done.stderr

  def test_compares_with_the_newest_jax(self, folder, built):
    _succeed(*_PIP, f'{built[1]}[jax]', cwd=folder)
    print(_succeed('venv/bin/python', '-c', _VERSIONS, cwd=folder))
    _succeed(
      *('venv/bin/pda-fed', 'prepare', '--output_dir=users'),
      *('--synthetic_users=60', '--max_sentences=32', '--num_public_users=4'),
      '--vocabulary_size=1000',
      cwd=folder,
    )
    table = _succeed(
      *('venv/bin/pda-fed', 'compare', '--methods=warm,pda', '--seeds=1'),
      *('--output_dir=out', '--data_dir=users', '--engine=jax'),
      '--flagfile=scripts/presets/tiny.flags',
      cwd=folder,
    )
    assert table.startswith('method ')
    for method in ('public data alone', 'warm start', 'PDA-DPMD'):
      assert re.search(rf'^{method} +[\d.]+ ', table, re.MULTILINE)
    assert 'epsilon, delta' in table
    assert (folder / 'out/curves_warm_pda.png').is_file()
    assert 'pda-fed compare' in (folder / 'out/index.html').read_text()
