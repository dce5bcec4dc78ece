"""The HTML report of a comparison: verdict, table, figures, privacy, settings.

The report is a single file that needs no other files and no network.
"""

from collections.abc import Mapping, Sequence
import html
import shlex
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed.common import typed
from pda_fed.compare import audits
from pda_fed.compare import choices as choices_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import findings
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import report_style
from pda_fed.compare import result_tables
from pda_fed.compare import verdicts
from pda_fed.runs import disclosure


def _escape(value: Any) -> str:
  return html.escape(str(value))


def _title(method: str) -> str:
  return methods_lib.title(method)


def _paragraphs(texts: Sequence[str], style: str) -> str:
  return ''.join(f'<p class="{style}">{_escape(text)}</p>' for text in texts)


def _lead(comparison: comparison_lib.Comparison, missing: Sequence[str]) -> str:
  """Returns the text below the headline."""
  disagreement = findings.disagree(comparison)
  lines = [*findings.others(comparison), *filter(None, [disagreement])]
  warnings = [*missing, *findings.unequal_privacy(comparison)]
  return (
    _paragraphs(lines, 'lead')
    + _paragraphs(warnings, 'warning')
    + _paragraphs([findings.selection(comparison)], 'note')
  )


def _table(comparison: comparison_lib.Comparison) -> str:
  lines = ['<div class="scroll"><table><thead><tr>']
  lines += [
    f'<th>{_escape(name)}</th>' for name in result_tables.header(comparison)
  ]
  lines.append('</tr></thead><tbody>')
  for line, cells in zip(
    result_tables.lines(comparison),
    result_tables.rows(comparison),
    strict=True,
  ):
    classes = [''] * len(cells)
    for i, metric in enumerate(comparison.metrics):
      classes[1 + i] = 'best' if line.scores[metric].wins else ''
    wins = line.scores[comparison.selected].wins
    lines.append(f'<tr class="{"winner" if wins else ""}">')
    lines += [
      f'<td class="{c}">{_escape(cell)}</td>'
      for c, cell in zip(classes, cells, strict=True)
    ]
    lines.append('</tr>')
  lines.append('</tbody></table></div>')
  return ''.join(lines)


def _evidence(comparison: comparison_lib.Comparison) -> str:
  """Returns a table of the best method by each metric against all others."""
  rows = []
  for metric, verdict in comparison.verdicts.items():
    for rival, lead in verdict.leads.items():
      size, interval = comparison.writer.difference(verdict, rival)
      rows.append(
        [
          metrics_lib.name_of(metric, comparison.known),
          comparison_lib.title_of(verdict.best),
          comparison_lib.title_of(rival),
          size,
          interval or '–',
          f'{lead.num_seeds}, {"paired" if lead.paired else "not paired"}',
          'yes' if lead.is_clear else 'no',
        ]
      )
  if not rows:
    return ''
  header = ['metric', 'best', 'better than', 'by', '95 % interval']
  table = _rows([*header, 'seeds', 'clear'], rows)
  note = (
    'Each interval is for one pair. Three seeds detect only differences of'
    ' more than 4.3 standard errors; five seeds, of more than 2.8.'
  )
  return _details(
    'Differences and their intervals',
    table + _paragraphs([note], 'note'),
  )


def _results(comparison: comparison_lib.Comparison) -> str:
  sizes = {len(runs) for runs in comparison.runs.values()}
  many = ' Mean ± standard deviation over seeds.' if sizes != {1} else ''
  notes = [f'Test metrics, measured once at the end of each run.{many}']
  notes += findings.note(comparison, 'Green')
  # The disagreement is already below the headline.
  others = [
    line
    for line in findings.by_other_metrics(comparison)
    if line != findings.disagree(comparison)
  ]
  items = ''.join(f'<li>{_escape(line)}</li>' for line in others)
  verdict_list = f'<ul class="plain verdicts">{items}</ul>' if items else ''
  return (
    _table(comparison)
    + verdict_list
    + _paragraphs(notes, 'note')
    + _evidence(comparison)
  )


