"""Figures: metrics against rounds, and gains. Needs matplotlib."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import io
import itertools
import os
import pathlib
import re
from typing import Any

import numpy as np
from pda_fed import methods as methods_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import names
from pda_fed.compare import verdicts

# With more methods, all share one figure.
_MOST_PAIRED = 3
# Panels per row.
_MOST_PANELS = 4
# Beyond the next one, an axis shows a gain so many times as far by decades.
_FAR = 10.0
# Characters of a legend that fit above one panel.
_LEGEND_LETTERS = 36
# Placeholder for the page's text colour.
_INK = '#010203'


@contextlib.contextmanager
def _style(ink: str = '#222222') -> Iterator[Any]:
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  settings = {
    'axes.edgecolor': ink,
    'axes.labelcolor': ink,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'figure.constrained_layout.use': True,
    'font.size': 10,
    'legend.frameon': False,
    'svg.fonttype': 'none',
    'svg.hashsalt': 'pda_fed',
    'text.color': ink,
    'xtick.color': ink,
    'ytick.color': ink,
  }
  with plt.rc_context(settings):
    yield plt


def _save(figure, plt, stem: pathlib.Path) -> None:
  """Writes a figure as PNG and SVG, the same bytes each time."""
  figure.savefig(stem.with_name(f'{stem.name}.png'), dpi=160)
  _write_svg(figure, stem.with_name(f'{stem.name}.svg'))
  plt.close(figure)


def _write_svg(figure, where) -> None:
  figure.savefig(where, format='svg', transparent=True, metadata={'Date': None})


def pairs(methods: Sequence[str]) -> list[tuple[str, ...]]:
  """Returns which methods share a figure, given them in a table's order.

  Each method shares a figure with the next, as in the paper. Many methods share
  a single figure.
  """
  if len(methods) == 1 or len(methods) > _MOST_PAIRED:
    return [tuple(methods)]
  return list(itertools.pairwise(methods))


def _line_style(method: str) -> dict[str, Any]:
  """Returns a method's colour; dashes without public data in rounds."""
  found = methods_lib.find(method) or methods_lib.Method
  dashes = (0, (6, 1.5)) if found.warm_start else (0, (4, 2))
  is_solid = found.public != 'none'
  return {
    'color': names.colour(method),
    'linestyle': 'solid' if is_solid else dashes,
  }


def _plot(axes, plt, comparison, methods: Sequence[str], metric: str) -> None:
  """Draws a metric of methods against rounds."""
  part = comparison.curve_part(metric)
  column = f'test_{metric}' if part == 'test' else metric
  for method in methods:
    rounds = comparison.rounds(method, column)
    runs = comparison.runs[method]
    found = [{row['round']: row for row in run.rows} for run in runs]
    values = np.array([[of[r][column] for r in rounds] for of in found], float)
    values = names.scale(metric) * values.reshape(len(found), len(rounds))
    style, mean = _line_style(method), values.mean(0)
    label = names.method_title(method)
    axes.plot(rounds, mean, linewidth=2, label=label, **style)
    if len(values) > 1:
      std = values.std(0, ddof=1)
      band = mean - std, mean + std
      axes.fill_between(rounds, *band, color=style['color'], alpha=0.2, lw=0)
  axes.set_xlabel('round')
  axes.xaxis.set_major_locator(plt.MaxNLocator(5, integer=True))
  title = names.metric_title(metric, comparison.known)
  # A long label would not fit on one line.
  axes.set_ylabel(f'{part} {title}'.replace(', ', ',\n'))
  low, high = axes.get_ylim()
  # Perplexity is at least 1, so an axis that ends at 1 shows nothing.
  if metric == 'perplexity' and high > 1 and (low <= 0 or high / low > 8):
    axes.set_yscale('log')
    axes.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_formatter('')
  axes.grid(alpha=0.25, linewidth=0.6)


