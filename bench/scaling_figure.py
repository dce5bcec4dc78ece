"""Plots the curves of `bench.scaling`."""

from collections.abc import Sequence
import pathlib

_PANELS = (
  ('cohort', 'clients of a round', 'rounds a second'),
  ('users', 'users in the store', 'rounds a second'),
  ('memory', 'users in the store', "the process's memory, MB"),
)
_STYLES = {'jax': ('#1b6ca8', 'o'), 'tff': ('#c8553d', 's')}


def draw(points: Sequence, folder: pathlib.Path) -> list[pathlib.Path]:
  """Plots a panel for each measured axis.

  Args:
    points: Points of `bench.scaling`.
    folder: Folder of scaling.png and scaling.svg.

  Returns:
    The files.
  """
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  panels = [p for p in _PANELS if any(point.axis == p[0] for point in points)]
  if not panels:
    return []
  with plt.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': 'pda_fed'}):
    figure, all_axes = plt.subplots(
      1, len(panels), figsize=(3.4 * len(panels), 3.2), layout='constrained'
    )
    for axes, (name, x_title, y_title) in zip(
      [all_axes] if len(panels) == 1 else all_axes, panels, strict=True
    ):
      for engine, (color, marker) in _STYLES.items():
        of = [p for p in points if (p.axis, p.engine) == (name, engine)]
        values = [
          p.megabytes if name == 'memory' else 1 / p.seconds for p in of
        ]
        if of:
          axes.plot(
            [p.x for p in of], values, color=color, marker=marker, label=engine
          )
      axes.set_xscale('log')
      if name == 'cohort':
        axes.set_yscale('log')
      else:
        # Start at 0, to show that values do not change much.
        axes.set_ylim(bottom=0)
      axes.set_xlabel(x_title)
      axes.set_ylabel(y_title)
      axes.grid(alpha=0.3, which='both')
      axes.legend()
    paths = [folder / f'scaling.{kind}' for kind in ('png', 'svg')]
    for path in paths:
      options = {'metadata': {'Date': None}} if path.suffix == '.svg' else {}
      figure.savefig(path, dpi=120, **options)
    plt.close(figure)
  return paths
