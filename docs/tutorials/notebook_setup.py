"""Installs the packages of a tutorial; its first cell calls this.

A notebook finds the clone of the project, puts it on `sys.path` and calls
`set_up` with the modules that it needs. After `make setup` there is nothing to
do. Otherwise, in Colab for example, `set_up` installs the lock file into the
notebook's Python. If the lock file does not support that Python, the error says
why and what to do.
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

# Import by folder, because this Python may have a package named `tools`.
sys.path.append(str(pathlib.Path(__file__).parents[2] / 'tools'))
import install_lock

# Packages of the lock that are not installed. Most belong to the notebook's
# kernel: Colab's kernel works with its own versions, and a running kernel
# cannot replace its packages. The rest are tools for development.
_KERNEL_PACKAGES = re.compile(
  r'(ipykernel|ipython|jupyter|jedi|comm|debugpy|nest-asyncio|pyzmq|tornado'
  r'|traitlets|prompt-toolkit|psutil|matplotlib-inline|parso|pexpect|ptyprocess'
  r'|pygments|stack-data|executing|asttokens|pure-eval|wcwidth|nbclient|nbformat'
  r'|pytest|ruff|hypothesis)'
)
_RESTART = (
  'The packages are installed, but another version of numpy is already loaded.'
  ' Restart the runtime (Runtime > Restart session) and run this cell again.'
)


class SetupError(RuntimeError):
  """This Python cannot run the tutorial. The message says why."""


def missing_modules(modules: Sequence[str]) -> list[str]:
  """Returns the modules that cannot be imported.

  Args:
    modules: Names of top-level modules.
  """
  return [m for m in modules if importlib.util.find_spec(m) is None]


def lock_without_kernel(lock: str) -> str:
  """Returns a lock without the packages of `_KERNEL_PACKAGES`.

  Args:
    lock: The text of requirements.txt.
  """
  kept = []
  keeps = True
  for line in lock.splitlines(keepends=True):
    # Indented lines are the hashes of the package above them.
    if not line.startswith(' '):
      keeps = _KERNEL_PACKAGES.match(line) is None
    if keeps:
      kept.append(line)
  return ''.join(kept)


def check_platform(system: str, machine: str, version: Sequence[int]) -> None:
  """Raises unless the lock has wheels for this Python.

  Args:
    system: Value of `platform.system()`.
    machine: Value of `platform.machine()`.
    version: Value of `sys.version_info`.

  Raises:
    SetupError: If the lock has no wheels for it.
  """
  why = install_lock.refusal(system, machine, version)
  if why:
    raise SetupError(
      f'This tutorial cannot run here: {why} In Colab, choose another runtime'
      ' version (Runtime > Change runtime type > Runtime version). Elsewhere,'
      ' run `make setup` in the clone and select the kernel of .venv.'
    )


def _is_installed(package: str) -> bool:
  return any(metadata.distributions(name=package))


def _remove_tensorflow(run: Callable[..., object]) -> None:
  """Removes Colab's TensorFlow: tensorflow-cpu has files of the same names."""
  # On other machines the lock has `tensorflow` itself, and pip replaces it.
  if platform.machine() == 'x86_64' and _is_installed('tensorflow'):
    pip = [sys.executable, '-m', 'pip', 'uninstall', '--quiet', '--yes']
    run([*pip, 'tensorflow', 'tensorflow-cpu'], check=True)


def set_up(
  root: os.PathLike,
  modules: Sequence[str],
  *,
  run: Callable[..., object] = subprocess.run,
) -> str:
  """Installs the lock file if some of the modules are missing.

  Args:
    root: Folder of the clone.
    modules: Names of the modules that the tutorial imports.
    run: Runs pip. Tests pass their own function.

  Returns:
    A message that says what was done, for the notebook to print.

  Raises:
    SetupError: If the lock file does not support this Python, or if the
      installation failed.
  """
  # TensorFlow reads this variable when it is imported.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  missing = missing_modules(modules)
  if not missing:
    return 'Ready: all packages are installed.'
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
      f'Could not install {", ".join(missing)}: {e}. Run `make setup` in the'
      ' clone and select the kernel of .venv.'
    ) from e
  importlib.invalidate_caches()
  if 'numpy' in sys.modules:
    return _RESTART
  return 'Ready: installed the packages of requirements.txt.'
