"""What the first cell of every tutorial does: install the lock, or say why not.

A notebook finds the clone of the project, puts it on `sys.path` and calls
`set_up` with the modules it needs. On a machine where `make setup` was run
there is nothing to do. In Colab, and wherever else the notebook's Python can
take the lock, the lock is installed into that Python. Elsewhere the error says
what is wrong and what to do about it.
"""

from collections.abc import Callable, Sequence
import importlib.util
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

# The notebook's own machinery: Colab's kernel works with the versions that it
# came with, and a kernel cannot replace what it is running on.
_OF_THE_KERNEL = re.compile(
  r'(ipykernel|ipython|jupyter|jedi|comm|debugpy|nest-asyncio|pyzmq|tornado'
  r'|traitlets|prompt-toolkit|psutil|matplotlib-inline|decorator|parso'
  r'|pexpect|pickleshare|ptyprocess|pygments|backcall|stack-data|executing'
  r'|asttokens|pure-eval|wcwidth|nbclient|nbformat|pytest|ruff|hypothesis)'
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
    if line[:1].isalnum():
      keeps = _OF_THE_KERNEL.match(line) is None
    if keeps:
      kept.append(line)
  return ''.join(kept)


def check_platform(
  system: str, machine: str, version: Sequence[int], needs_tff: bool = True
) -> None:
  """Raises unless the lock has wheels for this Python.

  Args:
    system: As of `platform.system()`.
    machine: As of `platform.machine()`.
    version: As of `sys.version_info`.
    needs_tff: Whether the tutorial needs TensorFlow Federated.

  Raises:
    SetupError: If it has none.
  """
  if (system, machine) == ('Linux', 'aarch64') and not needs_tff:
    raise SetupError(
      'Packages of the lock are missing. Run `make setup` in the clone and pick'
      ' the kernel of .venv.'
    )
  if (system, machine) != ('Linux', 'x86_64'):
    raise SetupError(
      'This tutorial needs TensorFlow Federated, which has wheels for Linux'
      f' x86_64 alone. Found {system} {machine}. Run it in Colab, or in a'
      ' container or virtual machine with Linux x86_64.'
    )
  if tuple(version[:2]) != (3, 11):
    raise SetupError(
      'This tutorial needs Python 3.11: TensorFlow Federated 0.87 has no wheels'
      f' for {version[0]}.{version[1]}. In Colab choose a runtime version with'
      ' Python 3.11 (Runtime > Change runtime type > Runtime version);'
      ' elsewhere run `make setup` in the clone and pick the kernel of .venv.'
    )


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
  check_platform(
    platform.system(),
    platform.machine(),
    sys.version_info,
    needs_tff='tensorflow_federated' in modules,
  )
  lock = (pathlib.Path(root) / 'requirements.txt').read_text()
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'requirements.txt'
    path.write_text(lock_without_kernel(lock))
    command = [sys.executable, '-m', 'pip', 'install', '-q', '--no-deps']
    try:
      run([*command, '-r', str(path)], check=True)
    except (OSError, subprocess.CalledProcessError) as e:
      raise SetupError(
        f'{", ".join(missing)} could not be installed: {e}. Run `make setup` in'
        ' the clone and pick the kernel of .venv.'
      ) from e
  importlib.invalidate_caches()
  if 'numpy' in sys.modules:
    return _NUMPY_RELOADED
  return 'Ready: the lock is installed.'
