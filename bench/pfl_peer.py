"""Runs pfl-research in its own environment, one round at a time."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import subprocess
import sys
from typing import Optional

# Not in our lock: torch and pfl conflict with the requirements of TFF.
_REQUIREMENTS = ('torch==2.13.0', 'pfl==0.6.0')
_ROOT = pathlib.Path(__file__).resolve().parents[1]


def ensure_python(python: Optional[str] = None) -> pathlib.Path:
  """Returns an interpreter with pfl; installs pfl if none is given.

  Args:
    python: Interpreter with torch and pfl. Default: pip installs them into
      build/pfl-venv.
  """
  if python is not None:
    return pathlib.Path(python).absolute()
  folder = _ROOT / 'build' / 'pfl-venv'
  path = folder / 'bin' / 'python'
  imports = [path, '-c', 'import pfl, torch']
  if not path.exists() or subprocess.run(imports, check=False).returncode:
    subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
    for (
      requirement
    ) in _REQUIREMENTS:  # In this order, so that pfl uses this torch.
      subprocess.run([path, '-m', 'pip', 'install', requirement], check=True)
  return path


class PflRounds:
  """A running `pfl_round.py` process."""

  def __init__(self, process: subprocess.Popen):
    self._process = process

  def round(self) -> float:
    """Runs a round, and returns the seconds that the peer measured.

    Raises:
      RuntimeError: If the peer has ended.
    """
    try:
      print(file=self._process.stdin, flush=True)
      return float(self._process.stdout.readline())
    except (BrokenPipeError, ValueError) as e:
      raise RuntimeError(
        f'bench/pfl_round.py ended with status {self._process.wait()}.'
      ) from e


@contextlib.contextmanager
def running(python: pathlib.Path, **sizes: int) -> Iterator[PflRounds]:
  """Starts the peer, and ends it after the block.

  Args:
    python: Interpreter of `ensure_python`.
    **sizes: Flags of `pfl_round.py`: clients, sentences, lstm_size and so on.

  Yields:
    The rounds.
  """
  script = pathlib.Path(__file__).with_name('pfl_round.py')
  flags = [f'--{name}={value}' for name, value in sizes.items()]
  # On a busy machine, spinning OpenMP threads made the peer's rounds several
  # times slower. This was not measured on an idle machine.
  environment = {'OMP_WAIT_POLICY': 'PASSIVE', **os.environ}
  with subprocess.Popen(
    [python, '-W', 'ignore', script, '--on_request', *flags],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env=environment,
  ) as process:
    try:
      yield PflRounds(process)
    finally:
      process.stdin.close()
      process.terminate()
