"""Figures: metrics against rounds, and gains. Needs matplotlib."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from pda_fed.compare import cells as cells_lib
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import metrics as metrics_lib
from pda_fed.compare import statistics as statistics_lib
from pda_fed.compare import styles

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
def _style(ink: str) -> Iterator[Any]:
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


def _save(figure, plt, path: pathlib.Path) -> None:
  transparent = path.suffix == '.svg'
  metadata = {'Date': None} if transparent else None  # For reproducible files.
  figure.savefig(path, dpi=160, transparent=transparent, metadata=metadata)
  plt.close(figure)


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


def _curves(
  runs: Sequence[comparison_lib.Run], column: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rounds that all runs evaluated, and a row of values per run."""
  rounds = comparison_lib.shared_rounds(runs, column)
  tables = [{row['round']: row.get(column) for row in r.rows} for r in runs]
  values = np.array([[table[r] for r in rounds] for table in tables], float)
  return np.array(rounds), values.reshape(len(tables), len(rounds))


def _line_style(method: str) -> dict[str, Any]:
  """Returns a method's colour and dashes.

  Methods that use no public data in rounds are dashed.
  """
  found = methods_lib.find(method) or methods_lib.Method
  dashes = (0, (6, 1.5)) if found.warm_start else (0, (4, 2))
  is_solid = found.public != 'none'
  return {
    'color': styles.colour(method),
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
  scale = metrics_lib.scale(metric)
  part = comparison.curve_part(metric)
  later = []
  for method in methods:
    column = f'test_{metric}' if part == 'test' else metric
    rounds, values = _curves(comparison.runs[method], column)
    mean = scale * values.mean(0)
    std = np.zeros_like(mean)
    style = _line_style(method)
    title = methods_lib.title(method)
    axes.plot(rounds, mean, linewidth=2, label=title, **style)
    if len(values) > 1:
      std = scale * values.std(0, ddof=1)
      band = mean - std, mean + std
      axes.fill_between(rounds, *band, color=style['color'], alpha=0.2, lw=0)
    first = len(rounds) // 10 + 1
    later += [(mean - std)[first:], (mean + std)[first:]]
  if focus:
    _focus(axes, np.concatenate(later))
  axes.set_xlabel('round')
  axes.xaxis.set_major_locator(plt.MaxNLocator(5, integer=True))
  title = metrics_lib.title_of(metric, comparison.known)
  # A long label would not fit on one line.
  axes.set_ylabel(f'{part} {title}'.replace(', ', ',\n'))
  if metric == 'perplexity' and _spans_decades(axes.get_ylim()):
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


def _draw(plt, comparison, methods: Sequence[str], metrics: Sequence[str]):
  figure, panels = plt.subplots(
    1, len(metrics), figsize=(3.8 * len(metrics), 3.0), squeeze=False
  )
  for axes, metric in zip(panels[0], metrics, strict=True):
    _plot(axes, plt, comparison, methods, metric)
  lines = {line.get_label(): line for line in panels[0][0].lines}
  _add_legend(figure, lines, len(metrics))
  return figure


def _add_legend(figure, lines: dict[str, Any], num_panels: int) -> None:
  """Puts the legend above the panels, where it covers no curve."""
  longest = max(map(len, lines), default=1) + 6  # Includes the line sample.
  fit = max(_LEGEND_LETTERS * num_panels // longest, 1)
  figure.legend(
    lines.values(),
    lines.keys(),
    loc='outside upper left',
    ncols=min(fit, len(lines)),
    handlelength=1.8,
    columnspacing=1.2,
  )


def draw_cells(
  cells: Sequence[cells_lib.Cell], folder: os.PathLike | str
) -> None:
  """Draws several comparisons: a column for each, a row for each metric.

  Args:
    cells: The comparisons, at least one.
    folder: The folder for `cells.png` and `cells.svg`.
  """
  height = max(len(cell.comparison.metrics) for cell in cells)
  size = 3.3 * len(cells), 2.6 * height
  with _style('#222222') as plt:
    figure, panels = plt.subplots(
      height, len(cells), figsize=size, squeeze=False
    )
    titles = {}
    for cell, column in zip(cells, panels.T, strict=True):
      comparison = cell.comparison
      column[0].set_title(
        f'{cell.name}\nepsilon {cell.epsilon}',
        fontsize='medium',
        parse_math=False,
      )
      for axes, metric in zip(column, comparison.metrics, strict=False):
        _plot(axes, plt, comparison, list(comparison.runs), metric, focus=True)
        titles |= {line.get_label(): line for line in axes.lines}
      for axes in column[len(comparison.metrics) :]:
        axes.set_axis_off()
    _add_legend(figure, titles, len(cells))
    for suffix in ('png', 'svg'):
      _save(figure, plt, pathlib.Path(folder) / f'cells.{suffix}')


def draw_gains(
  panels: Sequence[tuple[str, str, Mapping[str, statistics_lib.Difference]]],
  path: os.PathLike | str,
) -> None:
  """Draws how much better methods are than a baseline, a panel for each task.

  Args:
    panels: For each panel the title, the label of the axis, and gains by
      method; positive is better. At least one panel.
    path: A PNG or SVG file.
  """
  found = {method for *_, gains in panels for method in gains}
  methods = styles.in_order(found)
  columns = min(len(panels), _MOST_PANELS)
  rows = -(-len(panels) // columns)
  size = 0.9 + 2.6 * columns, rows * (1.2 + 0.32 * len(methods))
  with _style('#222222') as plt:
    figure, axes = plt.subplots(
      rows, columns, figsize=size, sharey=True, squeeze=False
    )
    for place, (title, label, gains) in zip(axes.flat, panels, strict=False):
      place.set_title(title, fontsize='medium', parse_math=False)
      place.set_xlabel(label, parse_math=False)
      place.axvline(0, color='#888888', linewidth=1)
      limit = _outer_limit(gains.values())
      if limit is not None:
        place.set_xlim(-limit, limit)
      for method, gain in gains.items():
        height = len(methods) - methods.index(method)
        _plot_gain(place, height, method, gain, limit)
      place.xaxis.set_major_locator(plt.MaxNLocator(3))
      place.grid(axis='x', alpha=0.25, linewidth=0.6)
    names = [methods_lib.title(method) for method in methods]
    axes[0][0].set_yticks(range(len(methods), 0, -1), names)
    axes[0][0].set_ylim(0.4, len(methods) + 0.6)
    for place in axes.flat[len(panels) :]:
      place.set_axis_off()
    _save(figure, plt, pathlib.Path(path))


def _outer_limit(
  gains: Iterable[statistics_lib.Difference],
) -> Optional[float]:
  """Returns where to end an axis that one far gain would stretch, or None.

  Args:
    gains: The gains of a panel.
  """
  reaches = sorted(
    max(abs(end) for end in (g.mean, g.low, g.high) if end is not None)
    for g in gains
  )
  if len(reaches) < 3 or reaches[-1] <= _FAR * reaches[-2]:
    return None
  return 1.5 * reaches[-2]


def _plot_gain(
  axes,
  height: int,
  method: str,
  gain: statistics_lib.Difference,
  limit: Optional[float],
) -> None:
  """Draws a point and its interval, or an arrow and a number beyond a limit."""
  colour = styles.colour(method)
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


def _spans_decades(limits: tuple[float, float]) -> bool:
  low, high = limits
  # Perplexity is at least 1, so an axis that ends at 1 shows nothing.
  return high > 1 and (low <= 0 or high / low > 8)


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
  folder = pathlib.Path(folder)
  drawn = {}
  for methods in pairs(list(comparison.runs)):
    stem = '_'.join(['curves', *methods])
    with _style('#222222') as plt:
      figure = _draw(plt, comparison, methods, comparison.metrics)
      for suffix in ('png', 'svg'):
        _save(figure, plt, folder / f'{stem}.{suffix}')
    drawn[methods] = [
      _panel(comparison, methods, metric, f'{stem}-{metric}')
      for metric in comparison.metrics
    ]
  return drawn


def _panel(comparison, methods: Sequence[str], metric: str, name: str) -> str:
  """Returns a panel of one metric, as SVG for an HTML page."""
  text = io.StringIO()
  with _style(_INK) as plt:
    figure = _draw(plt, comparison, methods, [metric])
    figure.savefig(
      text, format='svg', transparent=True, metadata={'Date': None}
    )
    plt.close(figure)
  return for_page(text.getvalue(), name)


def for_page(svg: str, name: str) -> str:
  """Returns an SVG for embedding in an HTML page.

  Args:
    svg: The content of an SVG file of matplotlib.
    name: A unique prefix of the ids in the SVG.
  """
  svg = svg[svg.index('<svg') :]
  svg = svg.replace(_INK, 'currentColor')
  svg = re.sub(r'\bid="', f'id="{name}-', svg)
  svg = re.sub(r'url\(#', f'url(#{name}-', svg)
  svg = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', svg)
  # The page sets the size; the view box keeps the proportions.
  return re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1', svg, count=1).replace(
    ' height="', ' data-height="', 1
  )
