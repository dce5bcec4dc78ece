"""Measures how rounds scale.

    python -m bench.scaling --output_dir=out/scaling
    python -m bench.scaling --axes=cohort --engines=jax --repeats=5

Measures whole rounds of the engines, including the token store, of DP-FedAvg
with a small LSTM. The subject is growth, not the model; for the paper's model
see `bench.vectorized_round` and `bench.federated_round`. Points of an axis are
measured alternately, so that other load on the machine affects all of them
alike. Writes a table, scaling.csv, scaling.png and scaling.svg.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
import multiprocessing
import pathlib
import statistics
import time

from absl import flags
import data_prep
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.runs.engines import stores
import tqdm

from bench import points as points_lib
from bench import synthetic_store

_AXIS = flags.DEFINE_list(
  'axes', ['cohort', 'users', 'rounds', 'memory'], 'Quantities to vary.'
)
_ENGINES = flags.DEFINE_list(
  'engines', ['jax', 'tff'], 'Engines to measure: jax, tff or both.'
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'out/scaling', 'Folder of the results.'
)
_WORK_DIR = flags.DEFINE_string(
  'work_dir',
  'data/scaling',
  'Folder of the stores, about 200 MB. They are kept.',
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'Number of measurements of each point.', lower_bound=1
)
_COHORTS = flags.DEFINE_list(
  'cohorts',
  ['10', '30', '100', '300', '1000', '2000'],
  'Numbers of clients of a round.',
)
_MAX_TFF_COHORT = flags.DEFINE_integer(
  'max_tff_cohort', 2000, 'Largest cohort for TFF, which takes longer.'
)
_USERS = flags.DEFINE_list(
  'users',
  ['1000', '10000', '100000', '1000000'],
  'Numbers of users in the store.',
)

_SPEC = models.RecurrentSpec(num_words=1000, embedding_size=16, lstm_size=32)
_COHORT = 100  # Unless it varies.
_ROUNDS = (5, 10, 20, 40)


def _config(
  store_path: pathlib.Path, engine: str, cohort: int, sampling: str
) -> runs_lib.FederatedConfig:
  store = data_prep.open_store(store_path)
  population = len(store.users('private'))
  return runs_lib.FederatedConfig(
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
  """Runs rounds of an engine."""

  def __init__(self, engine: runs_lib.Engine):
    self._engine = engine
    self._state = engine.initialize()
    self._done = 0

  def __call__(self, rounds: int = 1) -> float:
    """Runs rounds and returns their seconds."""
    started = time.perf_counter()
    self._state, _ = self._engine.run_rounds(self._state, self._done, rounds)
    self._done += rounds
    return time.perf_counter() - started


def _in_turn(
  runners: dict[int, Callable[[], float]], description: str
) -> dict[int, float]:
  """Returns the median seconds of each, measured alternately."""
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
  """Sets up one runtime for all TFF engines; does nothing for JAX."""
  if engine != 'tff':
    yield
    return
  from pda_fed.tff import runtime  # It imports TFF.

  with runtime.in_process():
    yield


def _build_engine(config: runs_lib.FederatedConfig) -> runs_lib.Engine:
  seeds = privacy.SeedStreams(config.seed)
  if config.engine == 'tff':
    from pda_fed.runs.engines import tff_federated

    return tff_federated.TffEngine(config, seeds)
  from pda_fed.runs.engines import jax_federated

  return jax_federated.JaxEngine(config, seeds)


def measure_cohorts(engine: str) -> list[points_lib.Point]:
  """Measures a round by size of the cohort, with 16 sentences per user."""
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


# Fixed sizes give points their exact x. Poisson sampling is used where drawing
# a cohort among all users is part of the measurement.
_FIXED, _POISSON = 'fixed_size', 'poisson'


def measure_users(engine: str) -> list[points_lib.Point]:
  """Measures a round by users in the store, with 4 sentences each."""
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
  """Measures seconds and memory of a process by number of rounds."""
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
  """Returns this process's memory, without mapped files."""
  with open('/proc/self/status') as f:
    fields = dict(line.split(':', 1) for line in f)
  return int(fields['RssAnon'].split()[0]) / 1024


def _memory_of(store: pathlib.Path, engine: str) -> float:
  """Returns the memory of training. Runs in a separate process."""
  _prepare()
  with _tff_runtime(engine):
    run = _Runner(_build_engine(_config(store, engine, _COHORT, _POISSON)))
    run(3)
    return _own_megabytes()


def measure_memory(engine: str) -> list[points_lib.Point]:
  """Measures the memory of training by users in the store."""
  points = []
  context = multiprocessing.get_context('spawn')
  for users in map(int, _USERS.value):
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
      found = pool.submit(_memory_of, _store(users, 4), engine).result()
    points.append(points_lib.Point('memory', engine, users, megabytes=found))
  return points


_MEASURE = {
  'cohort': measure_cohorts,
  'users': measure_users,
  'rounds': measure_rounds,
  'memory': measure_memory,
}


def _prepare() -> None:
  """Must run before JAX is used."""
  from pda_fed.jax import devices

  devices.use_all_cores()


def main() -> None:
  """Measures the axes that the flags name."""
  for name in _AXIS.value:
    if name not in _MEASURE:
      raise ValueError(f'--axes must be among {[*_MEASURE]}. Found {name!r}.')
  _prepare()
  folder = pathlib.Path(_OUTPUT_DIR.value)
  folder.mkdir(parents=True, exist_ok=True)
  points: list[points_lib.Point] = []
  for axis in _AXIS.value:
    for engine in _ENGINES.value:
      points += _MEASURE[axis](engine)
      points_lib.write_csv(points, folder / 'scaling.csv')
  print(points_lib.format_points(points))
  print('\n'.join(points_lib.describe(points)))
  from bench import scaling_figure

  for path in scaling_figure.draw(points, folder):
    print(f'Wrote {path}.')


if __name__ == '__main__':
  cli.run(main)
