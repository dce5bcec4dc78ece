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
from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import hashlib
import os
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
_LOCK = 'requirements.txt'
_COST = 'about 2.2 GB, a few minutes, once'
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


def pip_commands(
  python: str, packages: str, first: str, second: str
) -> list[list[str]]:
  """Returns the commands that install the two sections of a lock.

  Modules are compiled when first imported, since half of them are never used.

  Args:
    python: Path of the interpreter to install into.
    packages: The interpreter's folder of packages.
    first: Path of a file with the first section.
    second: Path of a file with the second section.
  """
  common = [
    *(python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check'),
    *('--no-input', '--no-compile', '--no-deps', '--require-hashes'),
    '--only-binary=:all:',
  ]
  target = ['--upgrade', f'--target={packages}']
  return [
    [*common, '-r', first],
    [*common, *_PRETENDED, *target, '-r', second],
  ]


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
  with tempfile.TemporaryDirectory() as folder:
    paths = []
    for section in split_lock(lock):
      paths.append(os.path.join(folder, f'section_{len(paths) + 1}.txt'))
      pathlib.Path(paths[-1]).write_text(section)
    for command in pip_commands(python, packages, *paths):
      run(command, check=True)
  with contextlib.suppress(FileNotFoundError):
    pathlib.Path(packages, _UNUSED).unlink()


class _Environment:
  """A virtual environment and the files beside it."""

  def __init__(self, path: str, lock: str):
    self.path = path
    self._lock = lock
    self._python = os.path.join(path, 'bin', 'python')
    self._stamp = pathlib.Path(path, '.installed-lock')
    self._log = pathlib.Path(f'{path}-install.log')
    identity = '{}.{}\n{}'.format(*sys.version_info[:2], lock)
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
      self._create(run)
      self._install(run)
    self._stamp.write_text(f'{self._checksum}\n')
    self._log.unlink()

  def _create(self, run) -> None:
    try:
      run([sys.executable, '-m', 'venv', '--clear', self.path], check=True)
    except subprocess.CalledProcessError:
      raise InstallError(
        f'could not create {self.path}: {self._last_line()} (full log:'
        f' {self._log})'
      ) from None

  def _install(self, run) -> None:
    try:
      packages = self._packages()
      install(self._lock, self._python, packages, run)
    except subprocess.CalledProcessError:
      raise InstallError(
        f'could not install the lock: {self._last_line("error")} Check the'
        " network and the disk's free space, then run the same command again"
        f' (full log: {self._log})'
      ) from None
    if sys.dont_write_bytecode:
      # Imports do not write byte code here, and would take three times as long.
      run([self._python, '-m', 'compileall', '-q', '-j', '0', packages])

  def _last_line(self, word: str = '') -> str:
    lines = self._log.read_text(errors='replace').splitlines()
    found = [line for line in lines if word in line.lower()]
    return f'{found[-1].strip()}.' if found else 'it did not say why.'


@contextlib.contextmanager
def _only_one(path: str) -> Iterator[None]:
  """Waits until no other process is creating the environment."""
  import fcntl  # Missing on Windows, which was refused before.

  try:
    file = open(f'{path}.lock', 'w')
  except OSError:
    raise InstallError(
      f'cannot write {path}.lock: clone the project into a writable folder.'
    ) from None
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      _say(f'another make is setting up {path}; waiting for it.')
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _check_machine() -> None:
  why = refusal(platform.system(), platform.machine(), sys.version_info)
  if why:
    raise InstallError(why)
  if platform.system() != 'Linux':
    return
  name, version = platform.libc_ver()
  numbers = [int(n) for n in version.split('.')[:2] if n.isdigit()]
  if name != 'glibc' or tuple(numbers) < _GLIBC:
    raise InstallError(
      f'glibc 2.28 or newer is needed (found {name or "none"} {version});'
      ' Debian 10, Ubuntu 20.04 and later have it.'
    )


def _read_lock() -> str:
  try:
    return pathlib.Path(_LOCK).read_text()
  except OSError:
    raise InstallError(
      f'{_LOCK} is missing: run this in the root of a complete clone.'
    ) from None


def _say(text: str) -> None:
  print(f'pda_fed: {text}', flush=True)


def _set_up(path: str) -> None:
  _check_machine()
  environment = _Environment(path, _read_lock())
  if environment.is_up_to_date():
    return
  with _only_one(path):
    if environment.is_up_to_date():
      return
    python = f'Python {platform.python_version()}'
    _say(f'setting up {path} with {python} ({_COST}).')
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
      sys.exit(not _Environment(arguments.venv, _read_lock()).is_up_to_date())
    _set_up(arguments.venv)
  except (InstallError, OSError) as e:
    sys.exit(f'pda_fed: error: {e}')
  except KeyboardInterrupt:
    sys.exit(130)


if __name__ == '__main__':
  main()
