"""Figures of the simulation and of the theory, as PNG and SVG.

matplotlib is imported when a figure is drawn.
"""

from collections.abc import Sequence
import math
import os
import pathlib
from typing import Any

import numpy as np
from pda_fed.linear_regression import bounds
from pda_fed.linear_regression import gaussian_width
from pda_fed.linear_regression import noise_stability
from pda_fed.linear_regression import quadratic
from pda_fed.linear_regression import summary as summary_lib

# Colours that are safe for colour-blind readers.
_STYLES = {
  'cold': ('DP-SGD, cold start', '#d55e00', 'o'),
  'warm': ('DP-SGD, warm start', '#0072b2', 's'),
  'pda': ('PDA-DPMD', '#009e73', 'D'),
  'public': ('public data alone', '#777777', '^'),
}
_OPTIMUM = 0.01


def new_figure(num_panels: int) -> tuple[Any, Any]:
  """Returns a figure with panels side by side, and the panels."""
  import matplotlib

  matplotlib.use('Agg')
  # Make the SVG reproducible.
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


def save_figure(figure, path: os.PathLike | str) -> list[pathlib.Path]:
  """Writes a figure as PNG and SVG, and closes it."""
  from matplotlib import pyplot as plt

  path = pathlib.Path(path)
  paths = [path.with_suffix('.png'), path.with_suffix('.svg')]
  figure.savefig(paths[0], dpi=150)
  figure.savefig(paths[1], metadata={'Date': None})
  plt.close(figure)
  return paths


def plot_simulation(
  summaries: Sequence[summary_lib.Summary],
  condition_numbers: dict[int, float],
  path: os.PathLike | str,
) -> list[pathlib.Path]:
  """Draws figure 1 of the paper, and the condition number over p.

  Example:

  ```
  trials = [run_trial(config, 300, trial) for trial in range(3)]
  plot_simulation(summarize(trials), {}, 'figure_1.png')
  ```

  Args:
    summaries: The result of `summary.summarize`.
    condition_numbers: Condition numbers of the public Hessian, by p.
    path: The output path; its suffix is replaced by .png and .svg.

  Returns:
    The paths of the files.
  """
  figure, panels = new_figure(3)
  methods = {s.method for s in summaries}
  left: list[str] = [m for m in ('cold', 'warm') if m in methods]
  order = ('public', 'warm', 'pda')
  right: list[str] = [m for m in order if m in methods]
  titles = '(a) cold and warm start', '(b) warm start and PDA-DPMD'
  for panel, chosen, title in zip(panels, (left, right), titles, strict=False):
    for method in chosen:
      _plot_method(panel, [s for s in summaries if s.method == method])
    panel.axhline(_OPTIMUM, color='black', lw=1, ls=':', label='optimum, 0.01')
    panel.set_ylim(bottom=0)
    _label(panel, title, 'dimension p', 'empirical loss (mean squared error)')
  found = {p: c for p, c in condition_numbers.items() if math.isfinite(c)}
  panels[2].plot(list(found), list(found.values()), 'o-', color='black')
  panels[2].set_ylim(0, 1.15 * max(found.values(), default=1.0))
  panels[2].set_title('(c) condition of the public Hessian', fontsize=11)
  panels[2].set_xlabel('dimension p')
  panels[2].set_ylabel(r'$\lambda_{max} / \lambda_{min}$ without null space')
  return save_figure(figure, path)


def plot_theory(
  path: os.PathLike | str, *, seed: int = 0
) -> list[pathlib.Path]:
  """Draws examples of the theory: chi, Gaussian widths, noise stability.

  Example:

  ```
  plot_theory('theory.png')
  ```

  Args:
    path: The output path; its suffix is replaced by .png and .svg.
    seed: Seed of the Monte Carlo points.

  Returns:
    The paths of the files.
  """
  figure, panels = new_figure(3)
  _plot_chi(panels[0])
  _plot_widths(panels[1], np.random.default_rng(seed))
  _plot_stability(panels[2], np.random.default_rng(seed))
  return save_figure(figure, path)


