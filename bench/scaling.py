"""How rounds grow, and the plan for full size.

    python -m bench.scaling --output_dir=out/scaling
    python -m bench.scaling --axes=cohort --engines=jax --repeats=5
    python -m bench.scaling --axes=processes --repeats=9
    python -m bench.scaling --axes=plan

Whole rounds of the engines, from the token store on, of DP-FedAvg with a small
LSTM: what grows is the subject here, not the model (`bench.vectorized_round`
and `bench.federated_round` have the paper's). Points of an axis are measured in
turn, so that a busy machine is busy for all. Leaves a table, scaling.csv,
scaling.png and scaling.svg.

The axis `processes` shares rounds between processes (`bench.processes`),
`pieces` measures what the plan is made of (`bench.measure_pieces`), and `plan`
predicts what StackOverflow takes (`bench.full_size`).
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from absl import flags
import data_prep
from pda_fed import experiments
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed.experiments.engines import stores
import tqdm

from bench import pieces as pieces_lib
from bench import plan_tables
from bench import points as points_lib
from bench import processes
from bench import synthetic_store

_AXES = ('cohort', 'users', 'rounds', 'memory', 'workers', 'processes', 'plan')
_AXIS = flags.DEFINE_list(
  'axes', list(_AXES), 'What is varied; pieces measures those of the plan.'
)
_ENGINES = flags.DEFINE_list('engines', ['jax', 'tff'], 'jax, tff or both.')
_OUTPUT_DIR = flags.DEFINE_string('output_dir', 'out/scaling', 'For results.')
_WORK_DIR = flags.DEFINE_string(
  'work_dir', 'data/scaling', 'For stores, 200 MB of them; kept.'
)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Of each point.', lower_bound=1)
_COHORTS = flags.DEFINE_list(
  'cohorts', ['10', '30', '100', '300', '1000', '2000'], 'Clients of a round.'
)
_MAX_TFF_COHORT = flags.DEFINE_integer(
  'max_tff_cohort', 2000, 'The largest cohort for TFF, which takes longer.'
)
_USERS = flags.DEFINE_list(
  'users', ['1000', '10000', '100000', '1000000'], 'Users in the store.'
)
_WORKERS = flags.DEFINE_list('workers', ['1', '2', '4'], 'On this machine.')
_PIECES = flags.DEFINE_string(
  'pieces', str(pieces_lib.DEFAULT_FILE), 'What the plan is made of.'
)
_DEVICES = flags.DEFINE_list(
  'devices', ['1', '8', '32'], 'Numbers of GPUs that the plan is for.'
)
_LINK = flags.DEFINE_list(
  'link',
  None,
  'Between devices: GB/s,ms. Default: those of --pieces.',
)

_SPEC = models.RecurrentSpec(num_words=1000, embedding_size=16, lstm_size=32)
_COHORT = 100  # Where it does not vary.
_ROUNDS = (5, 10, 20, 40)


def _config(
  store_path: pathlib.Path, engine: str, cohort: int, sampling: str
) -> experiments.FederatedConfig:
  store = data_prep.open_store(store_path)
  population = len(store.users('private'))
  return experiments.FederatedConfig(
    method=methods.ColdStart(),
    dataset='scaling',
    data_dir=str(store_path),
    data_hash=stores.data_hash(store),
    engine=engine,
    spec=_SPEC,
    seed=0,
    plan=privacy.PrivacyPlan(
      population=population,
      expected_cohort=cohort,
      rounds=10_000,
      delta=1e-9,
      noise_multiplier=0.4,
      clip_norm=0.3,
      sampling=sampling,
    ),
  )


def _store(num_users: int, sentences: int) -> pathlib.Path:
  return synthetic_store.write_store(
    pathlib.Path(_WORK_DIR.value),
    num_users=num_users,
    sentences_per_user=sentences,
    num_words=_SPEC.num_words,
  )


class _Runner:
  """An engine that is asked for one round after the other."""

  def __init__(self, engine: experiments.Engine):
    self._engine = engine
    self._state = engine.initialize()
    self._done = 0

  def __call__(self, rounds: int = 1) -> float:
    """Returns the seconds of some rounds."""
    started = time.perf_counter()
    self._state, _ = self._engine.run_rounds(self._state, self._done, rounds)
    self._done += rounds
    return time.perf_counter() - started


def _in_turn(
  runners: dict[int, Callable[[], float]], description: str
) -> dict[int, float]:
  """Median seconds of each, measured in turn after a round to warm up."""
  seconds: dict[int, list[float]] = {x: [] for x in runners}
  with tqdm.tqdm(
    total=(_REPEATS.value + 1) * len(runners), desc=description, disable=None
  ) as bar:
    for _ in range(_REPEATS.value + 1):
      for x, run in runners.items():
        seconds[x].append(run())
        bar.update()
  return {x: statistics.median(s[1:]) for x, s in seconds.items()}


@contextlib.contextmanager
def _tff_runtime(engine: str) -> Iterator[None]:
  """One runtime for all engines of TFF; nothing for others."""
  if engine != 'tff':
    yield
    return
  from pda_fed import runtime  # It imports TFF.

  with runtime.in_process():
    yield


def _build_engine(config: experiments.FederatedConfig) -> experiments.Engine:
  seeds = privacy.SeedStreams(config.seed)
  if config.engine == 'tff':
    from pda_fed.experiments.engines import tff_federated

    return tff_federated.TffEngine(config, seeds)
  from pda_fed.experiments.engines import jax_federated

  return jax_federated.JaxEngine(config, seeds)


def measure_cohorts(engine: str) -> list[points_lib.Point]:
  """Seconds of a round by its cohort, users of 16 sentences."""
  store = _store(4000, 16)
  cohorts = list(map(int, _COHORTS.value))
  if engine == 'tff':
    cohorts = [c for c in cohorts if c <= _MAX_TFF_COHORT.value]
  with _tff_runtime(engine):
    runners = {
      cohort: _Runner(_build_engine(_config(store, engine, cohort, _FIXED)))
      for cohort in cohorts
    }
    found = _in_turn(runners, f'cohort, {engine}')
  return [points_lib.Point('cohort', engine, x, s) for x, s in found.items()]


# Of a fixed size, so that points are what they are called; Poisson cohorts
# where the draw of one among all users is part of the subject.
_FIXED, _POISSON = 'fixed_size', 'poisson'


def measure_users(engine: str) -> list[points_lib.Point]:
  """Seconds of a round by the users in the store, 4 sentences each."""
  with _tff_runtime(engine):
    runners = {
      users: _Runner(
        _build_engine(_config(_store(users, 4), engine, _COHORT, _POISSON))
      )
      for users in map(int, _USERS.value)
    }
    found = _in_turn(runners, f'users, {engine}')
  return [points_lib.Point('users', engine, x, s) for x, s in found.items()]


def measure_rounds(engine: str) -> list[points_lib.Point]:
  """Seconds and memory of a process after numbers of rounds."""
  points, seconds, done = [], 0.0, 0
  with _tff_runtime(engine):
    run = _Runner(
      _build_engine(_config(_store(4000, 16), engine, _COHORT, _FIXED))
    )
    run()
    for rounds in _ROUNDS:
      seconds += run(rounds - done)
      done = rounds
      points.append(
        points_lib.Point('rounds', engine, rounds, seconds, _own_megabytes())
      )
  return points


def _own_megabytes() -> float:
  """Memory of this process alone; mapped files are the system's to drop."""
  with open('/proc/self/status') as f:
    fields = dict(line.split(':', 1) for line in f)
  return int(fields['RssAnon'].split()[0]) / 1024


