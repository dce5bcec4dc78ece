"""The privacy calculator."""

import json
import re

import data_prep
from pda_fed import privacy
from pda_fed.privacy import presets
import pytest

from tests.runs import tiny_users
from tests.scripts import programs

_PLAN = dict(population=1000, expected_cohort=50.0, rounds=100, delta=1e-5)


def _words(**settings):
  given = {**_PLAN, **settings}
  return [f'--{n}={v}' for n, v in given.items() if v is not None]


def _table(*words):
  done = programs.run('privacy', *words)
  assert done.code == 0, done.err
  return done.out


def _json(*words, **settings):
  return json.loads(_table('--json', *_words(**settings), *words))


def test_epsilon_from_noise():
  found = _json(noise_multiplier=1.0)
  plan = privacy.PrivacyPlan(noise_multiplier=1.0, clip_norm=1.0, **_PLAN)
  assert found['epsilon_pld'] == plan.epsilon()
  assert found['epsilon_rdp'] == plan.epsilon(accountant='rdp')
  assert {n: found[n] for n in _PLAN} == _PLAN
  assert found['neighbouring'] == 'add or remove one user'


@pytest.mark.slow
def test_noise_from_epsilon():
  found = _json(target_epsilon=2.0)
  assert 1.99 <= found['epsilon_pld'] <= 2.0
  assert found['noise_multiplier'] > 1.0
  by_rdp = _json('--accountant=rdp', target_epsilon=2.0)
  assert 1.99 <= by_rdp['epsilon_rdp'] <= 2.0
  assert by_rdp['noise_multiplier'] > found['noise_multiplier']


def test_rounds_from_both():
  found = _json(
    '--solve_rounds', target_epsilon=2.0, noise_multiplier=1.0, rounds=None
  )
  assert found['epsilon_pld'] <= 2.0 and found['rounds'] > 10


def test_no_noise_is_null_in_json():
  found = _json(noise_multiplier=0.0)
  assert found['epsilon_pld'] is None and not found['private']


@pytest.mark.parametrize('sampling', ['fixed_size', 'epochs'])
def test_what_pld_does_not_know_is_null(sampling):
  found = _json(noise_multiplier=2.0, sampling=sampling)
  assert found['epsilon_pld'] is None
  assert found['epsilon_rdp'] > 0 and found['private']


@pytest.mark.parametrize('name', list(presets.PRESETS))
def test_presets_show_the_papers_epsilon(name):
  table = _table(f'--preset={name}')
  printed = presets.PRESETS[name].paper_epsilon
  assert re.search(rf"the paper's epsilon +{printed:g}\n", table)
  assert 'DP, add or remove one' in table


def test_epochs_count_rounds():
  found = _json(rounds=None, epochs=3, noise_multiplier=1.0)
  assert found['rounds'] == 3 * 1000 // 50


def test_a_changed_preset_is_not_the_papers():
  table = _table('--preset=stackoverflow', '--rounds=100')
  assert "the paper's" not in table and '342,477' in table


def test_a_store_gives_the_population(tmp_path):
  path = tiny_users.prepare_table(tmp_path / 'store')
  found = _json(
    *(f'--data_dir={path}', '--noise_multiplier=1'),
    population=None,
    expected_cohort=5,
  )
  private = data_prep.open_store(path).users('private')
  assert (found['population'], found['expected_cohort']) == (len(private), 5)


@pytest.mark.slow
def test_adaptive_clipping_keeps_a_target():
  # The noise that a search starts with would be too much for such a count.
  adaptive = ('--adaptive_clipping', '--clip_count_stddev=0.45')
  found = _json(*adaptive, target_epsilon=7.0)
  fixed = _json(target_epsilon=7.0)
  assert found['noise_multiplier'] == fixed['noise_multiplier']
  assert found['update_noise_multiplier'] > found['noise_multiplier']
  table = _table(*adaptive, *_words(target_epsilon=7.0))
  assert 'noise multiplier of updates' in table


@pytest.mark.parametrize('distribution', ['negative_binomial', 'poisson'])
def test_the_epsilon_of_a_search(distribution):
  words = (
    *(f'--private_search={distribution}', '--search_runs=20'),
    *('--num_searches=3', '--noise_multiplier=1'),
  )
  plan = privacy.PrivacyPlan(noise_multiplier=1.0, clip_norm=1.0, **_PLAN)
  search = privacy.PrivateSearch(distribution=distribution, expected_runs=20)
  found = _json(*words)['private_search']
  assert found['epsilon_one_search'] == privacy.search_epsilon(plan, search)
  assert found['epsilon'] == privacy.search_epsilon(plan, search, 3)
  table = _table(*words, *_words())
  for name, value in {
    'epsilon of the whole search': found['epsilon_one_search'],
    'epsilon of 3 searches': found['epsilon'],
  }.items():
    assert re.search(rf'{name} +{privacy.round_up(value)}\n', table)
  assert '20 runs expected' in table


_SOLVED = ('--preset=emnist', '--target_epsilon=1')
_POISSON = ('--preset=emnist', '--private_search=poisson')


@pytest.mark.parametrize(
  'words, message',
  [
    (['--rounds=3'], '--population, --expected_cohort, --delta'),
    (['--solve_rounds'], '--solve_rounds needs --target_epsilon'),
    ([*_SOLVED, '--noise_multiplier=1'], '--noise_multiplier must not be give'),
    ([*_SOLVED, '--solve_rounds', '--rounds=2'], '--rounds must not be given'),
    (
      ['--preset=emnist', '--target_epsilon=1e-3', '--solve_rounds'],
      '--target_epsilon must allow at least one round',
    ),
    (
      ['--preset=emnist', '--sampling=fixed_size', '--accountant=pld'],
      "accountant must be 'rdp'",
    ),
    (
      [*_SOLVED, '--sampling=fixed_size', '--accountant=pld'],
      "accountant must be 'rdp'",
    ),
    (['--preset=emnist', '--expected_cohort=1e9'], 'expected_cohort must be'),
    (
      ['--preset=emnist', '--population=3', '--data_dir=data'],
      'Give at most one of --population and --data_dir',
    ),
    (
      ['--preset=emnist', '--clip_quantile=0.3'],
      'clip_quantile must be given with adaptive_clipping',
    ),
    (
      ['--preset=emnist', '--adaptive_clipping', '--sampling=epochs'],
      'adaptive_clipping',
    ),
    (_POISSON, '--private_search must be given with --search_runs'),
    (
      ['--preset=emnist', '--search_runs=3'],
      '--search_runs must be given with --private_search',
    ),
    (['--preset=emnist', '--num_searches=3'], '--num_searches must be given'),
    ([*_POISSON, '--search_runs=0.5'], 'expected_runs must be in [1, inf]'),
    (
      [*_POISSON, '--search_runs=3', '--noise_multiplier=0'],
      'noise_multiplier must be above 0 for a private search',
    ),
    (['--preset=mnist'], 'preset'),
    (['--preset=emnist', '--delta=nan'], 'delta must be a finite number'),
  ],
)
def test_bad_flags(words, message):
  done = programs.run('privacy', *words)
  assert (done.code, done.out) == (2, '')
  assert message in done.error


@pytest.mark.slow
def test_a_process_prints_only_the_table():
  done = programs.start('privacy', '--preset=emnist')
  assert (done.code, done.err) == (0, '')
  assert done.out.startswith('epsilon (PLD, tight)')
