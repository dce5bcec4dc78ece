"""Plots Table 1 from its recorded runs, and prints its verdicts.

    python -m bench.table1

A row of the figure is a data set. Its panels show accuracy and perplexity on
validation users: means over seeds, and for each seed the difference between
PDA-DPMD and warm start. The program reads final.csv, other_runs.csv and
curves.csv in results/table1, and writes curves.png there.

Pre-training on a GPU gives slightly different models when it is repeated. Runs
with the same seed and the same number in the column `pretraining` start from
the same model. Only such runs are compared.
"""

from collections.abc import Iterator, Mapping, Sequence
import csv
import math
import pathlib
import statistics

from absl import app
from pda_fed import methods
from pda_fed.compare import findings
from pda_fed.compare import names
from pda_fed.compare import verdicts

_RESULTS = pathlib.Path(__file__).parents[1] / 'results/table1'
_METHODS = ('cold', 'warm', 'pda')
_METRICS = ('perplexity', 'accuracy', 'accuracy_with_oov')
# Metrics of the figure, with the titles of values and of differences.
_SHOWN = {
  'accuracy': (
    'accuracy over known words (%)',
    'PDA-DPMD minus warm start,\naccuracy over known words (points)',
  ),
  'perplexity': ('perplexity', 'PDA-DPMD minus warm start,\nperplexity'),
}
# Rows of the figure: the data set, the comparison whose curves are shown, and
# the comparisons whose differences are shown, by label with the line's style.
_ROWS = (
  (
    'Blogs',
    'Blogs',
    {
      'server rate 3': ('Blogs', '-'),
      'rate 2': ('Blogs, server rate 2', '--'),
      'rate 2, public gradients': ('Blogs, public gradients', ':'),
    },
  ),
  (
    'Stack Exchange',
    'Stack Exchange, i = 8',
    {
      'local training': ('Stack Exchange, i = 8', '-'),
      'public gradients': ('Stack Exchange, public gradients', ':'),
    },
  ),
)
# Warm start is drawn over PDA-DPMD, since the two nearly coincide.
_STYLES = {
  'cold': {'linestyle': ':'},
  'warm': {'linestyle': (0, (4, 4)), 'zorder': 3},
  'pda': {'linestyle': '-'},
}
# Columns that identify a run.
SETTINGS = (
  'data',
  'method',
  'server_learning_rate',
  'client_learning_rate',
  'alpha_i',
  'public_update',
  'seed',
  'pretraining',
)

# A row of a file, by column.
Row = Mapping[str, str]
# Validation values by method and metric, then by seed and round.
BySeed = Mapping[str, Mapping[int, float]]
Curves = Mapping[tuple[str, str], BySeed]


def _read(name: str) -> list[Row]:
  with (_RESULTS / f'{name}.csv').open(newline='') as file:
    return list(csv.DictReader(file))


def _where(rows: Sequence[Row], **wanted: str) -> list[Row]:
  return [r for r in rows if all(r[name] == v for name, v in wanted.items())]


def comparisons(
  final: Sequence[Row], others: Sequence[Row]
) -> dict[str, list[Row]]:
  """Returns the runs to compare, by title: one setting of each method.

  Args:
    final: Rows of final.csv. On Stack Exchange, its runs with local training
      and of warm start began with different models, so they are not compared.
    others: Rows of other_runs.csv.
  """
  first = {
    data: [
      *_where(final, data=data, method='cold'),
      *_where(others, data=data, pretraining='1'),
    ]
    for data in ('blogs', 'stackexchange')
  }
  on_stackexchange = _where(final, data='stackexchange')
  return {
    'Blogs': _where(final, data='blogs'),
    'Blogs, server rate 2': first['blogs'],
    'Stack Exchange, i = 8': first['stackexchange'],
    'Stack Exchange, public gradients': [
      run
      for run in on_stackexchange
      if run['public_update'] != 'local_training'
    ],
  }


def sentences(runs: Sequence[Row]) -> Iterator[str]:
  """Yields the verdict by each metric, and clear leads over other methods.

  Args:
    runs: One of `comparisons`.
  """
  values: dict[str, dict[str, dict[str, float]]] = {
    metric: {method: {} for method in _METHODS} for metric in _METRICS
  }
  for run in runs:
    if run['method'] in _METHODS:
      for metric in _METRICS:
        values[metric][run['method']][run['seed']] = float(run[metric])
  means = {
    method: {
      metric: statistics.fmean(values[metric][method].values())
      for metric in _METRICS
    }
    for method in _METHODS
  }
  writer = findings.Writer(_METRICS, means)
  found = {}
  for metric in _METRICS:
    if verdict := verdicts.decide(metric, values[metric]):
      found[metric] = verdict
      yield writer.sentence(verdict)
      yield from writer.others(verdict)
  yield from writer.disagreement(found)


