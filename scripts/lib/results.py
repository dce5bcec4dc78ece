"""What programs print: the plan of a run, its result, a comparison."""

from collections.abc import Sequence
import math
import pathlib
from typing import Optional, TextIO
import warnings

from pda_fed import audit
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.common import tables
from pda_fed.compare import report as report_lib
from pda_fed.runs import overview

_MAX_ROWS = 12


def show_plan(
  run: runs_lib.Run, file: Optional[TextIO] = None, cautions: Sequence[str] = ()
) -> None:
  """Prints the plan of a run, with its epsilon.

  Args:
    run: The run.
    file: Where to print; by default to stdout.
    cautions: More warnings.
  """
  spent = overview.spent(run.plan, [run.plan.rounds])
  epsilon = None if spent is None else spent[run.plan.rounds]
  num_weights = run.model.num_parameters
  print('\n'.join(overview.describe(run, epsilon, num_weights)), file=file)
  found = overview.cautions(run.plan, epsilon, num_weights)
  for caution in (*cautions, *found):
    warnings.warn(caution, stacklevel=2)


def show_report(report: report_lib.Report, folder: pathlib.Path) -> None:
  """Writes a comparison to a folder, and prints it."""
  report.write(folder)
  print('\n'.join(report.lines()))
  print(f'\nThe page: {(folder / "index.html").resolve()}')


def _thinned(rows: list) -> list:
  """Returns about a dozen rows, including the first and the last."""
  step = -(-len(rows) // _MAX_ROWS)
  return [*rows[:-1:step], rows[-1]] if len(rows) > 1 else rows


def show(folder: runs_lib.RunFolder) -> None:
  """Prints rows of metrics.csv, the test metrics and the guarantee."""
  config, rows, result = folder.read_finished()
  shown = {'loss': '{:.3f}', 'accuracy': '{:.2%}', 'perplexity': '{:.2f}'}
  if any(row.get('diverged_clients') for row in rows):
    shown['diverged_clients'] = '{:.1f}'
    rows[0]['diverged_clients'] = 0.0  # No client has trained yet.
  # A run without validation data only has test metrics.
  known = {**rows[-1], **(result['test'] or {})}
  shown = {n: form for n, form in shown.items() if known.get(n) is not None}

  def cells(values: dict[str, float]) -> list[str]:
    # Absent: not evaluated. None: null in JSON, a value that is not finite.
    found = {n: values.get(n, '') for n in shown}
    return [
      form.format(math.nan if found[n] is None else found[n])
      if found[n] != ''
      else ''
      for n, form in shown.items()
    ]

  def spent(row) -> str:
    epsilon = row['epsilon']
    return '?' if epsilon is None else privacy.round_up(epsilon)

  table = [[r['round'], spent(r), *cells(r)] for r in _thinned(rows)]
  if result['test'] is not None:
    table.append(['test', table[-1][1], *cells(result['test'])])
  print(tables.format_table(['round', 'epsilon', *shown], table))
  print()
  if result['epsilon'] is None and config.plan.noise_multiplier:
    print(
      'Epsilon is unknown: dp_accounting is not installed. scripts.privacy'
      ' computes it where it is.'
    )
  else:
    print(config.plan.statement(rows[-1]['epsilon']))
  for line in (config.noise, *config.caveats):
    print(line)
  if result.get('audit'):
    print()
    for line in audit.describe(result['audit']):
      print(line)
  print(f'Wrote {folder.path}.')
