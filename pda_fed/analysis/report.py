"""One page for a comparison: table, figures, guarantee, settings, command.

The page is one file that needs no other and no network.
"""

from collections.abc import Mapping, Sequence
import html
from typing import Any

from pda_fed import methods as methods_lib
from pda_fed.analysis import audits
from pda_fed.analysis import comparison as comparison_lib
from pda_fed.analysis import report_style
from pda_fed.experiments import config as config_lib


def _escape(value: Any) -> str:
  return html.escape(str(value))


def _title(method: str) -> str:
  return methods_lib.title(method)


def _capitalized(text: str) -> str:
  return text[:1].upper() + text[1:]


def _lead(comparison: comparison_lib.Comparison) -> str:
  """What came out: who is best at what, and by how much."""
  praise: dict[str, list[str]] = {}
  for metric in comparison.metrics:
    line = next(
      line
      for line in comparison_lib.lines(comparison)
      if line.scores[metric].best
    )
    score = line.scores[metric]
    value = comparison_lib.format_value(metric, score.mean)
    unit = ' %' if metric.startswith('accuracy') else ''
    text = f'{metric.replace("_", " ")}, <strong>{value}{unit}</strong>'
    if score.change is not None:
      against = _escape(_title(comparison.baseline))
      text += f' ({_minus(f"{score.change:+.1%}")} against {against})'
    praise.setdefault(line.title, []).append(text)
  sentences = [
    f'<strong>{_escape(_capitalized(title))}</strong> has the best'
    f' {", and the best ".join(texts)}.'
    for title, texts in praise.items()
  ]
  return ' '.join(sentences)


def _minus(text: str) -> str:
  """Figures with the minus sign of print."""
  return text.replace('-', '\N{MINUS SIGN}')


def _table(comparison: comparison_lib.Comparison) -> str:
  header = comparison_lib.header(comparison)
  first = comparison.metrics[0]
  lines = ['<div class="scroll"><table><thead><tr>']
  lines += [f'<th>{_escape(name)}</th>' for name in header]
  lines.append('</tr></thead><tbody>')
  cells_of = comparison_lib.rows(comparison)
  for line, cells in zip(
    comparison_lib.lines(comparison), cells_of, strict=True
  ):
    scores = line.scores
    classes = [''] * len(cells)
    for i, metric in enumerate(comparison.metrics):
      classes[1 + 2 * i] = 'best' if scores[metric].best else ''
      classes[2 + 2 * i] = 'change'
      cells[2 + 2 * i] = _minus(cells[2 + 2 * i]) or '–'
    lines.append(f'<tr class="{"winner" if scores[first].best else ""}">')
    lines += [
      f'<td class="{c}">{_escape(cell)}</td>'
      for c, cell in zip(classes, cells, strict=True)
    ]
    lines.append('</tr>')
  lines.append('</tbody></table></div>')
  return ''.join(lines)


def _figures(
  comparison: comparison_lib.Comparison,
  figures: Mapping[tuple[str, ...], str],
) -> str:
  some = next(iter(comparison.runs.values()))
  shade = ''
  if len(some) > 1:
    shade = f' Mean of {len(some)} seeds; the shade is a standard deviation.'
  parts = []
  # The same for all metrics, but for runs of one that has no test curve.
  data = ' and '.join(
    sorted({comparison.curve_part(metric) for metric in comparison.metrics})
  )
  for methods, svg in figures.items():
    names = _capitalized(' and '.join(_title(m) for m in methods))
    parts.append(
      f'<figure>{svg}<figcaption>{_escape(names)} on'
      f' {data} data, round by round.{shade}</figcaption></figure>'
    )
  return ''.join(parts)


