"""Figures: metrics against rounds, and heat maps. Needs matplotlib."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import io
import itertools
import os
import pathlib
import re
from typing import Any, Optional

import numpy as np
from pda_fed import methods as methods_lib
from pda_fed.analysis import cells as cells_lib
from pda_fed.analysis import comparison as comparison_lib
from pda_fed.analysis import metrics as metrics_lib
from pda_fed.analysis import statistics as statistics_lib

# More methods than these share one figure.
_MOST_PAIRED = 3
# Panels of tasks in a row.
_MOST_PANELS = 4
# Letters of a panel's legend that fit into one line.
_LEGEND_LETTERS = 36
# Stands for the colour of text, whatever the page gives it.
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
  metadata = {'Date': None} if transparent else None  # The same bytes again.
  figure.savefig(path, dpi=160, transparent=transparent, metadata=metadata)
  plt.close(figure)


def pairs(methods: Sequence[str]) -> list[tuple[str, ...]]:
  """Returns which methods share a figure.

  Each shares one with the next, as in the paper; many methods share one figure.

  Args:
    methods: In the order of a table.
  """
  if len(methods) == 1 or len(methods) > _MOST_PAIRED:
    return [tuple(methods)]
  return list(itertools.pairwise(methods))


def _curves(
  runs: Sequence[comparison_lib.Run], column: str
) -> tuple[np.ndarray, np.ndarray]:
  """The rounds that all runs have evaluated, and a row of values a run."""
  rounds = comparison_lib.shared_rounds(runs, column)
  tables = [{row['round']: row.get(column) for row in r.rows} for r in runs]
  values = np.array([[table[r] for r in rounds] for table in tables], float)
  return np.array(rounds), values.reshape(len(tables), len(rounds))


def _line_style(method: str) -> dict[str, Any]:
  """A method's colour; dashes for those that use no public data in rounds."""
  found = methods_lib.find(method) or methods_lib.Method
  dashes = (0, (6, 1.5)) if found.warm_start else (0, (4, 2))
  is_solid = found.public != 'none'
  return {'color': found.colour, 'linestyle': 'solid' if is_solid else dashes}


def _plot(
  axes, plt, comparison, methods: Sequence[str], metric: str, focus=False
) -> None:
  """Draws a metric of methods against rounds.

  Args:
    axes: Where.
    plt: Matplotlib's.
    comparison: Has the curves.
    methods: Some of its methods.
    metric: One of its metrics.
    focus: Whether to leave out the first rounds, far from all others.
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
  # A long label is taller than its axis.
  axes.set_ylabel(f'{part} {title}'.replace(', ', ',\n'))
  if metric == 'perplexity' and _spans_decades(axes.get_ylim()):
    axes.set_yscale('log')
    axes.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_formatter('')
  axes.grid(alpha=0.25, linewidth=0.6)


def _focus(axes, values: np.ndarray) -> None:
  """Shows the range of some values; those of a run that diverged are none."""
  values = values[np.isfinite(values)]
  if values.size:
    low, high = values.min(), values.max()
    margin = 0.08 * (high - low) or 1e-9
    # What is positive stays so: its axis may become logarithmic.
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
  longest = max(map(len, lines), default=1) + 6  # And a piece of the line.
  fit = max(_LEGEND_LETTERS * num_panels // longest, 1)
  figure.legend(
    lines.values(),
    lines.keys(),
    loc='outside upper left',
    ncols=min(fit, len(lines)),
    handlelength=1.8,
    columnspacing=1.2,
  )


def draw_cells(cells: Sequence[cells_lib.Cell], folder: os.PathLike) -> None:
  """Draws the curves of several comparisons: a column each, a row a metric.

  Args:
    cells: At least one.
    folder: Where `cells.png` and `cells.svg` are written.
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
  path: os.PathLike,
) -> None:
  """Draws how much better methods are than a baseline, a panel for each task.

  Args:
    panels: The title, the name of the axis, and gains by method; positive is
      better. At least one.
    path: A PNG or SVG file.
  """
  found = {method for *_, gains in panels for method in gains}
  methods = methods_lib.in_order(found)
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
      for method, gain in gains.items():
        _plot_gain(place, len(methods) - methods.index(method), method, gain)
      place.xaxis.set_major_locator(plt.MaxNLocator(3))
      place.grid(axis='x', alpha=0.25, linewidth=0.6)
    names = [methods_lib.title(method) for method in methods]
    axes[0][0].set_yticks(range(len(methods), 0, -1), names)
    axes[0][0].set_ylim(0.4, len(methods) + 0.6)
    for place in axes.flat[len(panels) :]:
      place.set_axis_off()
    _save(figure, plt, pathlib.Path(path))