def _figures(
  comparison: comparison_lib.Comparison,
  figures: Mapping[tuple[str, ...], Sequence[str]],
) -> str:
  most = max(map(len, comparison.runs.values()))
  shade = ' The band is one standard deviation over seeds.' if most > 1 else ''
  parts = []
  # Usually the same for all metrics, unless some have no test curve.
  data = ' and '.join(
    sorted({comparison.curve_part(metric) for metric in comparison.metrics})
  )
  for methods, panels in figures.items():
    names = verdicts.capitalized(' and '.join(_title(m) for m in methods))
    drawn = ''.join(f'<div>{svg}</div>' for svg in panels)
    parts.append(
      f'<figure><div class="panels">{drawn}</div><figcaption>{_escape(names)}'
      f' on {data} data, round by round.{shade}</figcaption></figure>'
    )
  if not parts:
    return ''
  return f'<section><h2>Training</h2>{"".join(parts)}</section>'


def _privacy(comparison: comparison_lib.Comparison, more: Sequence[str]) -> str:
  notes: dict[str, None] = {}
  for runs in comparison.runs.values():
    for run in runs:
      if run.epsilon is None:
        notes[
          'Epsilon was not computed, because dp_accounting was not installed.'
          ' scripts.privacy computes it.'
        ] = None
      notes[run.config.noise] = None
  notes |= dict.fromkeys(comparison_lib.caveats(comparison))
  seeds = [run.result['seed'] for r in comparison.runs.values() for run in r]
  given = [seed for seed in seeds if seed is not None]
  if len(set(given)) < len(given):
    notes[
      'Each guarantee is for one run. Runs that share a seed share their noise:'
      ' anyone who sees two of them can cancel it. Tables over methods and'
      ' seeds are for simulations.'
    ] = None
  elif len(seeds) > 1:
    notes[
      'Each guarantee is for one run. The epsilons of several published runs on'
      ' the same data add up: tables over methods and seeds are for'
      ' simulations.'
    ] = None
  notes[
    'The guarantees do not cover validation and test data, which are not used'
    ' for training.'
  ] = None
  notes |= dict.fromkeys(audits.sentences(audits.found(comparison.runs)))
  notes |= dict.fromkeys([*more, disclosure.of_page()])
  statements = comparison_lib.guarantees(comparison)
  quotes = ''.join(f'<blockquote>{_escape(s)}</blockquote>' for s in statements)
  items = ''.join(f'<li>{_escape(note)}</li>' for note in notes)
  return f'{quotes}<ul class="plain">{items}</ul>'


def _choices(
  choices: Optional[choices_lib.Choices], remarks: Sequence[str]
) -> str:
  """Returns the table of chosen settings."""
  if choices is None:
    return _paragraphs(
      ['Settings were given by flags. No search is recorded.'], 'note'
    )
  name = metrics_lib.name_of(choices.select_by, ['accuracy'])
  rows = [
    [
      choices_lib.title_of(method),
      shlex.join(choice.arguments) or '–',
      str(choice.trials),
      '–'
      if choice.value is None
      else metrics_lib.format_value(choices.select_by, choice.value),
    ]
    for method, choice in choices.methods.items()
  ]
  _, *warnings = choices.lines()
  return (
    _paragraphs([f'Settings were chosen by validation {name}.'], 'note')
    + _paragraphs(warnings, 'warning')
    + _rows(['method', 'chosen', 'trials', f'validation {name}'], rows)
    + _paragraphs(['Command of the search:'], 'note')
    + f'<pre>{_escape(choices.command)}</pre>'
    + _paragraphs(remarks, 'note')
  )


