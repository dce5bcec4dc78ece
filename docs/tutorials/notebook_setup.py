"""What the first cell of every tutorial does: install the lock, or say why not.

A notebook finds the clone of the project, puts it on `sys.path` and calls
`set_up` with the modules it needs. On a machine where `make setup` was run
there is nothing to do. In Colab, and wherever else the notebook's Python can
take the lock, the lock is installed into that Python. Elsewhere the error says
what is wrong and what to do about it.
"""

from collections.abc import Callable, Sequence
from importlib import metadata
import importlib.util
import os
import pathlib
import platform
import re
import subprocess
import sys
import sysconfig

# By its folder: a package of this Python may have the name `tools`.
sys.path.append(str(pathlib.Path(__file__).parents[2] / 'tools'))
import install_lock

# The notebook's own machinery: Colab's kernel works with the versions that it
# came with, and a kernel cannot replace what it is running on.
_OF_THE_KERNEL = re.compile(
  r'(ipykernel|ipython|jupyter|jedi|comm|debugpy|nest-asyncio|pyzmq|tornado'
  r'|traitlets|prompt-toolkit|psutil|matplotlib-inline|parso|pexpect|ptyprocess'
  r'|pygments|stack-data|executing|asttokens|pure-eval|wcwidth|nbclient|nbformat'
  r'|pytest|ruff|hypothesis)'
)
_NUMPY_RELOADED = (
  'Installed. Now restart the runtime (Runtime > Restart session) and run this'
  ' cell again: another numpy was already loaded.'
)


class SetupError(RuntimeError):
  """This Python cannot run the tutorial; the message says why."""


def missing_modules(modules: Sequence[str]) -> list[str]:
  """Returns those of the modules that cannot be imported.

  Args:
    modules: Names of top-level modules.
  """
  return [m for m in modules if importlib.util.find_spec(m) is None]


def lock_without_kernel(lock: str) -> str:
  """Returns a lock without the packages that a notebook's kernel runs on.

  Args:
    lock: The text of requirements.txt.
  """
  kept = []
  keeps = True
  for line in lock.splitlines(keepends=True):
    # What is indented, the hashes of a package, goes with its first line.
    if not line.startswith(' '):
      keeps = _OF_THE_KERNEL.match(line) is None
    if keeps:
      kept.append(line)
  return ''.join(kept)


def check_platform(system: str, machine: str, version: Sequence[int]) -> None:
  """Raises unless the lock has wheels for this Python.

  Args:
    system: As of `platform.system()`.
    machine: As of `platform.machine()`.
    version: As of `sys.version_info`.

  Raises:
    SetupError: If it has none.
  """
  why = install_lock.refusal(system, machine, version)
  if why:
    raise SetupError(
      f'This tutorial cannot run here: {why} In Colab choose another runtime'
      ' version (Runtime > Change runtime type > Runtime version). Elsewhere'
      ' run `make setup` in the clone and pick the kernel of .venv.'
    )


def _is_installed(package: str) -> bool:
  return any(metadata.distributions(name=package))


def _remove_tensorflow(run: Callable[..., object]) -> None:
  """Removes Colab's TensorFlow, whose files the lock's would mix with."""
  # Elsewhere the lock has `tensorflow` itself, and pip replaces it.
  if platform.machine() == 'x86_64' and _is_installed('tensorflow'):
    pip = [sys.executable, '-m', 'pip', 'uninstall', '--quiet', '--yes']
    run([*pip, 'tensorflow', 'tensorflow-cpu'], check=True)


def set_up(
  root: os.PathLike,
  modules: Sequence[str],
  *,
  run: Callable[..., object] = subprocess.run,
) -> str:
  """Makes the modules importable, by installing the lock if need be.

  Args:
    root: The clone.
    modules: What the tutorial imports.
    run: Runs pip; tests pass another.

  Returns:
    What was done, for the notebook to show.

  Raises:
    SetupError: If this Python cannot take the lock, or the installation failed.
  """
  # TensorFlow reads it when it is imported.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  missing = missing_modules(modules)
  if not missing:
    return 'Ready: all packages are here.'
  check_platform(platform.system(), platform.machine(), sys.version_info)
  lock = (pathlib.Path(root) / 'requirements.txt').read_text()
  packages = sysconfig.get_path('purelib')
  try:
    _remove_tensorflow(run)
    install_lock.install(
      lock_without_kernel(lock), sys.executable, packages, run
    )
  except (OSError, subprocess.CalledProcessError) as e:
    raise SetupError(
      f'{", ".join(missing)} could not be installed: {e}. Run `make setup` in'
      ' the clone and pick the kernel of .venv.'
    ) from e
  importlib.invalidate_caches()
  if 'numpy' in sys.modules:
    return _NUMPY_RELOADED
  return 'Ready: the lock is installed.'
