"""Figures of the simulation and of the theory, as PNG and SVG.

matplotlib is imported when a figure is drawn.
"""

from collections.abc import Sequence
import math
import os
import pathlib

import numpy as np
from pda_fed.linear_regression import simulation

# Colours that people who do not see red or green tell apart.
_STYLES = {
  'cold': ('DP-SGD, cold start', '#d55e00', 'o'),
  'warm': ('DP-SGD, warm start', '#0072b2', 's'),
  'pda': ('PDA-DPMD', '#009e73', 'D'),
  'public': ('public data alone', '#777777', '^'),
  'statistics': ('DP sufficient statistics', '#cc79a7', 'v'),
}
_OPTIMUM = 0.01


def new_figure(num_panels: int):
  """Returns a figure with panels side by side, and the panels."""
  import matplotlib

  matplotlib.use('Agg')
  # The same figure gives the same SVG.
  matplotlib.rcParams['svg.hashsalt'] = 'pda_fed'
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(
    1, num_panels, figsize=(4.2 * num_panels, 3.6), layout='constrained'
  )
  panels = np.atleast_1d(axes)
  for panel in panels:
    panel.grid(alpha=0.3)
    panel.spines[['top', 'right']].set_visible(False)
  return figure, panels


def save_figure(figure, path: os.PathLike) -> list[pathlib.Path]:
  """Writes a figure as PNG and as SVG beside it, and closes it."""
  from matplotlib import pyplot as plt

  path = pathlib.Path(path)
  paths = [path.with_suffix('.png'), path.with_suffix('.svg')]
  figure.savefig(paths[0], dpi=150)
  figure.savefig(paths[1], metadata={'Date': None})
  plt.close(figure)
  return paths


def plot_simulation(
  summaries: Sequence[simulation.Summary],
  condition_numbers: dict[int, float],
  path: os.PathLike,
) -> list[pathlib.Path]:
  """Draws figure 1 of the paper, and the condition number against p.

  Args:
    summaries: Of `simulation.summarize`.
    condition_numbers: Of the public Hessian, by p.
    path: Its suffix is replaced by .png and .svg.

  Returns:
    The files.
  """
  figure, panels = new_figure(3)
  methods = {s.method for s in summaries}
  left = [m for m in ('cold', 'warm') if m in methods]
  right = [m for m in ('public', 'statistics', 'warm', 'pda') if m in methods]
  titles = '(a) cold and warm start', '(b) warm start and PDA-DPMD'
  for panel, chosen, title in zip(panels, (left, right), titles, strict=False):
    for method in chosen:
      _plot_method(panel, [s for s in summaries if s.method == method])
    panel.axhline(_OPTIMUM, color='black', lw=1, ls=':', label='optimum, 0.01')
    panel.set_title(title, fontsize=11)
    panel.set_xlabel('dimension p')
    panel.set_ylabel('empirical loss (mean squared error)')
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=8)
  found = {p: c for p, c in condition_numbers.items() if math.isfinite(c)}
  panels[2].plot(list(found), list(found.values()), 'o-', color='black')
  panels[2].set_title('(c) condition of the public Hessian', fontsize=11)
  panels[2].set_xlabel('dimension p')
  panels[2].set_ylabel(r'$\lambda_{max} / \lambda_{min}$ without null space')
  panels[2].set_ylim(bottom=0)
  return save_figure(figure, path)


def _plot_method(panel, summaries: Sequence[simulation.Summary]) -> None:
  label, color, marker = _STYLES[summaries[0].method]
  panel.errorbar(
    [s.p for s in summaries],
    [s.loss for s in summaries],
    yerr=[np.nan_to_num(s.half_width) for s in summaries],
    label=label,
    color=color,
    marker=marker,
    ms=5,
    lw=1.5,
    capsize=3,
  )