def _memory_of(store: pathlib.Path, engine: str) -> float:
  """Runs in a process of its own."""
  _prepare()
  with _tff_runtime(engine):
    run = _Runner(_build_engine(_config(store, engine, _COHORT, _POISSON)))
    run(3)
    return _own_megabytes()


def measure_memory(engine: str) -> list[points_lib.Point]:
  """Memory of a process that trains, by the users in the store."""
  points = []
  context = multiprocessing.get_context('spawn')
  for users in map(int, _USERS.value):
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
      found = pool.submit(_memory_of, _store(users, 4), engine).result()
    points.append(points_lib.Point('memory', engine, users, megabytes=found))
  return points


@contextlib.contextmanager
def _served_workers(count: int) -> Iterator[list[str]]:
  """Workers as on other machines, each on one core; yields their addresses."""
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    addresses = [f'unix:{folder}/{i}.sock' for i in range(count)]
    for address in addresses:
      process = subprocess.Popen(
        [
          *(sys.executable, '-m', 'scripts.worker', f'--listen={address}'),
          *('--threads=1', '--max_concurrent_clients=1'),
        ],
        stdout=subprocess.PIPE,
      )
      stack.callback(process.wait)
      stack.callback(process.terminate)
      process.stdout.readline()  # It says when it is ready.
    yield addresses