def _draw(plt, comparison, methods: Sequence[str], metrics: Sequence[str]):
  figure, panels = plt.subplots(
    1, len(metrics), figsize=(3.8 * len(metrics), 3.0), squeeze=False
  )
  for axes, metric in zip(panels[0], metrics, strict=True):
    _plot(axes, plt, comparison, methods, metric)
  # The legend is above the panels, where it covers no curve.
  lines = {line.get_label(): line for line in panels[0][0].lines}
  longest = max(map(len, lines)) + 6  # Includes the line sample.
  fit = max(_LEGEND_LETTERS * len(metrics) // longest, 1)
  figure.legend(
    lines.values(),
    lines.keys(),
    loc='outside upper left',
    ncols=min(fit, len(lines)),
    handlelength=1.8,
    columnspacing=1.2,
  )
  return figure


def draw_comparison(
  comparison: comparison_lib.Comparison, folder: os.PathLike | str
) -> dict[tuple[str, ...], list[str]]:
  """Draws metrics against rounds, each method with the next.

  Draws test metrics if the runs have test curves, otherwise validation metrics.

  Args:
    comparison: The comparison, of runs with rows in metrics.csv.
    folder: The folder for `curves_cold_warm.png`, `.svg` and so on.

  Returns:
    SVG panels for an HTML page, by methods; one panel for each metric. Text and
    axes have the page's text colour.
  """
  drawn = {}
  for methods in pairs(list(comparison.runs)):
    stem = '_'.join(['curves', *methods])
    with _style() as plt:
      figure = _draw(plt, comparison, methods, comparison.metrics)
      _save(figure, plt, pathlib.Path(folder) / stem)
    drawn[methods] = [
      _panel(comparison, methods, metric, f'{stem}-{metric}')
      for metric in comparison.metrics
    ]
  return drawn


def _panel(comparison, methods: Sequence[str], metric: str, name: str) -> str:
  """Returns a metric's SVG for a page; `name` is a unique prefix of its ids."""
  text = io.StringIO()
  with _style(_INK) as plt:
    figure = _draw(plt, comparison, methods, [metric])
    _write_svg(figure, text)
    plt.close(figure)
  svg = text.getvalue()
  svg = svg[svg.index('<svg') :].replace(_INK, 'currentColor')
  svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf'\1{name}-', svg)
  # The page sets the size; the view box keeps the proportions.
  return re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1', svg, count=1).replace(
    ' height="', ' data-height="', 1
  )


def draw_gains(
  panels: Sequence[tuple[str, str, Mapping[str, verdicts.Difference]]],
  folder: os.PathLike | str,
) -> None:
  """Draws how much better methods are than a baseline, a panel for each task.

  Args:
    panels: For each panel the title, the label of the axis, and gains by
      method; positive is better. At least one panel.
    folder: The folder for `gains.png` and `gains.svg`.
  """
  methods = names.in_order({method for *_, of in panels for method in of})
  columns = min(len(panels), _MOST_PANELS)
  rows = -(-len(panels) // columns)
  size = 0.9 + 2.6 * columns, rows * (1.2 + 0.32 * len(methods))
  with _style() as plt:
    figure, axes = plt.subplots(
      rows, columns, figsize=size, sharey=True, squeeze=False
    )
    for place, (title, label, gains) in zip(axes.flat, panels, strict=False):
      place.set_title(title, fontsize='medium', parse_math=False)
      place.set_xlabel(label, parse_math=False)
      place.axvline(0, color='#888888', linewidth=1)
      for method, gain in gains.items():
        height, colour = (
          len(methods) - methods.index(method),
          names.colour(method),
        )
        if gain.low is not None:
          ends = [gain.low, gain.high]
          place.plot(ends, [height, height], color=colour, linewidth=2)
        place.plot([gain.mean], [height], 'o', color=colour, markersize=5)
      _scale_gains(place, plt, gains)
      place.grid(axis='x', alpha=0.25, linewidth=0.6)
    titles = list(map(names.method_title, methods))
    axes[0][0].set_yticks(range(len(methods), 0, -1), titles)
    axes[0][0].set_ylim(0.4, len(methods) + 0.6)
    for place in axes.flat[len(panels) :]:
      place.set_axis_off()
    _save(figure, plt, pathlib.Path(folder) / 'gains')


def _scale_gains(axes, plt, gains: Mapping[str, verdicts.Difference]) -> None:
  """Scales an axis so that one far gain does not hide the others."""
  reaches = sorted(
    max(abs(end) for end in (g.mean, g.low, g.high) if end is not None)
    for g in gains.values()
  )
  if len(reaches) < 3 or reaches[-1] <= _FAR * reaches[-2]:
    axes.xaxis.set_major_locator(plt.MaxNLocator(3))
  else:
    axes.set_xscale('symlog', linthresh=1.5 * reaches[-2])
