"""Assigns CPU cores, and a GPU if there is one, to parallel processes.

This module does not import JAX: a process that counts GPUs with JAX allocates
memory on each of them.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import importlib.util
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
from typing import Optional

_VISIBLE = 'CUDA_VISIBLE_DEVICES'
_PLATFORMS = 'JAX_PLATFORMS'
_FRACTION = 'XLA_PYTHON_CLIENT_MEM_FRACTION'
_PREALLOCATE = 'XLA_PYTHON_CLIENT_PREALLOCATE'
# Fraction of a GPU's memory that all processes on it share: JAX's default for
# one process.
_MEMORY = 0.75
_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Slot:
  """The resources of one process at a time.

  Attributes:
    cores: The CPU cores that the process may use.
    gpu: The GPU's name in CUDA_VISIBLE_DEVICES; None does not set that
      variable.
    sharers: The number of slots that share this GPU.
  """

  cores: frozenset[int]
  gpu: Optional[str] = None
  sharers: int = 1

  def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process in this slot.

    Example:

      >>> Slot(frozenset({0}), '3', 2).environment({})
      {'CUDA_VISIBLE_DEVICES': '3', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.375'}

    Args:
      environ: That of this process. Its settings of GPU memory are kept.
    """
    found = dict(environ)
    if self.gpu is None:
      return found
    found[_VISIBLE] = self.gpu
    if self.sharers > 1 and not {_FRACTION, _PREALLOCATE} & set(environ):
      # A fixed fraction, not memory on demand: the JAX engine chooses its
      # chunks of clients by the memory limit.
      found[_FRACTION] = f'{_MEMORY / self.sharers:.3g}'
    return found


def _count_gpus() -> int:
  """Counts NVIDIA's device files, or else the GPUs in nvidia-smi's list."""
  paths = pathlib.Path('/dev').glob('nvidia*')
  files = [p for p in paths if re.fullmatch(r'nvidia\d+', p.name)]
  program = shutil.which('nvidia-smi')
  if files or program is None:
    return len(files)
  try:
    words = [program, '-L']
    listed = subprocess.run(
      words, capture_output=True, text=True, timeout=_SECONDS, check=False
    ).stdout
  except (OSError, subprocess.TimeoutExpired):
    return 0
  return len(re.findall(r'^GPU \d+:', listed, re.MULTILINE))


def _jax_has_cuda() -> bool:
  """Returns whether JAX's CUDA plugin is installed."""
  spec = importlib.util.find_spec('jax_plugins')
  if spec is None or spec.submodule_search_locations is None:
    return False
  modules = pkgutil.iter_modules(list(spec.submodule_search_locations))
  return any(module.name.startswith('xla_cuda') for module in modules)


def gpus() -> tuple[str, ...]:
  """Returns the GPUs that JAX can use, by their CUDA_VISIBLE_DEVICES names."""
  platforms = os.environ.get(_PLATFORMS, '')
  if platforms and not {'cuda', 'gpu'} & set(platforms.split(',')):
    return ()
  if not _jax_has_cuda():
    return ()
  if _VISIBLE not in os.environ:
    return tuple(str(i) for i in range(_count_gpus()))
  found = []
  for name in map(str.strip, os.environ[_VISIBLE].split(',')):
    if not name or name.startswith('-'):  # CUDA ignores this and the rest.
      break
    found.append(name)
  return tuple(dict.fromkeys(found))


def make(
  num_processes: int,
  num_jobs: int,
  cores: Sequence[int],
  gpu_names: Sequence[str] = (),
) -> list[Slot]:
  """Returns a slot for each process, with at most one GPU.

  Example:

    >>> [slot.gpu for slot in make(3, 9, [0, 1, 2, 3], ['0', '1'])]
    ['0', '1', '0']

  Args:
    num_processes: The number of parallel processes; 0 for one per GPU or,
      without GPUs, one per core.
    num_jobs: The number of jobs, which limits the number of processes.
    cores: The cores of this machine. If they are too few, all share all.
    gpu_names: GPUs, as returned by `gpus`.
  """
  number = num_processes or len(gpu_names) or len(cores)
  number = min(number, max(num_jobs, 1))
  cores = sorted(cores)
  step = number if number <= len(cores) else 1
  shares = [frozenset(cores[i % step :: step]) for i in range(number)]
  if not gpu_names:
    return [Slot(own) for own in shares]
  places = [i % len(gpu_names) for i in range(number)]
  return [
    Slot(own, gpu_names[place], places.count(place))
    for own, place in zip(shares, places, strict=True)
  ]
