"""Table 1 and the text around it are the recorded runs."""

import itertools
import math
import statistics

from pda_fed import privacy
from pda_fed import schedules
from pda_fed.analysis import choices
from pda_fed.analysis import statistics as statistics_lib
import pytest

from tests.docs import pages

_PAGE = 'docs/reproduction.md'
_HEADING = 'Next-word prediction with user-level privacy (Table 1)'
_METHODS = {'cold start': 'cold', 'warm start': 'warm', 'PDA-DPMD': 'pda'}
_GRADIENTS = 'PDA-DPMD, public gradients'
# Rows of the table: method, and how the public update is computed.
_ROWS = {
  'cold start': {'method': 'cold'},
  'warm start': {'method': 'warm'},
  'PDA-DPMD': {'method': 'pda', 'public_update': 'local_training'},
  _GRADIENTS: {'method': 'pda', 'public_update': 'gradient'},
}


def _recorded(name, **wanted):
  rows = pages.read_csv(f'table1/{name}.csv')
  return [r for r in rows if all(r[key] == v for key, v in wanted.items())]


def _settings(run):
  names = ('server_learning_rate', 'client_learning_rate', 'alpha_i')
  return [run[name] for name in names]


@pytest.mark.parametrize(
  'title, name',
  [
    *itertools.product(['blogs', 'Stack Exchange'], _METHODS),
    ('Stack Exchange', _GRADIENTS),
  ],
)
def test_table_1_is_the_recorded_runs(title, name):
  data = title.lower().replace(' ', '')
  runs = _recorded('final', data=data, **_ROWS[name])
  tries = _recorded('search', data=data, rounds='1600', **_ROWS[name])
  best = min(tries, key=lambda row: float(row['loss']))
  assert sorted(run['seed'] for run in runs) == ['0', '1', '2']
  assert all(_settings(run) == _settings(best) for run in runs)
  row = pages.table(_PAGE, _HEADING, f'*{title}*')[name]
  assert row[1:] == [
    *_settings(best),
    pages.mean_of(runs, 'perplexity', 2),
    f'{pages.mean_of(runs, "accuracy", 2, times=100)} %',
    f'{pages.mean_of(runs, "accuracy_with_oov", 2, times=100)} %',
    str(len(tries)),
  ]


@pytest.mark.parametrize('data', ['blogs', 'stackexchange'])
def test_presets_of_table_1_have_its_settings(data):
  path = pages.ROOT / f'scripts/presets/table1_{data}.json'
  chosen = choices.load(path, list(_METHODS.values()))
  assert chosen.select_by == 'loss'
  for method, choice in chosen.methods.items():
    tries = _recorded('search', data=data, method=method, rounds='1600')
    best = min(tries, key=lambda row: float(row['loss']))
    values = dict(flag.lstrip('-').split('=') for flag in choice.flags)
    names = ['server_learning_rate', 'client_learning_rate', 'alpha_i']
    if best['public_update'] == 'gradient':
      names.append('public_update')
    assert values == {name: best[name] for name in names if best[name]}
    assert choice.tries == len(tries)
    assert choice.value == float(best['loss'])


@pytest.mark.parametrize('title', ['blogs', 'Stack Exchange'])
def test_table_1_has_public_data_alone(title):
  data = title.lower().replace(' ', '')
  alone = _recorded('final', data=data, method='public')
  rows = pages.table(_PAGE, _HEADING, f'*{title}*')
  assert len({run['seed'] for run in alone}) == 3
  assert rows['public data alone'][4:] == [
    pages.mean_of(alone, 'perplexity', 2),
    f'{pages.mean_of(alone, "accuracy", 2, times=100)} %',
    f'{pages.mean_of(alone, "accuracy_with_oov", 2, times=100)} %',
    '',
  ]


def _differences(data, metric, file='final'):
  """PDA-DPMD minus warm start on test users, with the interval, as shown.

  Args:
    data: The data set.
    metric: The metric.
    file: 'final', whose runs on Stack Exchange with the pre-trained models of
      warm start are those with public gradients, or 'local_training'.
  """
  runs = _recorded(file, data=data)
  warm = {run['seed']: run for run in runs if run['method'] == 'warm'}
  pda = {
    run['seed']: run
    for run in runs
    if run['method'] == 'pda'
    and run['pretraining'] == warm[run['seed']]['pretraining']
  }
  assert set(pda) == set(warm) == {'0', '1', '2'}
  found = statistics_lib.difference(
    *({s: float(run[metric]) for s, run in of.items()} for of in (pda, warm))
  )
  times = 1 if metric == 'perplexity' else 100
  return [times * value for value in (found.mean, found.low, found.high)]


