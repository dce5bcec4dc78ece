"""Table 1 and the text around it are the recorded runs."""

import functools
import itertools
import math
import statistics

from pda_fed import privacy
from pda_fed.analysis import choices
from pda_fed.analysis import statistics as statistics_lib
import pytest

from tests.docs import pages

_PAGE = 'docs/reproduction.md'
_recorded = functools.partial(pages.recorded, 'table1')
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
