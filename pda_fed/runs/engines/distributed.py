"""An engine on several hosts: a leader and its followers.

Every host has an engine with the same settings and seeds, and with the devices
of all hosts. The leader's loop sees one engine; the other hosts repeat its
calls of `run_rounds`. The leader sends the state only if the last call did not
return it: at the start, and after a resume.
"""

from collections.abc import Callable, Iterator
import contextlib
import hashlib
import json
import pathlib
import platform
from typing import Any
import warnings

import numpy as np
import pda_fed
from pda_fed import errors as base_errors
from pda_fed import privacy
from pda_fed.common import signals
from pda_fed.common import typed
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
    HostError: If a host is lost.
    DisagreementError: On every host, if a host differs.
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
  hosts.agree(facts, typed.differences)


def _opened(
  hosts: hosts_lib.Hosts,
  stack: contextlib.ExitStack,
  opening: contextlib.AbstractContextManager[engine_lib.Engine],
) -> engine_lib.Engine:
  """Opens a host's engine. This waits for the devices of all hosts."""
  import jax

  engine = hosts.call(lambda: stack.enter_context(opening))
  own = jax.local_devices()[0]
  facts = {
    **engine.order_of_sums(),
    'platform': own.platform,
    'device': own.device_kind,
  }
  hosts.agree(facts, typed.differences)
  return engine


def _packed(arrays: dict[str, np.ndarray]) -> np.ndarray:
  """Returns the bytes of arrays as integers, so that sums with 0 are exact."""
  parts = [np.ascontiguousarray(a).tobytes() for a in arrays.values()]
  content = b''.join(parts)
  return np.frombuffer(content + bytes(-len(content) % 4), np.int32)


def _unpacked(
  packed: np.ndarray, like: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
  content, start, found = packed.tobytes(), 0, {}
  for name, array in like.items():
    part = content[start : start + array.nbytes]
    found[name] = np.frombuffer(part, array.dtype).reshape(array.shape)
    start += array.nbytes
  return found


def _send_state(engine: engine_lib.Engine, state: Any, round_num: int) -> Any:
  """Returns the leader's state on every host."""
  from jax.experimental import multihost_utils

  is_leader = state is not None
  own = engine.to_arrays(state if is_leader else engine.initialize())
  packed = multihost_utils.broadcast_one_to_all(
    _packed(own), is_source=is_leader
  )
  if is_leader:
    return state
  return engine.from_arrays(_unpacked(np.asarray(packed), own), round_num)


class LeaderEngine:
  """The engine that the loop of host 0 sees; see `base.Engine`."""

  def __init__(self, engine: engine_lib.Engine, hosts: hosts_lib.Hosts):
    self._engine = engine
    self._hosts = hosts
    self._shared: Any = None

  def __getattr__(self, name: str) -> Any:
    return getattr(self._engine, name)

  def run_rounds(self, state, first_round: int, num_rounds: int):
    """See `base.Engine`."""
    is_new = state is not self._shared
    self._hosts.check()
    self._hosts.send(
      {
        'do': 'rounds',
        'first': first_round,
        'count': num_rounds,
        'is_new': is_new,
      }
    )

    def compute():
      if is_new:
        _send_state(self._engine, state, first_round)
      return self._engine.run_rounds(state, first_round, num_rounds)

    self._shared = None  # If the call fails, the other hosts' state is unknown.
    self._shared, metrics = self._hosts.call(compute)
    return self._shared, metrics

  def evaluate(self, *arguments):
    """See `base.Engine`; other hosts wait, and lost hosts are noticed."""
    return self._hosts.call(lambda: self._engine.evaluate(*arguments))

  def pretrain(self, *arguments, **options):
    """See `base.Engine`; other hosts wait, and lost hosts are noticed."""
    return self._hosts.call(
      lambda: self._engine.pretrain(*arguments, **options)
    )


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
    # Only host 0 has drawn secret seeds.
    secret = seeds.as_dict() if run.spec.seed is None else None
    hosts.send({'do': 'open', 'seeds': secret})
    with contextlib.ExitStack() as stack:
      engine = _opened(hosts, stack, open_engine(run, seeds))
      yield LeaderEngine(engine, hosts)

  return open_on_all


def follow(
  hosts: hosts_lib.Hosts,
  run: resolving.Run,
  open_engine: OpenEngine,
) -> None:
  """Executes the leader's commands until the run ends; for other hosts.

  Args:
    hosts: The hosts.
    run: The run.
    open_engine: Opens the engine of one host.

  Raises:
    HostError: If a host is lost.
    LeaderError: If the leader ends the run early.
  """
  with (
    contextlib.ExitStack() as stack,
    signals.StopSignals() as stop,
    warnings.catch_warnings(),
  ):
    warnings.simplefilter('ignore')  # Host 0 shows the same warnings.
    hosts.heed(stop)
    engine = state = None
    while (command := hosts.receive())['do'] != 'end':
      if command['do'] == 'open':
        seeds = privacy.SeedStreams(run.spec.seed)
        if command['seeds'] is not None:
          seeds = privacy.SeedStreams.from_dict(command['seeds'])
        engine = _opened(hosts, stack, open_engine(run, seeds))
        continue
      state = _repeat(hosts, engine, state, command)


def _repeat(
  hosts: hosts_lib.Hosts,
  engine: engine_lib.Engine,
  state: Any,
  command: dict[str, Any],
) -> Any:
  """Runs the rounds that the leader runs, and returns the new state."""

  def compute():
    before = state
    if command['is_new']:
      before = _send_state(engine, None, command['first'])
    return engine.run_rounds(before, command['first'], command['count'])[0]

  try:
    return hosts.call(compute)
  except base_errors.DivergenceError:
    return None  # The leader reports it and decides what to do.
