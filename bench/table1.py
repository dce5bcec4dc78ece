"""Plots Table 1 from its recorded runs, and prints its verdicts.

    python -m bench.table1

A row of the figure is a data set. Its panels show accuracy and perplexity on
validation users: means over seeds, and for each seed the difference between
PDA-DPMD and warm start. The program reads results/table1/final.csv and
curves.csv, and writes results/table1/curves.png.
"""

from collections.abc import Iterator, Mapping, Sequence
import csv
import math
import pathlib
import statistics

from absl import app
from pda_fed import methods
from pda_fed.analysis import verdicts

_RESULTS = pathlib.Path(__file__).parents[1] / 'results/table1'
_DATA = {'blogs': 'blogs', 'stackexchange': 'Stack Exchange'}
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
# Warm start is drawn over PDA-DPMD, since the two nearly coincide.
_STYLES = {
  'cold': {'linestyle': ':'},
  'warm': {'linestyle': (0, (4, 4)), 'zorder': 3},
  'pda': {'linestyle': '-'},
}
_SETTINGS = (
  'data',
  'method',
  'server_learning_rate',
  'client_learning_rate',
  'alpha_i',
  'seed',
)

# A row of a file, by column.
Row = Mapping[str, str]
# Validation values by seed and round.
Curves = Mapping[str, Mapping[int, float]]


def _read(name: str) -> list[Row]:
  with (_RESULTS / f'{name}.csv').open(newline='') as file:
    return list(csv.DictReader(file))


def sentences(runs: Sequence[Row], data: str) -> Iterator[str]:
  """Yields the verdict by each metric, and clear leads over other methods.

  Args:
    runs: Rows of final.csv.
    data: The name of the data set.
  """
  values: dict[str, dict[str, dict[str, float]]] = {
    metric: {method: {} for method in _METHODS} for metric in _METRICS
  }
  for run in runs:
    if run['data'] == data and run['method'] in _METHODS:
      for metric in _METRICS:
        values[metric][run['method']][run['seed']] = float(run[metric])
  means = {
    method: {
      metric: statistics.fmean(values[metric][method].values())
      for metric in _METRICS
    }
    for method in _METHODS
  }
  writer = verdicts.Writer(_METRICS, methods.title, means)
  found = {}
  for metric in _METRICS:
    if verdict := verdicts.decide(metric, values[metric]):
      found[metric] = verdict
      yield writer.sentence(verdict)
      if others := writer.others(verdict):
        yield others
  if disagreement := writer.disagreement(found):
    yield disagreement


def read_curves(
  points: Sequence[Row], runs: Sequence[Row]
) -> dict[tuple[str, str, str], dict[str, dict[int, float]]]:
  """Returns curves of finished runs by data set, method and metric.

  Args:
    points: Rows of curves.csv.
    runs: Rows of final.csv. Curves of other runs are left out.
  """
  finished = {tuple(run[name] for name in _SETTINGS) for run in runs}
  curves: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
  for point in points:
    if tuple(point[name] for name in _SETTINGS) not in finished:
      continue
    values = {
      'accuracy': 100 * float(point['accuracy']),
      'perplexity': math.exp(float(point['loss'])),
    }
    for metric, value in values.items():
      key = point['data'], point['method'], metric
      of_seed = curves.setdefault(key, {}).setdefault(point['seed'], {})
      of_seed[int(point['round'])] = value
  return curves


def _plot_means(axes, curves: Mapping[str, Curves]) -> None:
  """Draws each method's mean over seeds, by method."""
  shown = []
  for method, by_seed in curves.items():
    runs = list(by_seed.values())
    rounds = [r for r in runs[0] if all(r in run for run in runs)]
    means = [statistics.fmean(run[r] for run in runs) for r in rounds]
    kind = methods.get(method)
    style = {'color': kind.colour, 'label': kind.title} | _STYLES[method]
    axes.plot(rounds, means, linewidth=1.8, **style)
    shown += means[len(means) // 4 :]
  # The first rounds of cold start are far from the rest.
  margin = 0.05 * (max(shown) - min(shown))
  axes.set_ylim(min(shown) - margin, max(shown) + margin)


def _plot_differences(axes, pda: Curves, warm: Curves) -> None:
  """Draws PDA-DPMD minus warm start, a line for each seed."""
  axes.axhline(0, color='#888888', linewidth=1)
  colour = methods.get('pda').colour
  for seed, by_round in pda.items():
    differences = [value - warm[seed][r] for r, value in by_round.items()]
    axes.plot(list(by_round), differences, color=colour, alpha=0.7)


def draw(
  curves: Mapping[tuple[str, str, str], Curves], path: pathlib.Path
) -> None:
  """Plots a row of panels for each data set.

  Args:
    curves: The result of `read_curves`.
    path: The PNG file.
  """
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  figure, places = plt.subplots(
    2, 4, figsize=(12, 5.2), layout='constrained', sharex=True
  )
  for (data, title), row in zip(_DATA.items(), places, strict=True):
    row[0].set_ylabel(title, fontsize='large')
    for place, metric in enumerate(_SHOWN):
      by_method = {m: curves[data, m, metric] for m in _METHODS}
      _plot_means(row[place], by_method)
      differences = row[len(_SHOWN) + place]
      _plot_differences(differences, by_method['pda'], by_method['warm'])
    for axes in row:
      axes.grid(alpha=0.3)
      axes.spines[['top', 'right']].set_visible(False)
  of_values, of_differences = zip(*_SHOWN.values(), strict=True)
  for axes, title in zip(places[0], of_values + of_differences, strict=True):
    axes.set_title(title, fontsize='medium')
  figure.supxlabel('round', fontsize='medium')
  handles, names = places[0, 0].get_legend_handles_labels()
  figure.legend(
    handles, names, loc='outside upper left', ncols=3, frameon=False
  )
  figure.savefig(path, dpi=110)
  plt.close(figure)


def main(argv: Sequence[str]) -> None:
  """Prints the verdicts and draws the figure."""
  del argv
  runs = _read('final')
  for data, title in _DATA.items():
    print(f'{title}:', *sentences(runs, data), sep='\n  ')
  path = _RESULTS / 'curves.png'
  draw(read_curves(_read('curves'), runs), path)
  print(f'Wrote {path}.')


if __name__ == '__main__':
  app.run(main)
