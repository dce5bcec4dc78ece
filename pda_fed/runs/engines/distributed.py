"""An engine on several hosts, each of which computes the same rounds.

Every host has an engine with the same settings and seeds, and with the devices
of all hosts. Host 0 has the loop and the run's folder. It tells the others
which rounds follow, and at the start or after a resume sends them the state.
"""

from collections.abc import Callable, Iterator
import contextlib
import hashlib
import json
import pathlib
import platform
import re
from typing import Any
import warnings

import numpy as np
import pda_fed
from pda_fed import errors as base_errors
from pda_fed import privacy
from pda_fed.common import signals
from pda_fed.runs import hosts as hosts_lib
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib

OpenEngine = Callable[
  [Any, privacy.SeedStreams],
  contextlib.AbstractContextManager[engine_lib.Engine],
]


def check(run: resolving.Run, num_hosts: int) -> None:
  """Raises ValueError if a run cannot be spread over hosts.

  Args:
    run: The run.
    num_hosts: The number of hosts.
  """
  if run.engine != 'jax':
    raise ValueError(
      f'engine must be jax with --distributed. Found {run.engine!r}.'
    )
  if num_hosts > run.plan.expected_cohort:
    raise ValueError(
      f'num_hosts must be at most {run.plan.expected_cohort:g}, the expected'
      f' {run.plan.unit}s per round. Found {num_hosts}.'
    )
  if run.spec.audit.audit == 'copy':
    raise ValueError(
      'audit must not use a copy with --distributed. Audit the run itself.'
    )


def _code_hash() -> str:
  """Returns the first digits of the sha256 of this package's source."""
  root = pathlib.Path(pda_fed.__file__).parent
  found = hashlib.sha256()
  for path in sorted(root.rglob('*.py')):
    found.update(path.relative_to(root).as_posix().encode())
    found.update(path.read_bytes())
  return found.hexdigest()[:16]


def agree(hosts: hosts_lib.Hosts, run: resolving.Run) -> None:
  """Checks that all hosts have the same settings, data and code.

  Args:
    hosts: The hosts.
    run: This host's run.

  Raises:
    ValueError: On every host, if a host differs.
  """
  import jax

  facts = {
    'code': {'version': pda_fed.__version__, 'sha256': _code_hash()},
    'jax': jax.__version__,
    'numpy': np.__version__,
    'machine': platform.machine(),
    'rounds_per_dispatch': run.rounds_per_dispatch,
    'settings': json.loads(json.dumps(run.settings())),
  }
  if run.spec.execution.platform != 'cpu':
    # Do not ask JAX: it would hang if only some hosts have GPUs.
    files = pathlib.Path('/dev').glob('nvidia[0-9]*')
    facts['has_gpus'] = any(files)
  hosts.agree(facts)


def _opened(
  hosts: hosts_lib.Hosts,
  stack: contextlib.ExitStack,
  opening: contextlib.AbstractContextManager[engine_lib.Engine],
) -> engine_lib.Engine:
  """Opens a host's engine. This waits for the devices of all hosts."""
  engine = stack.enter_context(opening)
  hosts.agree(engine.order_of_sums())
  return engine


def _spread(engine: engine_lib.Engine, state: Any, round_num: int) -> Any:
  """Returns the state of host 0, on every host."""
  from jax.experimental import multihost_utils

  arrays = engine.to_arrays(state)
  # As bytes, whose sums with the zeros of other hosts are exact.
  sent = {
    name: np.frombuffer(np.asarray(array).tobytes(), np.uint8)
    for name, array in arrays.items()
  }
  found = multihost_utils.broadcast_one_to_all(sent)
  for name, array in arrays.items():
    content = np.asarray(found[name]).tobytes()
    arrays[name] = np.frombuffer(content, array.dtype).reshape(array.shape)
  return engine.from_arrays(arrays, round_num)


def _run_rounds(engine: engine_lib.Engine, state: Any, step: dict[str, Any]):
  """Runs the rounds of a step, as all hosts do."""
  first = step['first_round']
  try:
    if step['is_new']:
      state = _spread(engine, state, first)
    return engine.run_rounds(state, first, step['num_rounds'])
  except (RuntimeError, ValueError) as e:
    if 'RESOURCE_EXHAUSTED' in str(e):
      raise hosts_lib.HostError(
        'A device ran out of memory: give a lower --clients_per_chunk or'
        ' --microbatch_size.'
      ) from e
    if not re.match('[A-Z_]+: ', str(e)):  # Not JAX's.
      raise
    line = str(e).splitlines()[0]
    raise hosts_lib.HostError(f'Another host is lost: {line}.') from e


class LeadingEngine:
  """The engine that the loop of host 0 sees; see `base.Engine`."""

  def __init__(self, engine: engine_lib.Engine, hosts: hosts_lib.Hosts):
    self._engine = engine
    self._hosts = hosts
    self._shared: Any = None

  def __getattr__(self, name: str) -> Any:
    return getattr(self._engine, name)

  def run_rounds(self, state, first_round: int, num_rounds: int):
    """See `base.Engine`."""
    step = {
      'first_round': first_round,
      'num_rounds': num_rounds,
      'is_new': state is not self._shared,
    }
    self._hosts.lead(**step)
    self._shared, metrics = _run_rounds(self._engine, state, step)
    return self._shared, metrics


def leading(hosts: hosts_lib.Hosts, open_engine: OpenEngine) -> OpenEngine:
  """Returns a function that opens an engine on all hosts; for host 0.

  Args:
    hosts: The hosts.
    open_engine: Opens the engine of one host.
  """

  @contextlib.contextmanager
  def open_on_all(
    run: resolving.Run, seeds: privacy.SeedStreams
  ) -> Iterator[engine_lib.Engine]:
    if not seeds.reproducible:
      nonce = seeds.nonce
      if not nonce or hosts.seeds(nonce).as_dict() != seeds.as_dict():
        raise ValueError(
          'cluster_secret_file must be that with which the run began, because'
          ' its seeds follow from it. A run that began without --distributed'
          ' must resume without it.'
        )
    hosts.lead(nonce=seeds.nonce)
    with contextlib.ExitStack() as stack:
      engine = _opened(hosts, stack, open_engine(run, seeds))
      yield LeadingEngine(engine, hosts)

  return open_on_all


def follow(
  hosts: hosts_lib.Hosts, run: resolving.Run, open_engine: OpenEngine
) -> tuple[str, int]:
  """Computes the same rounds as host 0, until it ends the run.

  Args:
    hosts: The hosts.
    run: The run.
    open_engine: Opens the engine of one host.

  Returns:
    The last line and the exit code of host 0.

  Raises:
    HostError: If a host is lost.
  """
  engine = state = None
  with (
    contextlib.ExitStack() as stack,
    signals.StopSignals() as stop,
    warnings.catch_warnings(),
  ):
    warnings.simplefilter('ignore')  # Host 0 shows the same warnings.
    while 'exit_code' not in (step := hosts.follow(stop)):
      if engine is None:
        nonce, seeds = step['nonce'], privacy.SeedStreams(run.spec.seed)
        seeds = hosts.seeds(nonce) if nonce else seeds
        engine = _opened(hosts, stack, open_engine(run, seeds))
        state = engine.initialize()
        continue
      # Host 0 has the same error, and decides what to do.
      with contextlib.suppress(base_errors.DivergenceError):
        state, _ = _run_rounds(engine, state, step)
  return step['line'], step['exit_code']
