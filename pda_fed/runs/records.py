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

from pda_fed import audit
from pda_fed import privacy
from pda_fed.common import typed
from pda_fed.common import validate
from pda_fed.runs import spec as spec_lib

FORMAT = 'pda_fed run'
VERSION = 2

# The first columns, in this order.
_FIRST_COLUMNS = (
  *('round', 'epsilon', 'alpha', 'train_loss', 'loss'),
  *('accuracy', 'accuracy_with_oov', 'perplexity', 'seconds'),
  *('clients', 'non_finite_clients', 'diverged_clients'),
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
    for name, kind in {
      'dataset': str,
      'data_hash': str,
      'noise_version': int,
      'model': dict[str, Any],
      'method': dict[str, Any],
    }.items():
      typed.cast(self.settings.get(name), kind, f'settings.{name}')
    typed.cast(self.method, str, 'settings.method.name')
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
    return self.spec.execution.engine

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
    return self.spec.seed


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
  audit: Optional[dict[str, Any]] = None

  def __post_init__(self):
    validate.integers(0, rounds=self.rounds)
    test = (self.warm_start or {}).get('test')
    typed.cast(test, _Metrics, 'warm_start.test')
    if self.audit is not None:
      report = {'copy': False, 'lower_bound': None, **self.audit}
      typed.cast(report.pop('copy'), bool, 'audit.copy')
      typed.cast(report.pop('lower_bound'), float, 'audit.lower_bound')
      typed.from_json(audit.AuditReport, report, 'audit')


@dataclasses.dataclass
class Running:
  """The content of running.json; see `resuming.mark_running`.

  Attributes:
    until: Up to which round the newest process may have run.
    seen_before: Up to which round a killed process before it may have run.
  """

  until: int
  seen_before: int

  def __post_init__(self):
    validate.integers(0, until=self.until, seen_before=self.seen_before)

  @property
  def seen(self) -> int:
    """Up to which round any process may have run."""
    return max(self.until, self.seen_before)


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
    ValueError: If it is not CSV, a cell is not a number, a line has too many or
      too few cells, or rounds do not increase.
  """
  reader = csv.reader(io.StringIO(text))
  rows: list[dict[str, Optional[float]]] = []
  try:
    header = next(reader, [])
    if 'round' not in header or len(set(header)) < len(header):
      raise ValueError('it must have distinct columns, one of them round')
    for cells in reader:
      pairs = zip(header, cells, strict=True)
      row = {name: float(cell) if cell else None for name, cell in pairs}
      row['round'] = int(cells[header.index('round')])
      if row['round'] <= (rows[-1]['round'] if rows else -1):
        raise ValueError('rounds must increase')
      rows.append(row)
  except (csv.Error, ValueError) as e:
    raise ValueError(f'line {reader.line_num}: {e}') from e
  return rows
