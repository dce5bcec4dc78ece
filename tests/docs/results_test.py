"""Recorded runs have the settings of presets and of the best tries."""

import collections
import re

from pda_fed import privacy
from pda_fed.compare import choices
from pda_fed.compare import verdicts
import pytest

from bench import table1
from tests.docs import pages
from tools import recorded

_METHODS = ('cold', 'warm', 'pda')
_PRESETS = [
  f'{task}{suffix}'
  for task in ('cifar10', 'emnist', 'wikitext2')
  for suffix in ('', '_private', '_best', '_private_best')
]
# Their searches had the noise of another accountant.
_NOT_SEARCHED = ('emnist_best', 'emnist_private_best')
_POPULATIONS = {'blogs': 8067, 'stackexchange': 18749}
# Columns of Table 1's trials, by the name of the setting.
_TABLE_1 = {
  'server.learning_rate': 'server_learning_rate',
  'client.learning_rate': 'client_learning_rate',
  'method.alpha_i': 'alpha_i',
}


def _flags(preset):
  """The flags of a preset, those of files that it includes first."""
  text = (pages.ROOT / f'scripts/presets/{preset}.flags').read_text()
  found = {}
  for name, value in re.findall(r'^--([\w.]+)=(\S+)$', text, re.MULTILINE):
    if name == 'flagfile':
      found |= _flags(re.fullmatch(r'scripts/presets/(\w+)\.flags', value)[1])
    else:
      found[name] = value
  return found


def _flags_of_method(preset, method):
  """What a preset's comment adds for cold and warm start."""
  text = (pages.ROOT / f'scripts/presets/{preset}.flags').read_text()
  text = ' '.join(re.findall(r'^# (.*)$', text, re.MULTILINE))
  pattern = rf'{method} start (?:add )?((?:--[\w.]+=[\w.]*\w ?)+)'
  added = ''.join(re.findall(pattern, text))
  return dict(re.findall(r'--([\w.]+)=([\w.]*\w)', added))


@pytest.mark.parametrize('method', _METHODS)
@pytest.mark.parametrize('preset', _PRESETS)
def test_presets_have_the_best_tries_and_so_have_their_runs(preset, method):
  flags = _flags(preset) | _flags_of_method(preset, method)

  def rows(name, column):
    wanted = {'preset': preset, 'method': method, column: 'yes'}
    found = recorded.runs(f'sample_level/{name}', **wanted)
    noise = flags['noise_multiplier']
    return [r for r in found if float(r['noise_multiplier']) == float(noise)]

  runs, tried = rows('test', 'in_table'), rows('search', 'last_search')
  assert sorted(run['seed'] for run in runs) == ['0', '1', '2']
  names = {'server.learning_rate': 'learning_rate'}
  if method == 'pda':
    names['method.alpha_K'] = 'alpha_K'
  for name, column in names.items():
    assert {float(run[column]) for run in runs} == {float(flags[name])}
  decay = flags.get('server.decay', 'none')
  assert {run['decay'] for run in runs} == {decay}
  assert bool(tried) == (preset not in _NOT_SEARCHED)
  if not tried:
    return
  best = recorded.lowest(tried, 'loss')
  assert best['decay'] == decay
  for name, column in names.items():
    assert float(best[column]) == float(flags[name])
    # The search went on until there was something worse on both sides.
    values = [float(row[column]) for row in tried]
    assert min(values) < float(best[column]) < max(values)


def test_every_method_of_the_benchmark_had_nine_tries():
  search = recorded.runs('benchmark/search')
  counts = collections.Counter((r['task'], r['method']) for r in search)
  assert set(counts.values()) == {9}
  for task, method in counts:
    wanted = {'task': task, 'method': method}
    tries = recorded.runs('benchmark/search', **wanted)
    best = recorded.lowest(tries, 'loss')
    assert [r for r in tries if r['chosen'] == 'yes'] == [best]
    runs = recorded.runs('benchmark/final', **wanted)
    assert sorted(run['seed'] for run in runs) == ['0', '1', '2']
    assert {run['settings'] for run in runs} == {best['settings']}


def test_runs_with_one_change_have_the_best_settings():
  runs = recorded.runs('benchmark/conditions')
  for changed, method in {(run['changed'], run['method']) for run in runs}:
    wanted = {'changed': changed, 'method': method}
    tries = recorded.runs('benchmark/conditions_search', **wanted)
    settings = {
      r['settings'] for r in recorded.runs('benchmark/conditions', **wanted)
    }
    assert settings == {recorded.lowest(tries, 'loss')['settings']}


@pytest.mark.parametrize('data, population', _POPULATIONS.items())
def test_presets_of_table_1_have_its_settings_and_its_epsilon(data, population):
  flags = _flags('table1')
  names = ('rounds', 'delta', 'noise_multiplier', 'clip_norm')
  plan = privacy.PrivacyPlan(
    population=population,
    expected_cohort=int(flags['expected_cohort']),
    **{name: float(flags[name]) for name in names[1:]},
    rounds=int(flags['rounds']),
  )
  path = pages.ROOT / f'scripts/presets/table1_{data}.json'
  for method, choice in choices.load(path, _METHODS).methods.items():
    of_method = {'data': data, 'method': method}
    tries = recorded.runs('table1/search', rounds='1600', **of_method)
    best = recorded.lowest(tries, 'loss')
    values = dict(choice.settings)
    update = values.pop('public.update', 'local_training')
    assert values == {
      name: float(best[column])
      for name, column in _TABLE_1.items()
      if best[column]
    }
    assert best['public_update'] in ('', update)
    assert (choice.trials, choice.value) == (len(tries), float(best['loss']))
    for run in recorded.runs('table1/final', **of_method):
      epsilon = pytest.approx(plan.epsilon(), rel=1e-4)
      assert float(run['epsilon']) == epsilon


# Who leads by perplexity and both accuracies, as the page says; '' for nobody.
_VERDICTS = {
  'Blogs': ['pda', 'pda', 'pda'],
  'Blogs, server rate 2': ['pda', 'pda', ''],
  'Stack Exchange, i = 8': ['warm', 'pda', ''],
  'Stack Exchange, public gradients': ['', 'pda', 'pda'],
}


@pytest.mark.parametrize('title, leads', _VERDICTS.items())
def test_the_verdicts_of_the_page_follow_from_the_runs(title, leads):
  rows = recorded.runs('table1/final') + recorded.runs('table1/other_runs')
  runs = [r for r in rows if table1.COMPARISONS[title].has(r)]
  found = []
  for metric in ('perplexity', 'accuracy', 'accuracy_with_oov'):
    values = {
      m: recorded.by_seed([r for r in runs if r['method'] == m], metric)
      for m in ('warm', 'pda')
    }
    assert len(values['pda']) == 3
    verdict = verdicts.decide(metric, values)
    found.append(verdict.best if verdict.is_clear else '')
  assert found == leads
