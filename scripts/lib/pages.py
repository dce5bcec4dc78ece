"""Writes and prints a comparison: tables, figures, page, verdict."""

from collections.abc import Sequence
import pathlib
import warnings

from pda_fed import errors
from pda_fed import methods
from pda_fed.common import files
from pda_fed.compare import audits
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import figures
from pda_fed.compare import findings
from pda_fed.compare import jobs
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import report
from pda_fed.compare import result_tables
from pda_fed.compare import tuning
from pda_fed.runs import outputs
from scripts.lib import cli


def _has_curves(comparison: comparison_lib.Comparison) -> bool:
  names = [f'{p}{m}' for m in comparison.metrics for p in ('', 'test_')]
  runs = [run for group in comparison.runs.values() for run in group]
  rows = [row for run in runs for row in run.rows]
  return any(row.get(name) is not None for row in rows for name in names)


def _draw(comparison: comparison_lib.Comparison, folder: pathlib.Path):
  if not _has_curves(comparison):
    warnings.warn(
      'No figures: runs without validation data have no curves. --test_curve'
      ' draws test metrics.',
      stacklevel=1,
    )
    return {}
  try:
    return figures.draw_comparison(comparison, folder)
  except ImportError as e:
    warnings.warn(f'No figures: {e}.', stacklevel=1)
    return {}


def _write(
  comparison: comparison_lib.Comparison,
  folder: pathlib.Path,
  notes: Sequence[str],
  tuned: tuning.Tuned,
  missing: Sequence[str],
) -> None:
  page = report.build_page(
    comparison,
    _draw(comparison, folder),
    cli.command_line(),
    notes,
    tuned.choices,
    tuned.remarks,
    missing,
  )
  lines = [*_verdict(comparison), *missing, *findings.note(comparison, 'Bold')]
  markdown = [result_tables.as_markdown(comparison), *(f'{n}\n' for n in lines)]
  for name, text in {
    'table.md': '\n'.join(markdown),
    'table.tex': result_tables.as_latex(comparison),
    'index.html': page,
  }.items():
    files.write_atomically(folder / name, text.encode())


def _guarantees(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the guarantees of methods and what they leave out."""
  found = comparison_lib.guarantees(comparison)
  promises = list(found)
  if len(found) > 1:
    promises = [
      f'{", ".join(methods.title(m) for m in of)}: {line}'
      for line, of in found.items()
    ]
  return [*promises, *comparison_lib.caveats(comparison)]


def _verdict(comparison: comparison_lib.Comparison) -> list[str]:
  """Returns the findings, with reservations."""
  return [
    findings.headline(comparison),
    *findings.others(comparison),
    *findings.by_other_metrics(comparison),
    findings.selection(comparison),
    *findings.unequal_privacy(comparison),
  ]


def missing(failures: Sequence[jobs.Failure]) -> list[str]:
  """Returns which runs failed: without them, a method may look too good."""
  if not failures:
    return []
  diverged = errors.DivergenceError.exit_code
  names = [
    f.job.name + (' (diverged)' if f.exit_code == diverged else '')
    for f in failures
  ]
  return [f'Left out because they failed: {", ".join(names)}.']


def show(
  runs: list[comparison_lib.Run],
  folder: pathlib.Path,
  *,
  metrics: Sequence[str],
  select_by: str,
  notes: Sequence[str],
  tuned: tuning.Tuned,
  missing: Sequence[str] = (),
) -> None:
  """Writes and prints a comparison.

  Args:
    runs: The runs to compare.
    folder: Where to write.
    metrics: The metrics to show, in addition to `select_by`.
    select_by: The metric that decides the winner.
    notes: Sentences on privacy.
    tuned: Settings of methods, and how they were chosen.
    missing: Sentences on runs that failed.
  """
  comparison = comparison_lib.compare(runs, metrics, select_by)
  _write(comparison, folder, notes, tuned, missing)
  print(result_tables.as_text(comparison))
  print()
  for line in (*_verdict(comparison), *missing):
    print(line)
  audited = audits.sentences(audits.found(comparison.runs))
  chosen = []
  if tuned.choices is not None:
    command = f'The search was: {tuned.choices.command}'
    chosen = [*tuned.choices.lines(), command]
  lines = [*chosen, *_guarantees(comparison), *audited, *notes]
  for line in dict.fromkeys(lines):
    print(f'\n{line}')
  print(f'\nThe page: {(folder / "index.html").resolve()}')


class MetricsCheck:
  """Raises as soon as a finished run lacks a metric.

  It is called with the running jobs and those that have ended.
  """

  def __init__(self, metrics: Sequence[str], select_by: str):
    """Initializes the check.

    Args:
      metrics: The metrics to show.
      select_by: The metric that decides the winner.
    """
    self._wanted = metrics, select_by
    self._num_ended = 0

  def __call__(self, running, ended) -> None:
    del running
    for job in ended[self._num_ended :]:
      result = outputs.RunFolder(job.folder).read_result()
      if result is not None and result['test'] is not None:
        metrics_lib.to_show(list(result['test']), *self._wanted)
    self._num_ended = len(ended)
