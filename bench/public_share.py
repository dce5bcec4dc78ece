"""Plots what public data add at equal learning rates, from the benchmark.

    python -m bench.public_share

A try of PDA-DPMD or Semi-DP gives the public update some weight. The figure
compares its validation loss with that of the warm start's try at the same
learning rates, against the mean weight over the run. Of the rates that both
tried from one pre-trained model, it shows the warm start's best. It reads
results/benchmark/search.csv and writes results/benchmark/public_share.png.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import NamedTuple, Optional

from absl import app
from pda_fed import methods
from pda_fed import schedules
from pda_fed.compare import benchmark_tasks
from pda_fed.compare import names

from tools import recorded

_METHODS = ('pda', 'semi_dp')
_TASKS = pathlib.Path(__file__).parents[1] / 'scripts/benchmark_tasks'
# Learning rates at which warm start and the others have the same pre-trained
# model: see docs/benchmark.md.
_SAME_START = {
  'cifar10_eps0.185': ('0.3', '1'),
  'cifar10_eps2': ('0.7', '1.5'),
  'cifar10_eps3.51': ('0.7', '1.5'),
}


class Point(NamedTuple):
  """A try beside the warm start's try at the same learning rates.

  Attributes:
    task: The name of the task.
    method: The name of the method.
    share: The mean weight of the public update over the run.
    gain: How much lower the validation loss is than the warm start's.
  """

  task: str
  method: str
  share: float
  gain: float


def mean_public_share(
  settings: Mapping[str, str], rounds: int
) -> Optional[float]:
  """Returns the mean of 1 - alpha over a run, or None for other methods.

  Args:
    settings: Values of `alpha_i`, `alpha_K` or `semi_dp_weight`.
    rounds: Number of rounds, or of epochs at sample level, where alpha is
      constant within an epoch.
  """
  if 'semi_dp_weight' in settings:
    return 1 - float(settings['semi_dp_weight'])
  if 'alpha_i' in settings:
    alpha = schedules.for_stackoverflow(float(settings['alpha_i']), rounds)
  elif 'alpha_K' in settings:
    alpha = schedules.cosine(float(settings['alpha_K']))
  else:
    return None
  return float(1 - schedules.values(alpha, rounds).mean())


def read_points(rows: recorded.Runs, rounds: Mapping[str, int]) -> list[Point]:
  """Returns tries at the best of the learning rates that warm start tried too.

  Args:
    rows: Rows of search.csv.
    rounds: The number of rounds, or of epochs at sample level, by task.
  """
  warm, others = {}, []
  for row in rows:
    task, method, loss = row['task'], row['method'], float(row['loss'])
    settings = dict(word.split('=') for word in row['settings'].split())
    rates = tuple(v for k, v in settings.items() if k.endswith('learning_rate'))
    share = mean_public_share(settings, rounds[task])
    if method == 'warm':
      warm[task, rates] = loss
    elif share is not None and rates[0] in _SAME_START.get(task, rates):
      others.append((task, method, rates, share, loss))
  common = {(task, rates) for task, _, rates, *_ in others} & warm.keys()
  best = {
    task: min((key for key in common if key[0] == task), key=warm.get)[1]
    for task, _ in common
  }
  return [
    Point(task, method, share, warm[task, rates] - loss)
    for task, method, rates, share, loss in others
    if best.get(task) == rates
  ]


def _load(task: str) -> benchmark_tasks.Task:
  return benchmark_tasks.load(_TASKS / f'{task}.json')


def draw(points: Sequence[Point], path: pathlib.Path) -> None:
  """Plots a panel for each task, those with images first.

  Args:
    points: Tries.
    path: The PNG file.
  """
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  tasks = sorted(
    {point.task for point in points},
    key=lambda t: (not t.startswith(('cifar10', 'emnist')), t),
  )
  figure, places = plt.subplots(
    2, 4, figsize=(11, 5), layout='constrained', sharex=True, sharey=True
  )
  for axes, name in zip(places.flat, tasks, strict=False):
    task = _load(name)
    axes.set_title(f'{task.title}, epsilon {task.epsilon:g}', fontsize='medium')
    axes.axhline(0, color='#888888', linewidth=1)
    for method in _METHODS:
      line = sorted(p[2:] for p in points if p[:2] == (name, method))
      style = {'color': names.colour(method), 'label': methods.title(method)}
      axes.plot(*zip(*line, strict=True), 'o-', **style)
    axes.set_xscale('log')
    # Larger losses than gains are of no interest: lines leave the panel.
    axes.set_ylim(-0.06, 0.06)
    axes.grid(alpha=0.3)
  figure.supxlabel('mean weight of the public update', fontsize='medium')
  figure.supylabel('gain in validation loss', fontsize='medium')
  handles, labels = places.flat[0].get_legend_handles_labels()
  places.flat[-1].set_axis_off()
  # No panel is below this one to carry the labels of the shared axis.
  places[0, -1].tick_params(labelbottom=True)
  places.flat[-1].legend(handles, labels, loc='center', frameon=False)
  figure.savefig(path, dpi=110)
  plt.close(figure)


def main(argv: Sequence[str]) -> None:
  """Draws the figure and prints its points."""
  del argv
  rows, rounds = recorded.runs('benchmark/search'), {}
  for task in {row['task'] for row in rows}:
    settings = _load(task).settings
    rounds[task] = int(settings.get('epochs') or settings['rounds'])
  points = read_points(rows, rounds)
  path = recorded.RESULTS / 'benchmark/public_share.png'
  draw(points, path)
  for point in points:
    print('{:18} {:8} {:.4f} {:+.4f}'.format(*point))
  print(f'Wrote {path}.')


if __name__ == '__main__':
  app.run(main)
