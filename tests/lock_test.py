"""The lock: complete, hashed, and what is installed."""

from importlib import metadata
import pathlib
import re
import sysconfig

import pytest

from tests import machine

_ROOT = pathlib.Path(__file__).parents[1]


def _normalized(name: str) -> str:
  return re.sub(r'[-_.]+', '-', name).lower()


def _lock(path: str = 'requirements.txt') -> dict[str, str]:
  text = (_ROOT / path).read_text()
  return dict(re.findall(r'^([\w.-]+)==(\S+) \\$', text, re.MULTILINE))


def _expected() -> dict[str, str]:
  """What tools/setup_env.sh installs on this machine."""
  if machine.HAS_TFF:
    return _lock()
  found = _lock() | _lock('requirements-aarch64.txt')
  del found['tensorflow-federated']
  return found


def _names(path: str) -> dict[str, str]:
  lines = (_ROOT / path).read_text().splitlines()
  requirements = [line.split('#')[0].strip() for line in lines]
  return {
    _normalized(re.match(r'[\w.-]+', r).group()): r for r in requirements if r
  }


def test_every_requirement_is_locked_with_hashes():
  text = (_ROOT / 'requirements.txt').read_text()
  entries = re.split(r'^(?=[\w.-]+==)', text, flags=re.MULTILINE)[1:]
  assert len(entries) == len(_lock()) > 50
  assert [e for e in entries if '--hash=sha256:' not in e] == []
  assert set(_names('requirements.in')) <= set(_lock())


def test_pins_of_the_inputs_are_in_the_lock():
  lock = _lock()
  for path in ('requirements.in', 'overrides.txt'):
    for name, requirement in _names(path).items():
      if '==' in requirement:
        assert lock[name] == requirement.split('==')[1]


def test_lock_of_aarch64_has_what_tensorflow_lacks_there():
  lock = _lock('requirements-aarch64.txt')
  assert lock == {'tensorflow-cpu-aws': _lock()['tensorflow']}
  assert '--hash=' in (_ROOT / 'requirements-aarch64.txt').read_text()
  assert set(_names('requirements-aarch64.in')) == set(lock)


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
    _normalized(d.metadata['Name'])
    for d in metadata.distributions(path=[packages])
  }
  assert installed - set(_expected()) <= {'pip', 'pda-fed'}


@pytest.mark.parametrize(
  'module',
  [
    pytest.param('tensorflow_federated', marks=pytest.mark.needs_tff),
    'jax',
    'tensorflow_privacy',
    'dp_accounting',
  ],
)
def test_imports(module):
  assert __import__(module)