def _plot_gain(
  axes, height: int, method: str, gain: statistics_lib.Difference
) -> None:
  """A point, and a line for its interval."""
  colour = (methods_lib.find(method) or methods_lib.Method).colour
  if gain.low is not None:
    ends = [gain.low, gain.high]
    axes.plot(ends, [height, height], color=colour, linewidth=2)
  axes.plot([gain.mean], [height], 'o', color=colour, markersize=5)


def _spans_decades(limits: tuple[float, float]) -> bool:
  low, high = limits
  # Perplexities are at least 1: an axis that ends there shows nothing.
  return high > 1 and (low <= 0 or high / low > 8)


def draw_comparison(
  comparison: comparison_lib.Comparison, folder: os.PathLike
) -> dict[tuple[str, ...], list[str]]:
  """Draws metrics against rounds, each method with the next.

  Of the test where runs have its curve, else of validation data.

  Args:
    comparison: Of runs with rows.
    folder: Where `curves_cold_warm.png`, `.svg` and so on are written.

  Returns:
    The panels as SVG for a page, by methods, one for each metric: text and axes
    have the colour of the text around them.
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
  """One metric, as SVG for a page."""
  text = io.StringIO()
  with _style(_INK) as plt:
    figure = _draw(plt, comparison, methods, [metric])
    figure.savefig(
      text, format='svg', transparent=True, metadata={'Date': None}
    )
    plt.close(figure)
  return for_page(text.getvalue(), name)


def for_page(svg: str, name: str) -> str:
  """Returns an SVG that can stand in an HTML page.

  Args:
    svg: A file of matplotlib.
    name: Makes the ids in it different from those of other figures.
  """
  svg = svg[svg.index('<svg') :]
  svg = svg.replace(_INK, 'currentColor')
  svg = re.sub(r'\bid="', f'id="{name}-', svg)
  svg = re.sub(r'url\(#', f'url(#{name}-', svg)
  svg = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', svg)
  # The page decides about the size; the view box keeps the proportions.
  return re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1', svg, count=1).replace(
    ' height="', ' data-height="', 1
  )


def draw_heat_map(
  values: np.ndarray,
  *,
  rows: Sequence[str],
  columns: Sequence[str],
  row_title: Optional[str],
  column_title: str,
  title: str,
  path: os.PathLike,
  smaller_is_better: bool = False,
) -> None:
  """Draws a grid of numbers; darker is better, and what is missing is blank.

  Args:
    values: [rows, columns]; NaN where there is none.
    rows: Labels.
    columns: Labels.
    row_title: What rows are; None without.
    column_title: What columns are.
    title: Of the figure.
    path: A PNG or SVG file.
    smaller_is_better: Whether low values are the good ones.
  """
  with _style('black') as plt:
    size = (1.8 + 0.95 * len(columns), 1.5 + 0.55 * len(rows))
    figure, axes = plt.subplots(figsize=size)
    colours = 'YlGnBu_r' if smaller_is_better else 'YlGnBu'
    image = axes.imshow(values, cmap=colours, aspect='auto')
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(column_title)
    if row_title is not None:
      axes.set_ylabel(row_title)
    axes.set_title(title, fontsize=10)
    for spine in axes.spines.values():
      spine.set_visible(False)
    for (i, j), value in np.ndenumerate(values):
      if np.isfinite(value):
        red, green, blue, _ = image.cmap(image.norm(value))
        light = 0.3 * red + 0.6 * green + 0.1 * blue > 0.55
        axes.text(
          j,
          i,
          f'{value:.4g}',
          ha='center',
          va='center',
          color='black' if light else 'white',
        )
    _save(figure, plt, pathlib.Path(path))
