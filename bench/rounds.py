"""What the benchmarks of rounds share: the work, the flags, and the peer.

The peer is pfl-research, which runs in its own environment: torch and pfl
conflict with the requirements of TFF.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import os
import pathlib
import subprocess

from absl import flags
from pda_fed import models
from pda_fed import privacy

WORK = flags.DEFINE_list(
  'work', ['small', 'paper'], 'Sizes to measure: small, paper, full.'
)
ROUNDS = flags.DEFINE_integer(
  'rounds', 5, 'Number of measured rounds of each.', lower_bound=1
)
_PFL_PYTHON = flags.DEFINE_string(
  'pfl_python', None, 'Also measure pfl-research, with this interpreter.'
)
PEER = 'pfl-research'
_PEER_PROGRAM = pathlib.Path(__file__).resolve().with_name('pfl_round.py')


@dataclasses.dataclass(frozen=True)
class Work:
  """A cohort and a model."""

  clients: int
  sentences: int
  spec: models.RecurrentSpec


_WORKS = {
  'small': Work(50, 32, models.RecurrentSpec(num_words=1000, lstm_size=64)),
  'paper': Work(8, 64, models.RecurrentSpec()),
  'full': Work(100, 256, models.RecurrentSpec()),
}


def chosen_works() -> dict[str, Work]:
  """Returns the works that the flag names.

  Raises:
    ValueError: If there is none of a name.
  """
  unknown = set(WORK.value) - set(_WORKS)
  if unknown:
    raise ValueError(f'--work must be among {list(_WORKS)}. Found {unknown}.')
  return {name: _WORKS[name] for name in WORK.value}


def plan(work: Work) -> privacy.PrivacyPlan:
  """Returns how private rounds of a work are."""
  return privacy.PrivacyPlan(
    population=100 * work.clients,
    expected_cohort=work.clients,
    rounds=100,
    delta=1e-5,
    noise_multiplier=0.4,
    clip_norm=0.3,
  )


@contextlib.contextmanager
def peer(work: Work) -> Iterator[dict[str, Callable[[], float]]]:
  """Starts pfl-research if a flag asks for it, and ends it after the block.

  Args:
    work: What it trains.

  Yields:
    By its name, a function that runs a round and returns its seconds; nothing
    without the flag.

  Raises:
    ValueError: If the users are those of a store.
  """
  if _PFL_PYTHON.value is None:
    yield {}
    return
  if not work.sentences:
    raise ValueError('--pfl_python must not be given with --data_dir.')
  sizes = {'clients': work.clients, 'sentences': work.sentences}
  sizes |= dataclasses.asdict(work.spec)
  arguments = [f'--{name}={value}' for name, value in sizes.items()]
  # On a busy machine, spinning OpenMP threads made the peer's rounds several
  # times slower. This was not measured on an idle machine.
  with subprocess.Popen(
    [_PFL_PYTHON.value, '-W', 'ignore', _PEER_PROGRAM, *arguments],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env={'OMP_WAIT_POLICY': 'PASSIVE', **os.environ},
  ) as process:

    def run() -> float:
      try:
        print(file=process.stdin, flush=True)
        return float(process.stdout.readline())
      except (BrokenPipeError, ValueError) as e:
        raise RuntimeError(
          f'bench/pfl_round.py ended with status {process.wait()}.'
        ) from e

    try:
      yield {PEER: run}
    finally:
      process.stdin.close()
      process.terminate()