def _percent_of_perplexity(data):
  runs = _recorded('final', data=data, method='warm')
  warm = statistics.mean(float(run['perplexity']) for run in runs)
  return 100 * _differences(data, 'perplexity')[0] / warm


def test_the_page_has_the_verdicts_of_table_1():
  text = pages.on_one_line(_PAGE)
  # Perplexity is lower: the signs change.
  mean, low, high = _differences('blogs', 'perplexity')
  percent = -_percent_of_perplexity('blogs')
  assert (
    'On blogs, PDA-DPMD is clearly better, but by little.** Its perplexity is'
    f' lower by {-mean:.2f} ({-high:.2f} to {-low:.2f}), or {percent:.1f} %,'
  ) in text
  mean, low, high = _differences('blogs', 'accuracy')
  assert f'is higher by {mean:.2f} points ({low:.2f} to {high:.2f})' in text
  mean, low, high = _differences('stackexchange', 'accuracy')
  assert low > 0
  assert (
    'On Stack Exchange with public gradients, its accuracy is clearly better**,'
    f' by {mean:.2f} points ({low:.2f} to {high:.2f}).'
  ) in text
  mean, low, high = _differences('stackexchange', 'perplexity')
  percent = -_percent_of_perplexity('stackexchange')
  assert low < 0 < high
  assert (
    f'Its perplexity is lower with every seed, by {-mean:.2f} in the mean'
    f' ({-high:.2f} to {-low:.2f}), or {percent:.1f} %: no clear difference.'
  ) in text
  for title in ('blogs', 'Stack Exchange'):
    data = title.lower().replace(' ', '')
    mean, low, high = _differences(data, 'accuracy_with_oov')
    assert f'{mean:.2f} points on {title} ({low:.2f} to {high:.2f})' in text


def test_the_page_has_the_verdicts_of_local_training():
  text = pages.on_one_line(_PAGE)
  runs = 'local_training'
  mean, low, high = _differences('stackexchange', 'accuracy', runs)
  assert (
    'With local training and i = 8 on Stack Exchange, the metrics disagree.**'
    f' Its accuracy is clearly better, by {mean:.2f} points ({low:.2f} to'
    f' {high:.2f})'
  ) in text
  mean, low, high = _differences('stackexchange', 'perplexity', runs)
  assert low > 0
  assert (
    f'its perplexity is clearly worse, by {mean:.2f} ({low:.2f} to {high:.2f};'
  ) in text
  means = [
    statistics.mean(
      float(run['perplexity'])
      for run in _recorded('final', data='stackexchange', **_ROWS[name])
    )
    for name in ('warm start', 'PDA-DPMD')
  ]
  shown = f'Perplexity is then lower by {means[0] - means[1]:.2f}, without a'
  assert shown in text


def test_the_readme_has_the_verdicts_of_table_1():
  blogs, others = map(_percent_of_perplexity, ('blogs', 'stackexchange'))
  points = [
    f'{_differences(data, "accuracy")[0]:.1f}'
    for data in ('blogs', 'stackexchange')
  ]
  assert (
    f'perplexity is {-blogs:.1f} % lower on blogs and {-others:.1f} % lower on'
    ' Stack Exchange (not clearly), accuracy'
    f' {points[0]} and {points[1]} points higher.'
  ) in pages.on_one_line('README.md')


def _curves(column, data, i='', public_update='local_training'):
  """Values of the curves with the rates of the table, by round and seed.

  Args:
    column: The column.
    data: The data set.
    i: Of the schedule; '' for warm start.
    public_update: Chooses the runs of PDA-DPMD, or warm start from the
      pre-trained models of these runs.
  """
  wanted = {'data': data, 'method': 'pda' if i else 'warm', 'alpha_i': i}
  (rate,) = {
    run['server_learning_rate']
    for run in _recorded('final', data=data, method=wanted['method'])
  }
  wanted['pretraining'] = '3' if public_update == 'gradient' else '1'
  if i:
    wanted['public_update'] = public_update
  values = {}
  for row in _recorded('curves', server_learning_rate=rate, **wanted):
    if row[column]:
      by_seed = values.setdefault(int(row['round']), {})
      by_seed[row['seed']] = float(row[column])
  return values