def _privacy(comparison: comparison_lib.Comparison, more: Sequence[str]) -> str:
  notes: dict[str, None] = {}
  for runs in comparison.runs.values():
    for run in runs:
      if run.epsilon is None:
        notes[
          'Epsilon was not computed where this ran; scripts.privacy --fill adds'
          ' it.'
        ] = None
      notes[run.config['noise']] = None
  notes |= dict.fromkeys(comparison_lib.caveats(comparison))
  seeds = [run.result['seed'] for r in comparison.runs.values() for run in r]
  given = [seed for seed in seeds if seed is not None]
  if len(set(given)) < len(given):
    notes[
      'Each guarantee is for one run alone. Runs of one seed share their noise:'
      ' who sees several of them can take it off. Tables over methods and seeds'
      ' are for simulations.'
    ] = None
  elif len(seeds) > 1:
    notes[
      'Each guarantee is for one run. Publishing several runs on the same data'
      ' costs as much as all of them: tables over methods and seeds are for'
      ' simulations.'
    ] = None
  notes[
    'Validation and test data of these runs are not covered: they take no part'
    ' in their training.'
  ] = None
  notes |= dict.fromkeys(audits.sentences(audits.found(comparison.runs)))
  notes |= dict.fromkeys(more)
  statements = comparison_lib.guarantees(comparison)
  quotes = ''.join(f'<blockquote>{_escape(s)}</blockquote>' for s in statements)
  items = ''.join(f'<li>{_escape(note)}</li>' for note in notes)
  return f'{quotes}<ul class="plain">{items}</ul>'


def _settings(comparison: comparison_lib.Comparison) -> str:
  """Settings that all runs share, and those in which methods differ."""
  first = {
    method: config_lib.flatten(runs[0].config['settings'])
    for method, runs in comparison.runs.items()
  }
  names = {name: None for settings in first.values() for name in settings}
  shared, differing = [], []
  for name in names:
    values = {m: settings.get(name, '–') for m, settings in first.items()}
    is_said_elsewhere = name in ('seed', 'method')
    is_folder = any(n.startswith(f'{name}.') for n in names)
    if is_said_elsewhere or is_folder:
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
  libraries = [[n, v] for n, v in some.config['libraries'].items()]
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


def build_page(
  comparison: comparison_lib.Comparison,
  figures: Mapping[tuple[str, ...], str],
  command: str,
  notes: Sequence[str] = (),
) -> str:
  """Returns the page as HTML.

  Args:
    comparison: What is shown.
    figures: SVG by methods, as `figures.draw_comparison` gives them.
    command: How to get it again.
    notes: On privacy, and how settings were chosen.
  """
  some = next(iter(comparison.runs.values()))[0]
  plan = some.plan
  sizes = sorted({len(runs) for runs in comparison.runs.values()})
  count = ' or '.join(map(str, sizes))
  subject = (
    f'{plan.rounds:,} rounds, {plan.expected_cohort:g} of'
    f' {plan.population:,} {plan.unit}s in each; {count}'
    f' {"seed" if sizes == [1] else "seeds"} a method; engine'
    f' {some.result["engine"]}.'
  )
  many = ' Mean ± standard deviation over seeds.' if sizes != [1] else ''
  note = f'Metrics of the final test, once, at the end of each run.{many}'
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pda_fed: {_escape(some.result['dataset'])}</title>
<style>{report_style.CSS}</style>
</head>
<body>
<main>
<header>
<p class="eyebrow">pda_fed · comparison</p>
<h1>{_escape(some.result['dataset'])}</h1>
<p class="lead">{_lead(comparison)}</p>
<p class="note">{_escape(subject)}</p>
</header>
<section><h2>Results</h2>{_table(comparison)}
<p class="note">{note}</p></section>
<section><h2>Training</h2>{_figures(comparison, figures)}</section>
<section><h2>Privacy</h2>{_privacy(comparison, notes)}</section>
<section><h2>Settings</h2>{_settings(comparison)}</section>
<section><h2>Command</h2><pre>{_escape(command)}</pre></section>
<footer>Method: “Public Data-Assisted Mirror Descent for Private Model
Training”, Amid et al., ICML 2022, arXiv:2112.00193.</footer>
</main>
</body>
</html>
"""
