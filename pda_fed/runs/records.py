"""The contents of a run's files, checked when they are read.

Users may edit these files, and disks may damage them. After a check, readers
can rely on the type of each value. Errors name the field; `outputs` adds the
file's name.
"""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import functools
import io
from typing import Any, Optional
import warnings

from pda_fed import privacy
from pda_fed.common import typed
from pda_fed.common import validate
from pda_fed.runs import spec as spec_lib

FORMAT = 'pda_fed run'
VERSION = 2

# The first columns, in this order.
_FIRST_COLUMNS = (
  'round',
  'epsilon',
  'alpha',
  'train_loss',
  'loss',
  'accuracy',
  'accuracy_with_oov',
  'perplexity',
  'seconds',
  'clients',
  'non_finite_clients',
  'diverged_clients',
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
  """The content of config.json.

  Example: see `RunFolder`.

  Attributes:
    format: What wrote it.
    version: The version of the format.
    spec: What the user asked for.
    settings: Every setting that affects results, as JSON values; see
      `resolving.Run.settings`.
    noise: What the noise depends on, in a sentence.
    libraries: Versions by library.
    command: The command line.
    data: Sizes and origin of the data.
    caveats: What epsilon does not cover, in sentences.
    order_of_sums: What determines the order of sums; see `engines.base`.
    private_search: The guarantee of the private search that released the run.
  """

  format: str
  version: int
  spec: spec_lib.RunSpec
  settings: dict[str, Any]
  noise: str
  libraries: dict[str, str]
  command: str
  data: dict[str, Any]
  caveats: list[str]
  order_of_sums: Optional[dict[str, Any]] = None
  private_search: Optional[str] = None

  def __post_init__(self):
    kinds = {
      'dataset': str,
      'data_hash': str,
      'noise_version': int,
      'seed': Optional[int],
      'model': dict[str, Any],
      'method': dict[str, Any],
    }
    for name, kind in kinds.items():
      typed.cast(self.settings.get(name), kind, f'settings.{name}')
    typed.cast(self.method, str, 'settings.method.name')
    typed.cast(self.engine, str, 'settings.execution.engine')
    _ = self.plan  # Raises if it is damaged.

  @functools.cached_property
  def plan(self) -> privacy.PrivacyPlan:
    """The privacy plan."""
    with warnings.catch_warnings():  # The run has warned of its delta.
      warnings.simplefilter('ignore')
      found = self.settings.get('plan')
      return typed.cast(found, privacy.PrivacyPlan, 'settings.plan')

  @property
  def method(self) -> str:
    """The method's name."""
    return self.settings['method'].get('name')

  @property
  def model(self) -> dict[str, Any]:
    """The model; see `building.model_from_json`."""
    return self.settings['model']

  @property
  def engine(self) -> str:
    """The engine's name."""
    return (self.settings.get('execution') or {}).get('engine')

  @property
  def dataset(self) -> str:
    """The data set's name."""
    return self.settings['dataset']

  @property
  def data_hash(self) -> str:
    """sha256 of the data."""
    return self.settings['data_hash']

  @property
  def seed(self) -> Optional[int]:
    """The seed; None if the run had a secret one."""
    return self.settings['seed']


@dataclasses.dataclass
class _View:
  estimate: float
  interval: list[float]
  one_run_bound: float
  rates_bound: float

  def __post_init__(self):
    if len(self.interval) != 2:
      raise ValueError(f'interval must have two ends. Found {self.interval}.')


@dataclasses.dataclass(kw_only=True)
class _Audit:
  canaries: int
  delta: float
  proven: Optional[float]
  added_noise: float
  most: float
  lower_bound: float
  resolution: float
  views: dict[str, _View]
  copy: bool = False


_Metrics = Optional[dict[str, Optional[float]]]


@dataclasses.dataclass(kw_only=True)
class _Result:
  method: str
  dataset: str
  engine: str
  rounds: int
  epsilon: Optional[float]
  delta: float
  noise_multiplier: float
  seed: Optional[int]
  test: _Metrics
  validation: _Metrics = None
  seconds_per_round: Optional[float] = None
  warm_start: Optional[dict[str, Any]] = None
  audit: Optional[_Audit] = None

  def __post_init__(self):
    validate.integers(0, rounds=self.rounds)
    test = (self.warm_start or {}).get('test')
    typed.cast(test, _Metrics, 'warm_start.test')


@dataclasses.dataclass
class Stopped:
  """The content of stopped.json: a run that was stopped, not killed.

  Attributes:
    round: The number of rounds done.
  """

  round: int

  def __post_init__(self):
    validate.integers(0, round=self.round)


@dataclasses.dataclass
class Running:
  """The content of running.json; see `RunFolder.mark_running`.

  Attributes:
    until: The round of the next save.
    seen_before: Up to which round a killed process may have run.
  """

  until: int
  seen_before: int

  def __post_init__(self):
    validate.integers(0, until=self.until, seen_before=self.seen_before)


def check_result(result: Any) -> None:
  """Raises TypeError or ValueError unless result.json may have this content."""
  typed.from_json(_Result, result)


def check_fit(config: Recorded, result: Mapping[str, Any]) -> None:
  """Raises ValueError unless a result matches a config.

  Args:
    config: The content of config.json.
    result: A result that passed `check_result`.
  """
  names = ('method', 'dataset', 'engine', 'seed')
  pairs = {name: getattr(config, name) for name in names}
  for name in ('rounds', 'delta', 'noise_multiplier'):
    pairs[name] = getattr(config.plan, name)
  for name, expected in pairs.items():
    if result[name] != expected:
      raise ValueError(
        f'must have {name}={expected!r}, like config.json. Found'
        f' {result[name]!r}'
      )


def _parse_rows(
  header: Sequence[str], lines: Sequence[Sequence[str]]
) -> list[dict[str, Optional[float]]]:
  """Returns the rows of a metrics.csv.

  Args:
    header: The names of the columns.
    lines: The cells of each line.

  Returns:
    The rows, with None for empty cells.

  Raises:
    ValueError: If a cell is not a number, a row has the wrong number of cells,
      or rounds do not increase.
  """
  if 'round' not in header or len(set(header)) < len(header):
    raise ValueError('must have distinct column names, one of them round')
  rows: list[dict[str, Optional[float]]] = []
  for number, cells in enumerate(lines, start=2):
    if len(cells) != len(header):
      raise ValueError(
        f'must have {len(header)} cells per line. Found {len(cells)} on line'
        f' {number}'
      )
    try:
      row = {
        n: float(cell) if cell else None
        for n, cell in zip(header, cells, strict=True)
      }
      row['round'] = int(cells[header.index('round')])
    except ValueError as e:
      raise ValueError(f'must have numbers only; line {number}: {e}') from e
    if row['round'] <= (rows[-1]['round'] if rows else -1):
      raise ValueError(
        f'must have increasing rounds. Line {number} does not increase'
      )
    rows.append(row)
  return rows


def _show(name: str, value: Optional[float]) -> str:
  if value is None:
    return ''
  if name == 'epsilon':
    return privacy.round_up(value, 6)
  if isinstance(value, int):
    return str(value)
  return f'{value:.9g}'  # Exact for float32.


def format_csv(rows: Sequence[dict[str, Any]]) -> str:
  """Returns rows as CSV, with empty cells for missing values."""
  names = {name: None for row in rows for name in row}
  first = [n for n in _FIRST_COLUMNS if n in names or n in ('round', 'epsilon')]
  columns = [*first, *(n for n in names if n not in first)]
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(columns)
  for row in rows:
    writer.writerow([_show(n, row.get(n)) for n in columns])
  return text.getvalue()


def parse_csv(text: str) -> list[dict[str, Optional[float]]]:
  """Returns the rows that `format_csv` wrote, with None for empty cells.

  Args:
    text: The content of a metrics.csv.

  Raises:
    ValueError: If the text is not a valid metrics.csv.
  """
  try:
    found = list(csv.reader(io.StringIO(text)))
  except csv.Error as e:
    raise ValueError(f'must be CSV: {e}') from e
  if not found:
    raise ValueError('must have a header. Found nothing.')
  return _parse_rows(found[0], found[1:])
