"""The lock: complete, hashed, for every platform, and what is installed."""

import collections
import importlib
from importlib import metadata
import itertools
import pathlib
import re
import sysconfig
import tomllib

from packaging import markers
from packaging import requirements
from packaging import utils
import pytest

from tools import install_lock

_ROOT = pathlib.Path(__file__).parents[1]
_ENVIRONMENTS = list(
  itertools.product(install_lock.PYTHONS, install_lock.PLATFORMS)
)
# The packages that are not for all platforms, and those that have them.
_OF_ONE_PLATFORM = {
  'appnope': [('Darwin', 'arm64')],
  'tensorflow': [('Linux', 'aarch64'), ('Darwin', 'arm64')],
  'tensorflow-cpu': [('Linux', 'x86_64')],
}


def _sections(path: str) -> tuple[str, str]:
  return install_lock.split_lock((_ROOT / path).read_text())


def _requirements(text: str) -> list[requirements.Requirement]:
  """The requirements of an input or a lock, without hashes and comments."""
  lines = re.findall(r'^[\w.-]+[^#\\\n]*', text, re.MULTILINE)
  return [requirements.Requirement(line) for line in lines]


def _versions(text: str, environment=None) -> dict[str, str]:
  """The versions that a lock has for an environment; for this one if None."""
  found = {}
  for requirement in _requirements(text):
    marker = requirement.marker
    if marker is not None and not marker.evaluate(environment):
      continue
    name = utils.canonicalize_name(requirement.name)
    assert name not in found
    (found[name],) = [s.version for s in requirement.specifier]
  return found


def _environment(python, platform) -> dict[str, str]:
  """What markers see there."""
  version = '{}.{}'.format(*python)
  system, machine = platform
  return markers.default_environment() | {
    'implementation_name': 'cpython',
    'platform_machine': machine,
    'platform_system': system,
    'python_full_version': f'{version}.1',
    'python_version': version,
    'sys_platform': system.lower(),
  }


def _expected() -> dict[str, str]:
  """What tools/install_lock.py installs on this machine."""
  first, second = _sections('requirements.txt')
  return _versions(first) | _versions(second)


def test_every_package_is_locked_with_hashes():
  text = (_ROOT / 'requirements.txt').read_text()
  entries = re.split(r'^(?=[\w.-]+==)', text, flags=re.MULTILINE)[1:]
  assert len(entries) > 90
  assert [e for e in entries if '--hash=sha256:' not in e] == []


def test_sections_are_separated_by_the_same_line():
  for path in ('requirements.in', 'requirements.txt'):
    assert (_ROOT / path).read_text().count(install_lock.LINE) == 1
  line = install_lock.LINE.strip()
  assert f"\nline='{line}'\n" in (_ROOT / 'tools/lock.sh').read_text()


@pytest.mark.parametrize('python, platform', _ENVIRONMENTS)
@pytest.mark.parametrize('section', [0, 1])
def test_inputs_are_in_the_lock(section, python, platform):
  environment = _environment(python, platform)
  locked = _versions(_sections('requirements.txt')[section], environment)
  wanted = _requirements(_sections('requirements.in')[section])
  if section == 0:
    wanted += _requirements((_ROOT / 'overrides.txt').read_text())
  for requirement in wanted:
    if requirement.marker is None or requirement.marker.evaluate(environment):
      version = locked[utils.canonicalize_name(requirement.name)]
      assert requirement.specifier.contains(version), requirement.name


def test_nothing_is_added_to_the_second_section():
  # What these packages need is in the first, in versions of our choice.
  wanted, locked = (
    {r.name for r in _requirements(_sections(path)[1])}
    for path in ('requirements.in', 'requirements.txt')
  )
  assert wanted == locked


def test_every_package_is_for_every_platform_but_as_marked():
  first, _ = _sections('requirements.txt')
  platforms = collections.defaultdict(list)
  for python, platform in _ENVIRONMENTS:
    for name in _versions(first, _environment(python, platform)):
      platforms[name].append(platform)
  every_python = len(install_lock.PYTHONS)
  for name, found in platforms.items():
    wanted = _OF_ONE_PLATFORM.get(name, install_lock.PLATFORMS)
    assert sorted(found) == sorted([*wanted] * every_python), name


def test_installed_versions_are_those_of_the_lock():
  wrong = {}
  for name, version in _expected().items():
    try:
      installed = metadata.version(name)
    except metadata.PackageNotFoundError:
      installed = None
    if installed != version:
      wrong[name] = (installed, version)
  assert wrong == {}


def test_nothing_else_is_installed():
  # The environment's own folder: others may be on the path as well.
  packages = sysconfig.get_path('purelib')
  installed = {
    utils.canonicalize_name(d.metadata['Name'])
    for d in metadata.distributions(path=[packages])
  }
  assert installed - set(_expected()) <= {'pip', 'pda-fed'}
  assert not list(pathlib.Path(packages).glob('*/data/worker_binary'))


@pytest.mark.parametrize(
  'module',
  ['tensorflow_federated', 'jax', 'tensorflow_privacy', 'dp_accounting'],
)
def test_imports(module):
  importlib.import_module('pda_fed')  # Makes the rest importable.
  assert importlib.import_module(module)


def test_a_wheel_is_built_with_the_locked_setuptools():
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
  locked, _ = _sections('requirements.txt')
  version = _versions(locked)['setuptools']
  assert project['build-system']['requires'] == [f'setuptools=={version}']