def measure_workers(engine: str) -> list[points_lib.Point]:
  """Seconds of a round by the number of workers, one core each.

  Rounds of a number of workers are measured one after the other, since each
  has a TFF context of its own; numbers of workers are measured in turn.
  """
  if engine != 'tff':
    return []
  from pda_fed import runtime

  store = _store(4000, 16)
  counts = list(map(int, _WORKERS.value))
  seconds: dict[int, list[float]] = {count: [] for count in counts}
  with _served_workers(max(counts)) as addresses:
    for _ in range(2):
      for count in counts:
        with runtime.remote_workers(addresses[:count]):
          run = _Runner(_build_engine(_config(store, engine, _COHORT, _FIXED)))
          run()
          seconds[count] += [run() for _ in range(_REPEATS.value)]
  return [
    points_lib.Point('workers', engine, count, statistics.median(s))
    for count, s in seconds.items()
  ]


def measure_processes(engine: str) -> list[points_lib.Point]:
  """Weak scaling over processes of one core, and the sum over processes."""
  if engine != 'jax':
    return []
  found, sums = processes.measure(_REPEATS.value)
  print(processes.report(found, sums))
  link = sums.link()
  path = pathlib.Path(_OUTPUT_DIR.value) / 'pieces.json'
  pieces_lib.save(path, links=[dataclasses.asdict(link)])
  return [
    points_lib.Point(f'processes, {of.work}', engine, x, seconds)
    for of in found
    for x, seconds in ((1, of.one), (2, of.shared))
  ] + [
    points_lib.Point(f'sum, {kind}', engine, sums.size, seconds)
    for kind, seconds in (('ordered', sums.ordered), ('psum', sums.psum))
  ]


def measure_pieces() -> None:
  """Measures what the plan is made of, and writes pieces.json."""
  from bench import measure_pieces as lib

  entries = lib.measure(pathlib.Path(_WORK_DIR.value), _REPEATS.value)
  path = pathlib.Path(_OUTPUT_DIR.value) / 'pieces.json'
  pieces_lib.save(path, devices=entries)
  for entry in entries:
    print(f'{entry["device"]}: {pieces_lib.from_json(entry).cost}')
  print(f'Wrote {path}.')


def show_plan() -> None:
  """Prints the plan for full size."""
  found = pieces_lib.load(pathlib.Path(_PIECES.value))
  if _LINK.value:
    if len(_LINK.value) != 2:
      raise ValueError(f'--link must be GB/s,ms. Found {_LINK.value}.')
    rate, latency = map(float, _LINK.value)
    name = f'{rate:g} GB/s, {latency:g} ms'
    found = found._replace(
      links=[pieces_lib.Link(name, rate * 1e9, latency / 1000)]
    )
  print(plan_tables.format_plan(*found, list(map(int, _DEVICES.value))))


_MEASURE = {
  'cohort': measure_cohorts,
  'users': measure_users,
  'rounds': measure_rounds,
  'memory': measure_memory,
  'workers': measure_workers,
  'processes': measure_processes,
}
_REPORTS = {'pieces': measure_pieces, 'plan': show_plan}


def _prepare() -> None:
  """Before anything of JAX runs."""
  from pda_fed.vectorized import devices

  devices.use_all_cores()


def main() -> None:
  """Measures the axes that the flags name."""
  known = [*_MEASURE, *_REPORTS]
  for name in _AXIS.value:
    if name not in known:
      raise ValueError(f'--axes must be of {known}. Found {name!r}.')
  _prepare()
  folder = pathlib.Path(_OUTPUT_DIR.value)
  folder.mkdir(parents=True, exist_ok=True)
  points: list[points_lib.Point] = []
  for axis in _AXIS.value:
    if axis in _REPORTS:
      _REPORTS[axis]()
      continue
    for engine in _ENGINES.value:
      points += _MEASURE[axis](engine)
      points_lib.write_csv(points, folder / 'scaling.csv')
  if not points:
    return
  print(points_lib.format_points(points))
  print('\n'.join(points_lib.describe(points)))
  from bench import scaling_figure

  for path in scaling_figure.draw(points, folder):
    print(f'Wrote {path}.')


if __name__ == '__main__':
  cli.run(main)
