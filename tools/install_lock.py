"""Makes the virtual environment that every make target uses.

    python3 tools/install_lock.py .venv

requirements.txt has two sections. The first is installed by pip as any lock is.
The packages of the second are code in Python alone, whose metadata refuse
today's releases and Pythons; pip puts them into the environment as if it were
that of `_PRETENDED`.

A stamp, written last, holds the checksum of what is installed. An environment
without it is half-made and is made anew; one with another checksum belongs to
another lock or Python and is made anew too. When the stamp fits, this takes no
time.

No package is needed, and the syntax is that of Python 3.8, so that an older
Python than the lock's says in one line what is wrong.
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

# Separates the sections, in requirements.in and in requirements.txt.
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
# A program of 300 MB for that system, which nothing runs.
_UNUSED = 'tensorflow_federated/data/worker_binary'
_LOCK = 'requirements.txt'
_COST = 'about 2.2 GB, a few minutes, once'
_PROBE = 'import sysconfig; print(sysconfig.get_path("purelib"))'


class InstallError(Exception):
  """The environment cannot be made; the message says why, in one line."""


def refusal(system: str, machine: str, version: Sequence[int]) -> str:
  """Returns why the lock has no wheels for a Python, or '' if it has.

  Args:
    system: As of `platform.system()`.
    machine: As of `platform.machine()`.
    version: As of `sys.version_info`.
  """
  if (system, machine) not in PLATFORMS:
    supported = ', '.join(' '.join(p) for p in PLATFORMS)
    return f'this is {system} {machine}; the lock has wheels for {supported}.'
  if tuple(version[:2]) not in PYTHONS:
    found = '{}.{}'.format(*version[:2])
    return f'Python 3.11, 3.12 or 3.13 is needed; this is {found}.'
  return ''


def split_lock(lock: str) -> tuple[str, str]:
  """Returns the two sections of a lock; a lock may have the first alone.

  Args:
    lock: The text of requirements.txt.
  """
  first, _, second = lock.partition(LINE)
  return first, second


def pip_commands(
  python: str, packages: str, first: str, second: str
) -> list[list[str]]:
  """Returns the commands that install the two sections of a lock.

  Byte code is left to the first import, since half of it is never needed.

  Args:
    python: The interpreter to install into.
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
    python: The interpreter to install into.
    packages: The interpreter's folder of packages.
    run: Runs a command; as `subprocess.run`.
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
    """Whether this lock is installed in it, for this Python."""
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
    """Makes it, in place of what is there."""
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
        f'could not create {self.path}: {self._last_line()} (all of it:'
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
        f' (all of it: {self._log})'
      ) from None
    if sys.dont_write_bytecode:
      # No import will leave any, and each would take three times as long.
      run([self._python, '-m', 'compileall', '-q', '-j', '0', packages])

  def _last_line(self, word: str = '') -> str:
    lines = self._log.read_text(errors='replace').splitlines()
    found = [line for line in lines if word in line.lower()]
    return f'{found[-1].strip()}.' if found else 'it did not say why.'


@contextlib.contextmanager
def _only_one(path: str) -> Iterator[None]:
  """Waits until no other process makes the environment."""
  import fcntl  # Windows has none; it gets its one line before this.

  try:
    file = open(f'{path}.lock', 'w')
  except OSError:
    raise InstallError(
      f'cannot write {path}.lock: clone the project into a folder that you may'
      ' write.'
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
      f'{_LOCK} is not here: run this in the root of a whole clone.'
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
  """Makes the environment that the command line names."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('venv')
  parser.add_argument(
    '--check',
    action='store_true',
    help='Make nothing; exit with 1 unless all is there.',
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