def _plot_chi(panel) -> None:
  dimensions = [int(p) for p in np.geomspace(1e2, 1e5, 13)]
  delta = math.exp(-1)  # log(1/delta) is 1, so only powers of p remain.

  def plot(values, *args, **kwargs) -> None:
    # Divide by p^2, the isotropic case.
    scaled = [v / p**2 for v, p in zip(values, dimensions, strict=True)]
    panel.loglog(dimensions, scaled, *args, **kwargs)

  plot(
    [p / bounds.one_flat_direction(p).min() for p in dimensions],
    color=_STYLES['warm'][1],
    lw=4,
    alpha=0.4,
    label='DP-SGD',
  )
  for c, style in ((2.0, '-.'), (2.25, '--'), (2.4, ':'), (2.5, '-')):
    values = [
      bounds.chi(bounds.one_flat_direction(p), p**c, delta) for p in dimensions
    ]
    label = rf'PDA-DPMD, $n_{{pub}} = p^{{{c:g}}}$'
    plot(values, style, color=_STYLES['pda'][1], label=label)
  isotropic = [bounds.chi(bounds.isotropic(p), p, delta) for p in dimensions]
  plot(isotropic, color='black', lw=1, label='both, isotropic')
  panel.set_ylim(top=3e4)  # Room for the legend.
  title = r'(a) $\lambda_{min} = p^{-1.5}$, the others $1/p$'
  _label(panel, title, 'dimension p', r'cost of privacy, $\chi / p^2$')


def _plot_widths(panel, rng: np.random.Generator) -> None:
  dimensions = [int(p) for p in np.geomspace(2, 1e4, 12)]
  radii = {p: 1 / np.sqrt(np.arange(1, p + 1)) for p in dimensions}
  for label, formula, support, color in (
    (
      r'$\ell_\infty$ ball, radius $p^{-1/2}$',
      lambda p: gaussian_width.linf_ball(p, p**-0.5),
      lambda p: lambda g: gaussian_width.linf_support(g) * p**-0.5,
      '#d55e00',
    ),
    (
      r'ellipsoid, $r_i = i^{-1/2}$',
      lambda p: gaussian_width.ellipsoid(radii[p]),
      lambda p: gaussian_width.ellipsoid_support(radii[p]),
      '#0072b2',
    ),
    (
      r'$\ell_1$ ball',
      gaussian_width.l1_ball,
      lambda p: gaussian_width.l1_support,
      '#009e73',
    ),
  ):
    panel.loglog(
      dimensions, [formula(p) for p in dimensions], color=color, label=label
    )
    estimates = [
      gaussian_width.monte_carlo(support(p), p, num_samples=200, rng=rng)[0]
      for p in dimensions
    ]
    panel.loglog(dimensions, estimates, 'o', color=color, ms=4)
  title = '(b) Gaussian width: formula and Monte Carlo'
  _label(panel, title, 'dimension p')


def _plot_stability(panel, rng: np.random.Generator) -> None:
  p = 20
  psi = quadratic.QuadraticMirrorMap(
    rng.standard_normal((60, p)) * np.geomspace(1, 3, p),
    rng.standard_normal(60),
  )
  eigenvalues, basis = np.linalg.eigh(psi.hessian())
  random = rng.standard_normal((p, p))
  random /= np.linalg.norm(random, axis=0)
  settings = {'learning_rate': 1.0, 'noise_stddev': 1.0}
  for directions, label, marker in (
    (basis, 'eigen-directions', 'o'),
    (random, 'random directions', 'D'),
  ):
    expected = [
      noise_stability.expected_displacement(eigenvalues, a, **settings)
      for a in (basis.T @ directions).T
    ]
    found = noise_stability.simulated_displacement(
      psi,
      np.zeros(p),
      np.zeros(p),
      directions,
      num_samples=20_000,
      rng=rng,
      **settings,
    )
    panel.loglog(expected, found, marker, ms=4, label=label)
  limits = [0.5 * min(1 / eigenvalues), 1.0]
  panel.loglog(limits, limits, 'k-', lw=1, label='theorem')
  panel.axhline(
    math.sqrt(2 / math.pi), color=_STYLES['warm'][1], ls=':', label='DP-SGD'
  )
  title = '(c) how far the noise of a step moves'
  _label(panel, title, 'by the theorem', 'simulated')


def _label(panel, title: str, x: str, y: str = '') -> None:
  panel.set_title(title, fontsize=11)
  panel.set_xlabel(x)
  panel.set_ylabel(y)
  panel.legend(fontsize=8)


def _plot_method(panel, summaries: Sequence[summary_lib.Summary]) -> None:
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