def read_curves(points: Sequence[Row], runs: Sequence[Row]) -> Curves:
  """Returns curves of runs by method and metric, then by seed and round.

  Args:
    points: Rows of curves.csv.
    runs: Runs by their settings. Curves of other runs are left out.
  """
  wanted = {tuple(run[name] for name in SETTINGS) for run in runs}
  curves: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
  for point in points:
    if tuple(point[name] for name in SETTINGS) not in wanted:
      continue
    values = {
      'accuracy': 100 * float(point['accuracy']),
      'perplexity': math.exp(float(point['loss'])),
    }
    for metric, value in values.items():
      key = point['method'], metric
      of_seed = curves.setdefault(key, {}).setdefault(point['seed'], {})
      of_seed[int(point['round'])] = value
  return curves


def _plot_means(axes, curves: Mapping[str, BySeed]) -> None:
  """Draws each method's mean over the seeds that all methods have."""
  seeds = set.intersection(*map(set, curves.values()))
  shown = []
  for method, by_seed in curves.items():
    runs = [by_seed[seed] for seed in seeds]
    rounds = [r for r in runs[0] if all(r in run for run in runs)]
    means = [statistics.fmean(run[r] for run in runs) for r in rounds]
    kind = methods.get(method)
    style = {'color': names.colour(method), 'label': kind.title} | _STYLES[
      method
    ]
    axes.plot(rounds, means, linewidth=1.8, **style)
    shown += means[len(means) // 4 :]
  # The first rounds of cold start are far from the rest.
  margin = 0.05 * (max(shown) - min(shown))
  axes.set_ylim(min(shown) - margin, max(shown) + margin)


def _plot_differences(axes, curves: Curves, metric: str, **style) -> None:
  """Draws PDA-DPMD minus warm start, a line for each seed."""
  style |= {'color': names.colour('pda'), 'alpha': 0.7}
  warm = curves['warm', metric]
  for seed, by_round in curves['pda', metric].items():
    differences = [value - warm[seed][r] for r, value in by_round.items()]
    axes.plot(list(by_round), differences, **style)
    style['label'] = '_'  # One entry in the legend.


def draw(curves: Mapping[str, Curves], path: pathlib.Path) -> None:
  """Plots a row of panels for each data set.

  Args:
    curves: The results of `read_curves`, by the title of the comparison.
    path: The PNG file.
  """
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  figure, places = plt.subplots(
    2, 4, figsize=(12, 5.2), layout='constrained', sharex=True
  )
  for (name, shown, compared), row in zip(_ROWS, places, strict=True):
    row[0].set_ylabel(name, fontsize='large')
    for place, metric in enumerate(_SHOWN):
      by_method = {m: curves[shown][m, metric] for m in _METHODS}
      _plot_means(row[place], by_method)
      differences = row[len(_SHOWN) + place]
      differences.axhline(0, color='#888888', linewidth=1)
      for label, (title, line) in compared.items():
        style = {'label': label, 'linestyle': line}
        _plot_differences(differences, curves[title], metric, **style)
    for axes in row:
      axes.grid(alpha=0.3)
      axes.spines[['top', 'right']].set_visible(False)
  of_values, of_differences = zip(*_SHOWN.values(), strict=True)
  for axes, title in zip(places[0], of_values + of_differences, strict=True):
    axes.set_title(title, fontsize='medium')
  figure.supxlabel('round (values on validation users)', fontsize='medium')
  handles, names = places[0, 0].get_legend_handles_labels()
  figure.legend(
    handles, names, loc='outside upper left', ncols=3, frameon=False
  )
  for axes in places[:, 3]:
    axes.legend(frameon=False, fontsize='small')
  figure.savefig(path, dpi=110)
  plt.close(figure)


def main(argv: Sequence[str]) -> None:
  """Prints the verdicts and draws the figure."""
  del argv
  compared = comparisons(_read('final'), _read('other_runs'))
  for title, runs in compared.items():
    print(f'{title}:', *sentences(runs), sep='\n  ')
  points = _read('curves')
  path = _RESULTS / 'curves.png'
  # One of these runs on blogs stopped early, so that no file has its end.
  compared['Blogs, public gradients'] = _where(
    points, data='blogs', server_learning_rate='2', pretraining='4'
  )
  draw(
    {title: read_curves(points, runs) for title, runs in compared.items()},
    path,
  )
  print(f'Wrote {path}.')


if __name__ == '__main__':
  app.run(main)
