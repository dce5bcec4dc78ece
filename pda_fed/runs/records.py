"""Checks the contents of a run's files when they are read.

Users may edit these files, and disks may damage them. After a check, readers
can rely on the type of each value. Each function raises a ValueError that names
the field; `outputs` adds the file's name.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import io
import math
from typing import Any, Optional

from pda_fed import privacy

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


def _is_number(value: Any) -> bool:
  is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
  return is_real and math.isfinite(value)


def _is_integer(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
  return isinstance(value, str)


def _is_object(value: Any) -> bool:
  return isinstance(value, dict)


def _is_metrics(value: Any) -> bool:
  return _is_object(value) and all(map(_or_null(_is_number), value.values()))


def _is_list_of(is_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
  return lambda value: isinstance(value, list) and all(map(is_kind, value))


def _or_null(is_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
  return lambda value: value is None or is_kind(value)


def _is_warm_start(value: Any) -> bool:
  return _is_object(value) and _or_null(_is_metrics)(value.get('test'))


def _is_audit(value: Any) -> bool:
  numbers = ('canaries', 'delta', 'added_noise', 'most')
  numbers = (*numbers, 'lower_bound', 'resolution')
  of_view = ('estimate', 'one_run_bound', 'rates_bound')
  return (
    _is_object(value)
    and all(_is_number(value.get(name)) for name in numbers)
    and _or_null(_is_number)(value.get('proven'))
    and _is_object(value.get('views'))
    and all(
      _is_object(view)
      and all(_is_number(view.get(name)) for name in of_view)
      and _is_list_of(_is_number)(view.get('interval'))
      and len(view['interval']) == 2
      for view in value['views'].values()
    )
  )


def _check(
  found: Any,
  needed: Mapping[str, Callable[[Any], bool]],
  optional: Optional[Mapping[str, Callable[[Any], bool]]] = None,
) -> None:
  """Raises ValueError unless fields exist and have the right types."""
  if not isinstance(found, dict):
    raise ValueError(f'must be a JSON object. Found {found!r:.80}')
  for name, is_kind in needed.items():
    if name not in found:
      raise ValueError(f'must have the field {name}')
    if not is_kind(found[name]):
      raise ValueError(f'has an invalid value of {name}: {found[name]!r}')
  for name, is_kind in (optional or {}).items():
    if name in found and not is_kind(found[name]):
      raise ValueError(f'has an invalid value of {name}: {found[name]!r}')


def check_config(config: Any) -> None:
  """Raises ValueError unless this is valid content of config.json."""
  _check(
    config,
    {'settings': _is_object, 'noise': _is_text, 'libraries': _is_object},
    {
      'caveats': _is_list_of(_is_text),
      'order_of_sums': _is_object,
      'private_search': _is_text,
    },
  )
  _check(config['settings'], {'engine': _is_text, 'plan': _is_object})


def check_result(result: Any) -> None:
  """Raises ValueError unless this is valid content of result.json."""
  _check(
    result,
    {
      'method': _is_text,
      'dataset': _is_text,
      'engine': _is_text,
      'rounds': _is_integer,
      'epsilon': _or_null(_is_number),
      'delta': _is_number,
      'noise_multiplier': _is_number,
      'seed': _or_null(_is_integer),
      'test': _or_null(_is_metrics),
    },
    {'warm_start': _or_null(_is_warm_start), 'audit': _or_null(_is_audit)},
  )


def caveats(config: Mapping[str, Any]) -> list[str]:
  """Returns what the epsilon of a run does not cover, most serious first.

  Args:
    config: A config that passed `check_config`.
  """
  settings, found = config['settings'], list(config.get('caveats', []))
  if settings.get('engine') == 'tff' and settings.get('noise_version', 0) < 5:
    # SECURITY.md has this flaw.
    found.insert(
      0,
      'Do not rely on the epsilon of this run: its noise had a key of 32 bits'
      ' (TFF, noise_version below 5). Train it again.',
    )
  return found


def check_fit(config: Mapping[str, Any], result: Mapping[str, Any]) -> None:
  """Raises ValueError unless a result matches a config.

  Args:
    config: A config that passed `check_config`.
    result: A result that passed `check_result`.
  """
  settings, plan = config['settings'], config['settings']['plan']
  pairs = {
    **{n: settings.get(n) for n in ('method', 'dataset', 'engine', 'seed')},
    **{n: plan.get(n) for n in ('rounds', 'delta', 'noise_multiplier')},
  }
  for name, expected in pairs.items():
    if result[name] != expected:
      raise ValueError(
        f'must have {name}={expected!r}, like config.json. Found'
        f' {result[name]!r}'
      )


def check_stopped(mark: Any) -> None:
  """Raises ValueError unless this is valid content of stopped.json."""
  _check(mark, {'round': _is_integer})


def check_running(mark: Any) -> None:
  """Raises ValueError unless this is valid content of running.json."""
  _check(mark, {'until': _is_integer, 'seen_before': _is_integer})


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
