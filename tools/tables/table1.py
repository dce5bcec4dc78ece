"""Tables of docs/reproduction.md about Table 1."""

from collections.abc import Mapping
import math
import statistics

from tools.tables import recorded

_TITLES = {'blogs': 'blogs', 'stackexchange': 'Stack Exchange'}
_ROWS = {
  'public data alone': {'method': 'public'},
  'cold start': {'method': 'cold'},
  'warm start': {'method': 'warm'},
  'PDA-DPMD': {'method': 'pda', 'public_update': 'local_training'},
  'PDA-DPMD, public gradients': {'method': 'pda', 'public_update': 'gradient'},
}
_SETTINGS = ('server_learning_rate', 'client_learning_rate', 'alpha_i')
_BySeed = dict[tuple[str, ...], float]


def results() -> recorded.Cells:
  """Returns the results of Table 1; the paper's rows stay."""
  cells = {}
  for data, title in _TITLES.items():
    for row, wanted in _ROWS.items():
      runs = recorded.runs('table1/final', data=data, **wanted)
      if not runs:
        continue
      tries = recorded.runs('table1/search', data=data, rounds='1600', **wanted)
      settings = recorded.only(
        (tuple(run[name] for name in _SETTINGS) for run in runs), 'settings'
      )
      cells[(f'*{title}*', row)] = [
        *settings,
        recorded.spread(runs, 'perplexity', 2),
        f'{recorded.spread(runs, "accuracy", 2, 100)} %',
        f'{recorded.spread(runs, "accuracy_with_oov", 2, 100)} %',
        str(len(tries) or ''),
      ]
  return cells


def search() -> recorded.Cells:
  """Returns the best of the tries of 300 rounds on blogs."""
  cells = {}
  for row in ('cold start', 'warm start', 'PDA-DPMD'):
    tries = recorded.runs(
      'table1/search', data='blogs', rounds='300', **_ROWS[row]
    )
    best = recorded.lowest(tries, 'loss')
    cells[(row,)] = [
      *(best[name] for name in _SETTINGS),
      f'{math.exp(float(best["loss"])):.1f}',
      f'{100 * float(best["accuracy"]):.2f} %',
      f'{100 * float(best["accuracy_with_oov"]):.2f} %',
    ]
  return cells


def _curves(column: str, starts: set[tuple[str, str]], **wanted: str):
  """Values by round and by seed, of runs with these seeds and starts."""
  values: dict[int, dict[str, float]] = {}
  for row in recorded.runs('table1/curves', **wanted):
    if row[column] and (row['seed'], row['pretraining']) in starts:
      of_round = values.setdefault(int(row['round']), {})
      of_round[row['seed']] = float(row[column])
  return values


# Rows of the table of cosines: the data, how the public update is computed, the
# server learning rate, i, and the number of the pre-training of each seed.
_COSINES = (
  ('blogs', 'local_training', '3', '8', '556'),
  ('blogs', 'local_training', '2', '8', '111'),
  ('blogs', 'local_training', '2', '5', '111'),
  ('blogs', 'gradient', '2', '8', '444'),
  ('stackexchange', 'local_training', '1', '8', '111'),
  ('stackexchange', 'gradient', '1', '8', '333'),
)


def cosines() -> recorded.Cells:
  """Returns cosines of the noised mean and the public update."""
  cells = {}
  for data, public_update, rate, i, pretrainings in _COSINES:
    starts = set(zip('012', pretrainings, strict=True))
    run = {'data': data, 'server_learning_rate': rate}
    pda = {'method': 'pda', 'alpha_i': i, 'public_update': public_update} | run
    losses = _curves('loss', starts, **pda)
    last = max(losses)
    found = {
      r: statistics.mean(of[seed] for seed in losses[last])
      for r, of in _curves('cosine', starts, **pda).items()
      if set(losses[last]) <= set(of)
    }
    warm = _curves('loss', starts, method='warm', **run)[last]
    ahead = recorded.only(
      (loss < warm[seed] for seed, loss in losses[last].items()), 'the order'
    )
    by = {'local_training': 'local training', 'gradient': 'gradients'}
    cells[(_TITLES[data], by[public_update], rate, i)] = [
      str(len(losses[last])),
      f'{found[100]:.4f}',
      f'{found[last]:.4f}',
      f'{max(r for r, cosine in found.items() if cosine > 0):,}',
      'ahead' if ahead else 'behind',
    ]
  return cells


