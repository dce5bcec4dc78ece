"""Plots the curves of Table 1 from its recorded runs.

    python -m bench.table1

A row of the figure is a data set. Its panels show accuracy and perplexity on
validation users: means over seeds, and for each seed the difference between
PDA-DPMD and warm start. The program reads curves.csv in results/table1, and
writes curves.png there.
"""

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import NamedTuple

from absl import app
from pda_fed import methods
from pda_fed.compare import names

from tools import recorded


class Runs(NamedTuple):
  """Runs to compare: one setting of each method.

  Pre-training on a GPU gives slightly different models when it is repeated.
  Runs with the same seed and the same number in the column `pretraining` start
  from the same model. Only such runs are compared.

  Attributes:
    data: The data set.
    cold_rate: The server learning rate of cold start.
    rate: That of the others.
    i: PDA-DPMD's i.
    pretraining: The number of the pre-training of seeds 0, 1 and 2.
  """

  data: str
  cold_rate: str
  rate: str
  i: str
  pretraining: str

  def has(self, row: Mapping[str, str]) -> bool:
    """Returns whether a row of a file of results is of such a run."""
    cold = row['method'] == 'cold'
    start = '' if cold else self.pretraining[int(row['seed'])]
    return (
      row['data'] == self.data
      and row['server_learning_rate'] == (self.cold_rate if cold else self.rate)
      and row['alpha_i'] == (self.i if row['method'] == 'pda' else '')
      and row['pretraining'] == start
    )


# On Stack Exchange, runs with i = 16 began with models that differ from those
# of warm start, so they are not compared.
COMPARISONS = {
  'Blogs': Runs('blogs', '4', '3', '8', '556'),
  'Blogs, server rate 2': Runs('blogs', '4', '2', '8', '111'),
  'Blogs, public gradients': Runs('blogs', '4', '2', '8', '444'),
  'Stack Exchange, i = 8': Runs('stackexchange', '3', '1', '8', '111'),
  'Stack Exchange, public gradients': Runs(
    'stackexchange', '3', '1', '8', '333'
  ),
}
# Rows of the figure: the comparison whose curves are shown, and those whose
# differences are shown, by label with the line's style.
_ROWS = {
  'Blogs': {
    'server rate 3': ('Blogs', '-'),
    'rate 2': ('Blogs, server rate 2', '--'),
    'rate 2, public gradients': ('Blogs, public gradients', ':'),
  },
  'Stack Exchange, i = 8': {
    'local training': ('Stack Exchange, i = 8', '-'),
    'public gradients': ('Stack Exchange, public gradients', ':'),
  },
}
# Metrics, with the title of values and of differences.
_SHOWN = {
  'accuracy': ('accuracy over known words (%)', '(points)'),
  'perplexity': ('perplexity', ''),
}
# Warm start is drawn over PDA-DPMD, since the two nearly coincide.
_STYLES = {
  'cold': {'linestyle': ':'},
  'warm': {'linestyle': (0, (4, 4)), 'zorder': 3},
  'pda': {'linestyle': '-'},
}

# Validation values by method and metric, then by seed and round.
_BySeed = Mapping[str, Mapping[int, float]]
_Curves = Mapping[tuple[str, str], _BySeed]


def read_curves(points: recorded.Runs, runs: Runs) -> _Curves:
  """Returns curves of runs by method and metric, then by seed and round.

  Args:
    points: Rows of curves.csv.
    runs: The runs to show.
  """
  curves: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
  for point in filter(runs.has, points):
    values = {
      'accuracy': 100 * float(point['accuracy']),
      'perplexity': math.exp(float(point['loss'])),
    }
    for metric, value in values.items():
      by_seed = curves.setdefault((point['method'], metric), {})
      by_seed.setdefault(point['seed'], {})[int(point['round'])] = value
  return curves


def _plot_means(axes, curves: Mapping[str, _BySeed]) -> None:
  """Draws each method's mean over the seeds that all methods have."""
  seeds = set.intersection(*map(set, curves.values()))
  shown = []
  for method, by_seed in curves.items():
    runs = [by_seed[seed] for seed in seeds]
    rounds = [r for r in runs[0] if all(r in run for run in runs)]
    means = [statistics.fmean(run[r] for run in runs) for r in rounds]
    style = {'color': names.colour(method), 'label': methods.title(method)}
    axes.plot(rounds, means, linewidth=1.8, **style, **_STYLES[method])
    shown += means[len(means) // 4 :]
  # The first rounds of cold start are far from the rest.
  margin = 0.05 * (max(shown) - min(shown))
  axes.set_ylim(min(shown) - margin, max(shown) + margin)


def _plot_differences(axes, curves: _Curves, metric: str, **style) -> None:
  """Draws PDA-DPMD minus warm start, a line for each seed."""
  style |= {'color': names.colour('pda'), 'alpha': 0.7}
  warm = curves['warm', metric]
  for seed, by_round in curves['pda', metric].items():
    differences = [value - warm[seed][r] for r, value in by_round.items()]
    axes.plot(list(by_round), differences, **style)
    style['label'] = '_'  # One entry in the legend.


def main(argv: Sequence[str]) -> None:
  """Draws the figure, a row of panels for each data set."""
  import matplotlib

  del argv
  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  points = recorded.runs('table1/curves')
  curves = {name: read_curves(points, r) for name, r in COMPARISONS.items()}
  figure, places = plt.subplots(
    2, 4, figsize=(12, 5.2), layout='constrained', sharex=True
  )
  for (shown, compared), row in zip(_ROWS.items(), places, strict=True):
    row[0].set_ylabel(shown.partition(',')[0], fontsize='large')
    for place, metric in enumerate(_SHOWN):
      by_method = {m: curves[shown][m, metric] for m in _STYLES}
      _plot_means(row[place], by_method)
      differences = row[len(_SHOWN) + place]
      differences.axhline(0, color='#888888', linewidth=1)
      for label, (title, line) in compared.items():
        style = {'label': label, 'linestyle': line}
        _plot_differences(differences, curves[title], metric, **style)
    for axes in row:
      axes.grid(alpha=0.3)
      axes.spines[['top', 'right']].set_visible(False)
    row[-1].legend(frameon=False, fontsize='small')
  for place, (title, unit) in enumerate(_SHOWN.values()):
    places[0, place].set_title(title, fontsize='medium')
    title = title.replace('(%)', unit)
    places[0, len(_SHOWN) + place].set_title(
      f'PDA-DPMD minus warm start,\n{title}', fontsize='medium'
    )
  figure.supxlabel('round (values on validation users)', fontsize='medium')
  handles, labels = places[0, 0].get_legend_handles_labels()
  figure.legend(
    handles, labels, loc='outside upper left', ncols=3, frameon=False
  )
  path = recorded.RESULTS / 'table1/curves.png'
  figure.savefig(path, dpi=110)
  print(f'Wrote {path}.')


if __name__ == '__main__':
  app.run(main)