def _ahead(column, data, round_num, i='8', public_update='local_training'):
  """PDA-DPMD minus warm start on validation users, for each seed."""
  pda = _curves(column, data, i, public_update)[round_num]
  warm = _curves(column, data, public_update=public_update)[round_num]
  change = math.exp if column == 'loss' else float
  return [change(value) - change(warm[seed]) for seed, value in pda.items()]


def test_the_page_says_when_perplexity_falls_behind():
  text = pages.on_one_line(_PAGE)
  alphas = schedules.for_stackoverflow(8, 1600).values(1600)
  for round_num in (1000, 1600):
    found = _ahead('loss', 'stackexchange', round_num)
    weight = f'{1 - alphas[round_num - 1]:.2f}'
    bounds = f'between {min(found):.2f} and {max(found):.2f}'
    shown = f'{bounds} at round {round_num:,} (public weight {weight})'
    assert len(found) == 3 and shown in text
  found = _ahead('loss', 'stackexchange', 1600, public_update='gradient')
  shown = f'between {min(found):.2f} and {max(found):.2f} at round 1,600.'
  assert len(found) == 3 and shown in text


def test_public_gradients_are_ahead_throughout():
  for round_num in range(100, 1700, 100):
    ahead = _ahead('loss', 'stackexchange', round_num, public_update='gradient')
    assert len(ahead) == 3 and max(ahead) < 0


def test_the_benchmarks_page_has_both_public_updates():
  worse = _differences('stackexchange', 'perplexity', 'local_training')[0]
  better = -_differences('stackexchange', 'perplexity')[0]
  text = pages.on_one_line('docs/benchmark.md')
  assert f"perplexity is {worse:.2f} higher than warm start's;" in text
  assert f'(`--public_update=gradient`), it is {better:.2f} lower.' in text


def test_the_page_says_what_repeated_pretraining_changes():
  before, after = (
    {
      run['seed']: float(run['perplexity'])
      for run in _recorded(file, data='stackexchange', method='warm')
    }
    for file in ('local_training', 'final')
  )
  first, second, third = (
    f'{after[seed] - before[seed]:.2f}' for seed in ('0', '1', '2')
  )
  expected = f'perplexity changed by {first}, {second} and {third}.'
  assert expected in pages.on_one_line(_PAGE)


def test_local_training_also_loses_where_public_users_diverge_least():
  losses = _curves('public_loss', 'stackexchange', '8')
  largest = {
    seed: max(of[seed] for of in losses.values()) for seed in ('0', '1', '2')
  }
  assert min(largest, key=largest.get) == '1'
  assert _ahead('loss', 'stackexchange', 1600)[1] > 0


def test_cold_start_is_worse_with_every_seed():
  for run in _recorded('final', method='cold'):
    wanted = {'data': run['data'], 'seed': run['seed']}
    for method in ('warm', 'pda'):
      for other in _recorded('final', method=method, **wanted):
        assert float(other['perplexity']) < float(run['perplexity'])
        assert float(other['accuracy']) > float(run['accuracy'])
    (alone,) = _recorded('final', method='public', **wanted)
    is_worse = float(run['perplexity']) > float(alone['perplexity'])
    assert is_worse == (run['data'] == 'stackexchange')


def _mean_cosines(data, i, public_update='local_training'):
  """Means over seeds, by the last of 100 rounds."""
  by_round = _curves('cosine', data, i, public_update)
  return {r: statistics.mean(of.values()) for r, of in by_round.items()}


def _last_positive(cosines):
  return max(r for r, cosine in cosines.items() if cosine > 0)


def test_the_page_has_the_cosines_of_table_1():
  text = pages.on_one_line(_PAGE)
  blogs = _mean_cosines('blogs', '8')
  assert (
    f'from {blogs[100]:.4f} in the first 100 rounds to {blogs[1600]:.4f} in the'
    ' last (means over seeds), and is negative from round'
    f' {_last_positive(blogs)} on.'
  ) in text
  end = _last_positive(_mean_cosines('blogs', '5'))
  assert f'the cosine is negative from round {end} on' in text
  shown = []
  for public_update in ('local_training', 'gradient'):
    others = _mean_cosines('stackexchange', '8', public_update)
    shown.append(f'from {others[100]:.4f} to {others[1600]:.4f}')
  assert (
    f'On Stack Exchange it falls {shown[0]}, and with public gradients'
    f' {shown[1]}.'
  ) in text