def _gain(warm: Mapping, pda: Mapping, digits: int = 2) -> str:
  if missing := set(pda) - set(warm):
    raise ValueError(
      f'Warm start must have the seeds and starts of PDA-DPMD. It lacks'
      f' {sorted(missing)}.'
    )
  middle, interval = recorded.gain(warm, pda, digits)
  return f'{middle} ({interval})'


def _of_table_1(file: str, data: str, digits: int = 2, **wanted: str) -> str:
  """The gain of runs that start from the same models."""

  def values(**chosen: str) -> _BySeed:
    runs = recorded.runs(f'table1/{file}', data=data, **chosen)
    return {
      (run['seed'], run['pretraining']): float(run['perplexity'])
      for run in runs
    }

  return _gain(values(method='warm'), values(method='pda', **wanted), digits)


def _of_methods(name: str, **wanted: str) -> str:
  """The gain of a file's runs."""
  warm, pda = (
    recorded.by_seed(recorded.runs(name, method=method, **wanted), 'perplexity')
    for method in ('warm', 'pda')
  )
  return _gain(warm, pda)


def _of_diverging_clients(rate: str) -> list[str]:
  """The gains with client gradients that are not clipped, and clipped."""
  wanted = {'client_learning_rate': rate, 'run': 'final'}
  file = 'benchmark/diverging_clients'
  return [
    _of_methods(file, client_gradient_clip=clip, **wanted)
    for clip in ('none', '1')
  ]


def _of_held_out() -> str:
  """The gain with the best settings and half of the public sentences."""
  values = []
  for method in ('warm', 'pda'):
    runs = recorded.runs('benchmark/held_out_public', method=method)
    first = [run for run in runs if run['seed'] == '0']
    best = recorded.lowest(first, 'validation_loss')
    names = ('server_learning_rate', 'alpha_i')
    chosen = [r for r in runs if all(r[name] == best[name] for name in names)]
    values.append(recorded.by_seed(chosen, 'test_perplexity'))
  return _gain(*values)


def reasons() -> recorded.Cells:
  """Returns the gain of PDA-DPMD before and after a change."""

  def condition(changed: str) -> str:
    return _of_methods('benchmark/conditions', changed=changed)

  local_training = _of_table_1('other_runs', 'stackexchange')
  unchanged = condition('as in the benchmark')
  clipped = 'client gradients: unclipped to clipped, client rate'
  gains = {
    'server rate 2 to 3': [
      _of_table_1('other_runs', 'blogs', pretraining='1'),
      _of_table_1('final', 'blogs'),
    ],
    'public update: local training to one gradient step': [
      local_training,
      _of_table_1('final', 'stackexchange', 3, public_update='gradient'),
    ],
    'public weight: i = 8 to 16': [local_training, None],
    f'{clipped} 1': _of_diverging_clients('1'),
    f'{clipped} 1.5': _of_diverging_clients('1.5'),
    'vocabulary: words of public users to words of private ones': [
      unchanged,
      condition("private users' vocabulary"),
    ],
    'public users: 100 to 400': [
      condition('100 of these 400'),
      condition('400 public users'),
    ],
    'public sentences held out of the warm start: a tenth to half': [
      unchanged,
      _of_held_out(),
    ],
    'momentum: 0.9 to 0': [unchanged, condition('no momentum')],
    'four times the noise': [unchanged, condition('four times the noise')],
    'a quarter of the noise': [unchanged, condition('a quarter of the noise')],
  }
  return {(change,): [None, *row] for change, row in gains.items()}


TABLES = {
  'Table 1': results,
  'Table 1, cosines': cosines,
  'Table 1, reasons': reasons,
  'Table 1, search on blogs': search,
}
