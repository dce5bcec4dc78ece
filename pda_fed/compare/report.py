"""The results of a comparison: its page, its tables, what a terminal shows.

The page is a single file that needs no other files and no network.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import html
import pathlib
import string
from typing import Any, Optional
import warnings

from pda_fed.common import files
from pda_fed.common import typed
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import figures as figures_lib
from pda_fed.compare import findings
from pda_fed.compare import names
from pda_fed.compare import tables
from pda_fed.runs import disclosure

_PAGE = pathlib.Path(__file__).with_name('page.html')
# Panels of figures as SVG, by the methods that they show.
Panels = Mapping[tuple[str, ...], Sequence[str]]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Report:
  """What is shown of a comparison.

  Attributes:
    comparison: The comparison.
    command: The command that reproduces it.
    notes: Sentences on what epsilon does not cover, besides those of runs.
    choices: How settings were chosen; None if no search is known.
    remarks: Sentences on the choice of settings.
    missing: Sentences on runs that are left out.
  """

  comparison: comparison_lib.Comparison
  command: str
  notes: Sequence[str] = ()
  choices: Optional[choices_lib.Choices] = None
  remarks: Sequence[str] = ()
  missing: Sequence[str] = ()

  def lines(self) -> list[str]:
    """Returns what a terminal shows: table, verdict, choices, guarantees."""
    found = findings.guarantees(self.comparison)
    promises = list(found)
    if len(found) > 1:
      promises = [
        f'{", ".join(map(names.method_title, of))}: {line}'
        for line, of in found.items()
      ]
    chosen = []
    if self.choices is not None:
      command = f'The search was: {self.choices.command}'
      chosen = [*self.choices.lines(), command]
    paragraphs = [
      *chosen,
      *promises,
      *findings.caveats(self.comparison),
      *findings.of_audits(self.comparison),
      *self.notes,
    ]
    return [
      tables.of_comparison(self.comparison).as_text(),
      '',
      *findings.verdict(self.comparison),
      *self.missing,
      *(f'\n{line}' for line in dict.fromkeys(paragraphs)),
    ]

  def write(self, folder: pathlib.Path) -> None:
    """Writes figures, table.md and index.html."""
    table = tables.of_comparison(self.comparison)
    lines = [*findings.verdict(self.comparison), *self.missing]
    lines += findings.note(self.comparison, 'Bold')
    page = build_page(self, _draw(self.comparison, folder))
    for name, text in (
      ('table.md', table.as_markdown(lines)),
      ('index.html', page),
    ):
      files.write_atomically(folder / name, text.encode())


def of_runs(
  folders: Iterable[pathlib.Path],
  metrics: Sequence[str],
  select_by: str,
  **about,
) -> Report:
  """Returns the report of finished runs.

  Args:
    folders: Folders of the runs.
    metrics: The metrics to show; see `names.to_show`.
    select_by: The metric that decides the winner.
    **about: More of the `Report`.
  """
  runs = list(map(comparison_lib.load_run, folders))
  compared = comparison_lib.compare(runs, metrics, select_by)
  return Report(comparison=compared, **about)


def _draw(
  comparison: comparison_lib.Comparison, folder: pathlib.Path
) -> Panels:
  columns = [f'{p}{m}' for m in comparison.metrics for p in ('', 'test_')]
  rows = [row for run in comparison.all_runs for row in run.rows]
  reason = (
    'runs without validation data have no curves. --test_curve draws test'
    ' metrics'
  )
  if any(row.get(name) is not None for row in rows for name in columns):
    try:
      return figures_lib.draw_comparison(comparison, folder)
    except ImportError as e:
      reason = str(e)
  warnings.warn(f'No figures: {reason}.', stacklevel=3)
  return {}


def _escape(value: Any) -> str:
  return html.escape(str(value))


def _paragraphs(texts: Iterable[str], style: str) -> str:
  return ''.join(f'<p class="{style}">{_escape(text)}</p>' for text in texts)


def _items(texts: Iterable[str], style: str) -> str:
  items = ''.join(f'<li>{_escape(text)}</li>' for text in texts)
  return f'<ul class="{style}">{items}</ul>' if items else ''


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  return tables.Table(header, rows, style='settings').as_html()


def _details(title: str, content: str, *, is_open: bool = False) -> str:
  state = ' open' if is_open else ''
  return (
    f'<details{state}><summary>{_escape(title)}</summary>{content}</details>'
  )


def _lead(report: Report) -> str:
  """Returns the text below the headline."""
  of = report.comparison
  lines = [*findings.others(of), *findings.disagreement(of)]
  warned = [*report.missing, *findings.unequal_privacy(of)]
  return (
    _paragraphs(lines, 'lead')
    + _paragraphs(warned, 'warning')
    + _paragraphs([findings.selection(of)], 'note')
  )


def _subject(comparison: comparison_lib.Comparison) -> str:
  """Returns a summary of the runs."""
  some = comparison.all_runs[0]
  plan = some.plan
  sizes = sorted({len(runs) for runs in comparison.runs.values()})
  count = ' or '.join(map(str, sizes))
  return (
    f'{plan.rounds:,} rounds, {plan.expected_cohort:g} of'
    f' {plan.population:,} {plan.unit}s in each; {count}'
    f' {"seed" if sizes == [1] else "seeds"} per method; engine'
    f' {some.result["engine"]}.'
  )


def _evidence(comparison: comparison_lib.Comparison) -> str:
  """Returns a table of the best method by each metric against all others."""
  rows = []
  for metric, verdict in comparison.verdicts.items():
    for rival, lead in verdict.leads.items():
      size, interval = findings.writer(comparison).difference(verdict, rival)
      rows.append(
        [
          names.metric_name(metric, comparison.known),
          names.method_title(verdict.best),
          names.method_title(rival),
          size,
          interval or '–',
          f'{lead.num_seeds}, {"paired" if lead.paired else "not paired"}',
          'yes' if lead.is_clear else 'no',
        ]
      )
  if not rows:
    return ''
  header = ['metric', 'best', 'better than', 'by', '95 % interval']
  note = (
    'Each interval is for one pair. Three seeds detect only differences of'
    ' more than 4.3 standard errors; five seeds, of more than 2.8.'
  )
  table = _rows([*header, 'seeds', 'clear'], rows)
  return _details(
    'Differences and their intervals', table + _paragraphs([note], 'note')
  )


def _results(comparison: comparison_lib.Comparison) -> str:
  sizes = {len(runs) for runs in comparison.runs.values()}
  many = ' Mean ± standard deviation over seeds.' if sizes != {1} else ''
  notes = [f'Test metrics, measured once at the end of each run.{many}']
  notes += findings.note(comparison, 'Green')
  return (
    tables.of_comparison(comparison).as_html()
    + _items(findings.by_other_metrics(comparison), 'plain verdicts')
    + _paragraphs(notes, 'note')
    + _evidence(comparison)
  )


def _figures(comparison: comparison_lib.Comparison, figures: Panels) -> str:
  most = max(map(len, comparison.runs.values()))
  shade = ' The band is one standard deviation over seeds.' if most > 1 else ''
  # Usually the same for all metrics, unless some have no test curve.
  data = ' and '.join(
    sorted(set(map(comparison.curve_part, comparison.metrics)))
  )
  parts = []
  for methods, panels in figures.items():
    drawn = ''.join(f'<div>{svg}</div>' for svg in panels)
    titles = ' and '.join(map(names.method_title, methods))
    parts.append(
      f'<figure><div class="panels">{drawn}</div><figcaption>'
      f'{_escape(findings.capitalized(titles))} on {data} data, round by'
      f' round.{shade}</figcaption></figure>'
    )
  if not parts:
    return ''
  return f'<section><h2>Training</h2>{"".join(parts)}</section>'


def _privacy(report: Report) -> str:
  comparison, notes = report.comparison, []
  for run in comparison.all_runs:
    if run.epsilon is None:
      notes.append(
        'Epsilon was not computed, because dp_accounting was not installed.'
        ' scripts.privacy computes it.'
      )
    notes.append(run.config.noise)
  notes += findings.caveats(comparison)
  seeds = [run.seed for run in comparison.all_runs]
  given = [seed for seed in seeds if seed is not None]
  if len(set(given)) < len(given):
    notes.append(
      'Each guarantee is for one run. Runs that share a seed share their noise:'
      ' anyone who sees two of them can cancel it. Tables over methods and'
      ' seeds are for simulations.'
    )
  elif len(seeds) > 1:
    notes.append(
      'Each guarantee is for one run. The epsilons of several published runs on'
      ' the same data add up: tables over methods and seeds are for'
      ' simulations.'
    )
  notes += [
    'The guarantees do not cover validation and test data, which are not used'
    ' for training.',
    *findings.of_audits(comparison),
    *report.notes,
    disclosure.of_page(),
  ]
  quotes = (
    f'<blockquote>{_escape(s)}</blockquote>'
    for s in findings.guarantees(comparison)
  )
  return ''.join(quotes) + _items(dict.fromkeys(notes), 'plain')


def _choices(report: Report) -> str:
  """Returns the table of chosen settings."""
  choices = report.choices
  if choices is None:
    return _paragraphs(
      ['Settings were given by flags. No search is recorded.'], 'note'
    )
  name = names.metric_name(choices.select_by, ['accuracy'])
  rows = [
    [
      choices_lib.title_of(method),
      choice.flags or '–',
      str(choice.trials),
      '–'
      if choice.value is None
      else names.format_value(choices.select_by, choice.value),
    ]
    for method, choice in choices.methods.items()
  ]
  _, *warned = choices.lines()
  return (
    _paragraphs([f'Settings were chosen by validation {name}.'], 'note')
    + _paragraphs(warned, 'warning')
    + _rows(['method', 'chosen', 'trials', f'validation {name}'], rows)
    + _paragraphs(['Command of the search:'], 'note')
    + f'<pre>{_escape(choices.command)}</pre>'
    + _paragraphs(report.remarks, 'note')
  )


def _settings(comparison: comparison_lib.Comparison) -> str:
  """Returns settings that all runs share, and those in which methods differ."""
  first = {
    method: typed.flat(runs[0].config.settings)
    for method, runs in comparison.runs.items()
  }
  known = dict.fromkeys(
    name for of_method in first.values() for name in of_method
  )
  shared, differing = [], []
  for name in known:
    values = [of_method.get(name, '–') for of_method in first.values()]
    is_said_elsewhere = name in ('seed', 'method')
    is_folder = any(n.startswith(f'{name}.') for n in known)
    may_be_shown = disclosure.has_noise(disclosure.CONFIG, f'settings.{name}')
    if is_said_elsewhere or is_folder or not may_be_shown:
      continue
    if len(set(map(repr, values))) == 1:
      shared.append([name, _shown(values[0])])
    else:
      differing.append([name, *map(_shown, values)])
  seeds = [run.seed for run in next(iter(comparison.runs.values()))]
  shared.append(['seeds', ', '.join(map(_shown, seeds))])
  libraries = comparison.all_runs[0].config.libraries
  text = ''
  if differing:
    header = ['', *map(names.method_title, first)]
    title = 'Settings in which the methods differ'
    text = _details(title, _rows(header, differing), is_open=True)
  text += _details('Settings of all runs', _rows([], shared))
  return text + _details('Libraries', _rows([], list(libraries.items())))


def _shown(value: Any) -> str:
  return 'none' if value is None else str(value)


def build_page(report: Report, figures: Panels) -> str:
  """Returns the page of a comparison as HTML.

  Args:
    report: What is shown.
    figures: Panels by methods, as returned by `figures.draw_comparison`.
  """
  comparison = report.comparison
  template = string.Template(_PAGE.read_text(encoding='utf-8'))
  return template.substitute(
    dataset=_escape(comparison.all_runs[0].result['dataset']),
    headline=_escape(findings.headline(comparison)),
    lead=_lead(report),
    subject=_escape(_subject(comparison)),
    results=_results(comparison),
    figures=_figures(comparison, figures),
    privacy=_privacy(report),
    choices=_choices(report),
    settings=_settings(comparison),
    command=_escape(report.command),
  )