def test_the_page_says_when_the_loss_is_above_warm_starts():
  text = pages.on_one_line(_PAGE)
  rounds = range(0, 1700, 100)
  above = [r for r in rounds if max(_ahead('loss', 'blogs', r)) >= 0]
  assert f'From round {max(above) + 100} on, the loss is below' in text
  last, before = (_ahead('loss', 'blogs', r) for r in (1600, 1500))
  assert all(a > b for a, b in zip(last, before, strict=True))
  seed_0 = {r: _ahead('loss', 'blogs', r, i='5')[0] for r in rounds[:15]}
  below = [r for r, difference in seed_0.items() if difference < 0]
  assert f"above warm start's from round {max(below) + 100:,} on." in text


def test_the_pages_have_the_losses_on_public_users():
  bounds = []
  for public_update in ('local_training', 'gradient'):
    losses = _curves('public_loss', 'stackexchange', '8', public_update)
    values = [value for of in losses.values() for value in of.values()]
    bounds.append(f'between {min(values):.1f} and {max(values):.1f}')
  text = pages.on_one_line(_PAGE)
  assert f'varies {bounds[0]}.' in text
  assert f'the mean loss is {bounds[1]}.' in text
  largest = [bound.split()[-1] for bound in bounds]
  assert (
    f'reaches {largest[0]} in local training and {largest[1]} with public'
    ' gradients.'
  ) in pages.on_one_line('docs/benchmark.md')


def test_the_page_says_how_many_clients_diverge():
  shown = []
  for data, digits in (('blogs', 1), ('stackexchange', 2)):
    runs = [
      run
      for method in ('warm', 'pda')
      for run in _recorded('final', data=data, method=method)
    ]
    assert len(runs) == (6 if data == 'blogs' else 9)
    mean = statistics.mean(float(run['diverged_clients']) for run in runs)
    shown.append(f'{mean:.{digits}f}')
  text = pages.on_one_line('docs/benchmark.md')
  assert (
    f'There, {shown[0]} clients diverge in a round of 100 on blogs and'
    f' {shown[1]} on Stack Exchange, and PDA-DPMD gains'
  ) in text


def _loss_at_the_end(run):
  """The loss after round 1,600 on the curve of a run."""
  names = ('data', 'method', 'public_update', 'seed', 'pretraining')
  wanted = {name: run[name] for name in names}
  (loss,) = [
    point['loss']
    for point in _recorded('curves', round='1600', **wanted)
    if _settings(point) == _settings(run)
  ]
  return loss


def test_curves_of_table_1_end_where_its_runs_end():
  for run in _recorded('search', rounds='1600'):
    assert _loss_at_the_end(run) == run['loss']
  for run in _recorded('final') + _recorded('local_training'):
    perplexity = math.exp(float(run['loss']))
    assert perplexity == pytest.approx(float(run['perplexity']), rel=1e-6)
    if run['method'] != 'public':
      assert _loss_at_the_end(run) == run['validation_loss']


@pytest.mark.parametrize(
  'title, population', [('blogs', 8067), ('Stack Exchange', 18749)]
)
def test_epsilon_of_table_1(title, population):
  plan = privacy.PrivacyPlan(
    population=population,
    expected_cohort=100,
    rounds=1600,
    delta=1e-6,
    noise_multiplier=0.4,
    clip_norm=0.3,
  )
  epsilon = privacy.epsilon(plan)
  data = title.lower().replace(' ', '')
  for method in _METHODS.values():
    for run in _recorded('final', data=data, method=method):
      assert float(run['epsilon']) == pytest.approx(epsilon, rel=1e-4)
  rounded_up = math.ceil(100 * epsilon) / 100
  assert f'{rounded_up:.2f} on {title}' in pages.on_one_line(_PAGE)


@pytest.mark.parametrize('name', _METHODS)
def test_the_table_of_blogs_is_the_recorded_search(name):
  tries = _recorded('search', data='blogs', method=_METHODS[name], rounds='300')
  best = min(tries, key=lambda run: float(run['loss']))
  assert len(tries) == 8
  assert pages.table(_PAGE, 'The search on blogs', 'method')[name][1:] == [
    *_settings(best),
    f'{math.exp(float(best["loss"])):.1f}',
    f'{100 * float(best["accuracy"]):.2f} %',
    f'{100 * float(best["accuracy_with_oov"]):.2f} %',
  ]
