"""Figures: metrics against rounds, and gains. Needs matplotlib."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import io
import itertools
import math
import os
import pathlib
import re
from typing import Any, Optional

import numpy as np
from pda_fed import methods as methods_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import names
from pda_fed.compare import tables
from pda_fed.compare import verdicts

# With more methods, all share one figure.
_MOST_PAIRED = 3
# Panels per row.
_MOST_PANELS = 4
# An axis does not reach a gain that is so many times as far as the next one.
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

  colours = dict.fromkeys(
    ['axes.edgecolor', 'axes.labelcolor', 'text.color', 'xtick.color'], ink
  )
  settings = {
    **colours,
    'ytick.color': ink,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'figure.constrained_layout.use': True,
    'font.size': 10,
    'legend.frameon': False,
    'svg.fonttype': 'none',
    'svg.hashsalt': 'pda_fed',
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
  """Returns which methods share a figure.

  Each method shares a figure with the next, as in the paper. Many methods share
  a single figure.

  Args:
    methods: The methods, in the order of a table.
  """
  if len(methods) == 1 or len(methods) > _MOST_PAIRED:
    return [tuple(methods)]
  return list(itertools.pairwise(methods))


def _line_style(method: str) -> dict[str, Any]:
  """Returns a method's colour and dashes.

  Methods that use no public data in rounds are dashed.
  """
  found = methods_lib.find(method) or methods_lib.Method
  dashes = (0, (6, 1.5)) if found.warm_start else (0, (4, 2))
  is_solid = found.public != 'none'
  return {
    'color': names.colour(method),
    'linestyle': 'solid' if is_solid else dashes,
  }


def _plot(
  axes, plt, comparison, methods: Sequence[str], metric: str, focus=False
) -> None:
  """Draws a metric of methods against rounds.

  Args:
    axes: The matplotlib axes.
    plt: The module matplotlib.pyplot.
    comparison: The comparison.
    methods: The methods to draw.
    metric: The metric to draw.
    focus: Whether to choose the range by later rounds: the first are often far
      from the rest.
  """
  part = comparison.curve_part(metric)
  column = f'test_{metric}' if part == 'test' else metric
  later = []
  for method in methods:
    rounds = comparison.rounds(method, column)
    found = [
      {row['round']: row for row in r.rows} for r in comparison.runs[method]
    ]
    values = np.array([[of[r][column] for r in rounds] for of in found], float)
    values = names.scale(metric) * values.reshape(len(found), len(rounds))
    style, mean = _line_style(method), values.mean(0)
    std = np.zeros_like(mean)
    label = names.method_title(method)
    axes.plot(rounds, mean, linewidth=2, label=label, **style)
    if len(values) > 1:
      std = values.std(0, ddof=1)
      band = mean - std, mean + std
      axes.fill_between(rounds, *band, color=style['color'], alpha=0.2, lw=0)
    first = len(rounds) // 10 + 1
    later += [(mean - std)[first:], (mean + std)[first:]]
  if focus:
    _focus(axes, np.concatenate(later))
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


def _focus(axes, values: np.ndarray) -> None:
  """Sets the range of the y axis to some values, ignoring infinity and NaN."""
  values = values[np.isfinite(values)]
  if values.size:
    low, high = values.min(), values.max()
    margin = 0.08 * (high - low) or 1e-9
    # The range of positive values stays positive, for a logarithmic axis.
    bottom = low / 2 if low - margin <= 0 < low else low - margin
    axes.set_ylim(bottom, high + margin)


def _add_legend(figure, panels) -> None:
  """Puts the legend above the panels, where it covers no curve."""
  lines = {n.get_label(): n for axes in panels.flat for n in axes.lines}
  longest = max(map(len, lines), default=1) + 6  # Includes the line sample.
  fit = max(_LEGEND_LETTERS * panels.shape[1] // longest, 1)
  figure.legend(
    lines.values(),
    lines.keys(),
    loc='outside upper left',
    ncols=min(fit, len(lines)),
    handlelength=1.8,
    columnspacing=1.2,
  )


def _draw(plt, comparison, methods: Sequence[str], metrics: Sequence[str]):
  figure, panels = plt.subplots(
    1, len(metrics), figsize=(3.8 * len(metrics), 3.0), squeeze=False
  )
  for axes, metric in zip(panels[0], metrics, strict=True):
    _plot(axes, plt, comparison, methods, metric)
  _add_legend(figure, panels)
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
  """Returns a panel of one metric, as SVG for an HTML page.

  Args:
    comparison: The comparison.
    methods: The methods to draw.
    metric: The metric to draw.
    name: A unique prefix of the ids in the SVG.
  """
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


def draw_several(
  compared: Mapping[str, comparison_lib.Comparison], folder: os.PathLike | str
) -> None:
  """Draws several comparisons: a column for each, a row for each metric.

  Args:
    compared: Comparisons by name, at least one.
    folder: The folder for `cells.png` and `cells.svg`.
  """
  height = max(len(comparison.metrics) for comparison in compared.values())
  size = 3.3 * len(compared), 2.6 * height
  with _style() as plt:
    figure, panels = plt.subplots(
      height, len(compared), figsize=size, squeeze=False
    )
    for (name, of), column in zip(compared.items(), panels.T, strict=True):
      title = f'{name}\nepsilon {tables.combined_epsilon(of)}'
      column[0].set_title(title, fontsize='medium', parse_math=False)
      for axes, metric in zip(column, of.metrics, strict=False):
        _plot(axes, plt, of, list(of.runs), metric, focus=True)
      for axes in column[len(of.metrics) :]:
        axes.set_axis_off()
    _add_legend(figure, panels)
    _save(figure, plt, pathlib.Path(folder) / 'cells')


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
      limit = _outer_limit(gains)
      if limit is not None:
        place.set_xlim(-limit, limit)
      for method, gain in gains.items():
        height = len(methods) - methods.index(method)
        _plot_gain(place, height, names.colour(method), gain, limit)
      place.xaxis.set_major_locator(plt.MaxNLocator(3))
      place.grid(axis='x', alpha=0.25, linewidth=0.6)
    titles = list(map(names.method_title, methods))
    axes[0][0].set_yticks(range(len(methods), 0, -1), titles)
    axes[0][0].set_ylim(0.4, len(methods) + 0.6)
    for place in axes.flat[len(panels) :]:
      place.set_axis_off()
    _save(figure, plt, pathlib.Path(folder) / 'gains')


def _outer_limit(gains: Mapping[str, verdicts.Difference]) -> Optional[float]:
  """Returns where to end an axis that one far gain would stretch, or None."""
  reaches = sorted(
    max(abs(end) for end in (g.mean, g.low, g.high) if end is not None)
    for g in gains.values()
  )
  if len(reaches) < 3 or reaches[-1] <= _FAR * reaches[-2]:
    return None
  return 1.5 * reaches[-2]


def _plot_gain(axes, height: int, colour: str, gain, limit) -> None:
  """Draws a point and its interval, or an arrow and a number beyond a limit."""
  if limit is not None and abs(gain.mean) > limit:
    side = math.copysign(1, gain.mean)
    marker = '>' if side > 0 else '<'
    axes.plot([0.93 * side * limit], [height], marker, color=colour)
    axes.annotate(
      f'{gain.mean:.3g}',
      (0.84 * side * limit, height),
      va='center',
      ha='right' if side > 0 else 'left',
      fontsize='small',
    )
    return
  if gain.low is not None:
    ends = [gain.low, gain.high]
    axes.plot(ends, [height, height], color=colour, linewidth=2)
  axes.plot([gain.mean], [height], 'o', color=colour, markersize=5)
