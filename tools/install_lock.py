"""Creates the virtual environment that all make targets use.

    python3 tools/install_lock.py .venv

requirements.txt has two sections. pip installs the first as usual. The packages
of the second are pure Python, but their metadata reject today's releases and
Pythons. pip installs them as if for the system of `_PRETENDED`.

A stamp, written last, holds the checksum of the lock and the Python version. An
environment without a stamp, or with another one, is created anew. If the stamp
fits, this takes no time.

It needs no packages, and its syntax is that of Python 3.8, so that an older
Python than those of the lock can print an error in one line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import contextlib
import functools
import hashlib
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Any

# Separates the sections in requirements.in and requirements.txt.
LINE = '# ---- Installed without regard to their metadata ----\n'
PYTHONS = ((3, 11), (3, 12), (3, 13))
PLATFORMS = (('Linux', 'x86_64'), ('Linux', 'aarch64'), ('Darwin', 'arm64'))
_GLIBC = (2, 28)
# The only system for which tensorflow-federated has a wheel.
_PRETENDED = (
  '--platform=manylinux_2_31_x86_64',
  '--python-version=3.11',
  '--ignore-requires-python',
)
# A binary of 300 MB for that system, which is not used.
_UNUSED = 'tensorflow_federated/data/worker_binary'
_PROBE = 'import sysconfig; print(sysconfig.get_path("purelib"))'


class InstallError(Exception):
  """The environment cannot be created. The message is one line."""


def refusal(system: str, machine: str, version: Sequence[int]) -> str:
  """Returns why the lock does not support a Python; '' if it does.

  Args:
    system: Value of `platform.system()`.
    machine: Value of `platform.machine()`.
    version: Value of `sys.version_info`.
  """
  if (system, machine) not in PLATFORMS:
    supported = ', '.join(' '.join(p) for p in PLATFORMS)
    return f'this is {system} {machine}; the lock has wheels for {supported}.'
  if tuple(version[:2]) not in PYTHONS:
    found = '{}.{}'.format(*version[:2])
    return f'Python 3.11, 3.12 or 3.13 is needed; this is {found}.'
  return ''


def split_lock(lock: str) -> tuple[str, str]:
  """Returns the two sections of a lock. The second may be empty.

  Args:
    lock: The text of requirements.txt.
  """
  first, _, second = lock.partition(LINE)
  return first, second


def install(
  lock: str, python: str, packages: str, run: Callable[..., Any]
) -> None:
  """Installs both sections of a lock.

  Args:
    lock: The text of requirements.txt.
    python: Path of the interpreter to install into.
    packages: The interpreter's folder of packages.
    run: Runs a command, like `subprocess.run`.
  """
  common = [
    *(python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check'),
    *('--no-input', '--no-deps', '--require-hashes', '--only-binary=:all:'),
  ]
  if not sys.dont_write_bytecode:
    # Imports write byte code; half of the modules are never imported.
    common.append('--no-compile')
  target = ('--upgrade', f'--target={packages}')
  with tempfile.TemporaryDirectory() as folder:
    for place, section in enumerate(split_lock(lock)):
      path = pathlib.Path(folder, f'section_{place + 1}.txt')
      path.write_text(section)
      options = (*_PRETENDED, *target) if place else ()
      run([*common, *options, '-r', str(path)], check=True)
  with contextlib.suppress(FileNotFoundError):
    pathlib.Path(packages, _UNUSED).unlink()


class _Environment:
  """A virtual environment and the files beside it."""

  def __init__(self, path: str):
    try:
      self._lock = pathlib.Path('requirements.txt').read_text()
    except OSError:
      raise InstallError(
        'requirements.txt is missing: run this in the root of a complete clone.'
      ) from None
    self._path = path
    self._python = f'{path}/bin/python'
    self._stamp = pathlib.Path(path, '.installed-lock')
    self._log = pathlib.Path(f'{path}-install.log')
    identity = '{}.{}\n{}'.format(*sys.version_info[:2], self._lock)
    self._checksum = hashlib.sha256(identity.encode()).hexdigest()

  def is_up_to_date(self) -> bool:
    """Returns whether this lock is installed for this Python."""
    try:
      stamp = self._stamp.read_text().strip()
      return stamp == self._checksum and self._packages() != ''
    except (OSError, subprocess.CalledProcessError):
      return False

  def _packages(self) -> str:
    probe = [self._python, '-c', _PROBE]
    silent = subprocess.DEVNULL
    return subprocess.check_output(probe, stderr=silent, text=True).strip()

  def make(self) -> None:
    """Creates the environment, and replaces an existing one."""
    with contextlib.suppress(OSError):
      self._stamp.unlink()
    with self._log.open('w') as log:
      run = functools.partial(subprocess.run, stdout=log, stderr=log)
      try:
        create = [sys.executable, '-m', 'venv', '--clear', self._path]
        run(create, check=True)
        install(self._lock, self._python, self._packages(), run)
      except subprocess.CalledProcessError:
        raise InstallError(
          f'could not set up {self._path}: {self._reason()} Check the network'
          " and the disk's free space, then run the same command again (full"
          f' log: {self._log})'
        ) from None
    self._stamp.write_text(f'{self._checksum}\n')
    self._log.unlink()

  def _reason(self) -> str:
    lines = self._log.read_text(errors='replace').splitlines()
    found = [line for line in lines if 'error' in line.lower()] or lines
    return f'{found[-1].strip()}.' if found else 'it did not say why.'


def _lock_file(path: str):
  """Waits until no other process is creating the environment."""
  import fcntl  # Missing on Windows, which was refused before.

  try:
    file = open(f'{path}.lock', 'w')
  except OSError:
    raise InstallError(
      f'cannot write {path}.lock: clone the project into a writable folder.'
    ) from None
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    _say(f'another make is setting up {path}; waiting for it.')
    fcntl.flock(file, fcntl.LOCK_EX)
  return file


def _check_machine() -> None:
  why = refusal(platform.system(), platform.machine(), sys.version_info)
  if not why and platform.system() == 'Linux':
    name, version = platform.libc_ver()
    numbers = [int(n) for n in version.split('.')[:2] if n.isdigit()]
    if name != 'glibc' or tuple(numbers) < _GLIBC:
      why = (
        f'glibc 2.28 or newer is needed (found {name or "none"} {version});'
        ' Debian 10, Ubuntu 20.04 and later have it.'
      )
  if why:
    raise InstallError(why)


def _say(text: str) -> None:
  print(f'pda_fed: {text}', flush=True)


def _set_up(path: str) -> None:
  _check_machine()
  environment = _Environment(path)
  if environment.is_up_to_date():
    return
  with _lock_file(path):
    if environment.is_up_to_date():
      return
    _say(
      f'setting up {path} with Python {platform.python_version()} (about 2.2'
      ' GB, a few minutes, once).'
    )
    environment.make()
    _say(f'{path} is ready.')


def main() -> None:
  """Creates the environment that the command line names."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('venv')
  parser.add_argument(
    '--check',
    action='store_true',
    help='Create nothing; exit with 1 if the environment is not up to date.',
  )
  arguments = parser.parse_args()
  try:
    if arguments.check:
      sys.exit(not _Environment(arguments.venv).is_up_to_date())
    _set_up(arguments.venv)
  except (InstallError, OSError) as e:
    sys.exit(f'pda_fed: error: {e}')
  except KeyboardInterrupt:
    sys.exit(130)


if __name__ == '__main__':
  main()