def _settings(comparison: comparison_lib.Comparison) -> str:
  """Returns settings that all runs share, and those in which methods differ."""
  first = {
    method: typed.flat(runs[0].config.settings)
    for method, runs in comparison.runs.items()
  }
  names = {name: None for settings in first.values() for name in settings}
  shared, differing = [], []
  for name in names:
    values = {m: settings.get(name, '–') for m, settings in first.items()}
    is_said_elsewhere = name in ('seed', 'method')
    is_folder = any(n.startswith(f'{name}.') for n in names)
    may_be_shown = disclosure.has_noise(disclosure.CONFIG, f'settings.{name}')
    if is_said_elsewhere or is_folder or not may_be_shown:
      continue
    if len({repr(value) for value in values.values()}) == 1:
      shared.append([name, _shown(next(iter(values.values())))])
    else:
      differing.append([name, *(_shown(v) for v in values.values())])
  seeds = [run.result['seed'] for run in next(iter(comparison.runs.values()))]
  shared.append(['seeds', ', '.join(_shown(seed) for seed in seeds)])
  parts = []
  if differing:
    parts.append(
      _details(
        'Settings in which the methods differ',
        _rows(['', *map(_title, first)], differing),
        is_open=True,
      )
    )
  parts.append(_details('Settings of all runs', _rows([], shared)))
  some = next(iter(comparison.runs.values()))[0]
  libraries = [[n, v] for n, v in some.config.libraries.items()]
  parts.append(_details('Libraries', _rows([], libraries)))
  return ''.join(parts)


def _shown(value: Any) -> str:
  return 'none' if value is None else str(value)


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  head = ''.join(f'<th>{_escape(name)}</th>' for name in header)
  body = ''.join(
    '<tr>' + ''.join(f'<td>{_escape(cell)}</td>' for cell in row) + '</tr>'
    for row in rows
  )
  return (
    '<div class="scroll"><table class="settings">'
    f'<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
  )


def _details(title: str, content: str, *, is_open: bool = False) -> str:
  state = ' open' if is_open else ''
  return (
    f'<details{state}><summary>{_escape(title)}</summary>{content}</details>'
  )


def _subject(comparison: comparison_lib.Comparison) -> str:
  """Returns a summary of the runs."""
  some = next(iter(comparison.runs.values()))[0]
  plan = some.plan
  sizes = sorted({len(runs) for runs in comparison.runs.values()})
  count = ' or '.join(map(str, sizes))
  return (
    f'{plan.rounds:,} rounds, {plan.expected_cohort:g} of'
    f' {plan.population:,} {plan.unit}s in each; {count}'
    f' {"seed" if sizes == [1] else "seeds"} per method; engine'
    f' {some.result["engine"]}.'
  )


def build_page(
  comparison: comparison_lib.Comparison,
  figures: Mapping[tuple[str, ...], Sequence[str]],
  command: str,
  notes: Sequence[str] = (),
  choices: Optional[choices_lib.Choices] = None,
  remarks: Sequence[str] = (),
  missing: Sequence[str] = (),
) -> str:
  """Returns the report as HTML.

  Args:
    comparison: The comparison.
    figures: Panels by methods, as returned by `figures.draw_comparison`.
    command: The command that reproduces the report.
    notes: Additional notes on privacy.
    choices: How settings were chosen; None if no search is known.
    remarks: Notes on the choice of settings.
    missing: Warnings about runs that are left out.
  """
  dataset = _escape(next(iter(comparison.runs.values()))[0].result['dataset'])
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pda_fed: {dataset}</title>
<style>{report_style.CSS}</style>
</head>
<body>
<main>
<header>
<p class="eyebrow">pda_fed · comparison · {dataset}</p>
<h1>{_escape(findings.headline(comparison))}</h1>
{_lead(comparison, missing)}
<p class="note">{_escape(_subject(comparison))}</p>
</header>
<section><h2>Results</h2>{_results(comparison)}</section>
{_figures(comparison, figures)}
<section><h2>Privacy</h2>{_privacy(comparison, notes)}</section>
<section><h2>How settings were chosen</h2>{_choices(choices, remarks)}</section>
<section><h2>Settings</h2>{_settings(comparison)}</section>
<section><h2>Command</h2><pre>{_escape(command)}</pre></section>
<footer>Method: “Public Data-Assisted Mirror Descent for Private Model
Training”, Amid et al., ICML 2022, arXiv:2112.00193.</footer>
</main>
</body>
</html>
"""
