"""The privacy calculator, run in this process."""

import json
import re

from absl import flags
from absl.testing import flagsaver
import data_prep
from pda_fed import privacy
from pda_fed.privacy import presets
import pytest
from scripts import privacy as script

from tests.runs import runs
from tests.scripts import programs


@pytest.fixture(autouse=True)
def parsed_flags():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['privacy'])


def _flags(**settings):
  if 'expected_cohort' in settings:
    settings['clients_per_round'] = settings.pop('expected_cohort')
  return flagsaver.flagsaver(**settings)


def _run(capsys, **settings) -> str:
  with _flags(**settings):
    script.main()
  return capsys.readouterr().out


def _json(capsys, **settings) -> dict:
  return json.loads(_run(capsys, json=True, **settings))


_SMALL = dict(population=1000, expected_cohort=50.0, rounds=100, delta=1e-5)


def test_epsilon_from_noise(capsys):
  output = _json(capsys, noise_multiplier=1.0, **_SMALL)
  plan = privacy.PrivacyPlan(noise_multiplier=1.0, clip_norm=1.0, **_SMALL)
  assert output['epsilon_pld'] == plan.epsilon()
  assert output['epsilon_rdp'] == plan.epsilon(accountant='rdp')
  assert set(output) >= {
    'epsilon_pld',
    'epsilon_rdp',
    'noise_multiplier',
    'delta',
    'rounds',
    'population',
    'expected_cohort',
    'neighbouring',
  }
  assert output['neighbouring'] == 'add or remove one user'


@pytest.mark.slow
def test_noise_from_epsilon(capsys):
  output = _json(capsys, target_epsilon=2.0, **_SMALL)
  assert 1.99 <= output['epsilon_pld'] <= 2.0
  assert output['noise_multiplier'] > 1.0
  by_rdp = _json(capsys, target_epsilon=2.0, accountant='rdp', **_SMALL)
  assert 1.99 <= by_rdp['epsilon_rdp'] <= 2.0
  assert by_rdp['noise_multiplier'] > output['noise_multiplier']


def test_rounds_from_both(capsys):
  settings = {k: v for k, v in _SMALL.items() if k != 'rounds'}
  output = _json(
    capsys,
    target_epsilon=2.0,
    solve_rounds=True,
    noise_multiplier=1.0,
    **settings,
  )
  assert output['epsilon_pld'] <= 2.0
  assert output['rounds'] > 10


def test_no_noise_is_null_in_json(capsys):
  output = _json(capsys, noise_multiplier=0.0, **_SMALL)
  assert output['epsilon_pld'] is None and not output['private']


@pytest.mark.parametrize('sampling', ['fixed_size', 'epochs'])
def test_what_pld_does_not_know_is_null(capsys, sampling):
  output = _json(capsys, noise_multiplier=2.0, sampling=sampling, **_SMALL)
  assert output['epsilon_pld'] is None
  assert output['epsilon_rdp'] > 0 and output['private']


@pytest.mark.parametrize('name', list(presets.PRESETS))
def test_presets_show_the_papers_epsilon(capsys, name):
  table = _run(capsys, preset=name)
  printed = presets.PRESETS[name].paper_epsilon
  assert re.search(rf"the paper's epsilon +{printed:g}\n", table)
  assert 'DP, add or remove one' in table


def test_a_changed_preset_is_not_the_papers(capsys):
  table = _run(capsys, preset='stackoverflow', rounds=100)
  assert "the paper's" not in table
  assert '342,477' in table


@pytest.mark.slow
def test_a_store_gives_the_population(capsys, tmp_path):
  done = programs.run(
    'prepare_users',
    f'--output_dir={tmp_path / "store"}',
    '--synthetic_users=30',
    '--num_public_users=2',
    '--max_sentences=4',
    '--vocabulary_size=40',
  )
  assert done.returncode == 0, done.stderr
  settings = {k: v for k, v in _SMALL.items() if k in ('rounds', 'delta')}
  output = _json(
    capsys,
    data_dir=str(tmp_path / 'store'),
    clients_per_round=5.0,
    noise_multiplier=1.0,
    **settings,
  )
  store = data_prep.open_store(tmp_path / 'store')
  assert output['population'] == len(store.users('private'))
  assert output['expected_cohort'] == 5


@pytest.mark.slow
def test_adaptive_clipping_keeps_a_target(capsys):
  # The noise that a search starts with would be too much for such a count.
  adaptive = dict(adaptive_clipping=True, clip_count_stddev=0.45)
  output = _json(capsys, target_epsilon=7.0, **adaptive, **_SMALL)
  fixed = _json(capsys, target_epsilon=7.0, **_SMALL)
  assert output['noise_multiplier'] == fixed['noise_multiplier']
  assert output['update_noise_multiplier'] > output['noise_multiplier']
  assert 'noise multiplier of updates' in _run(
    capsys, target_epsilon=7.0, **adaptive, **_SMALL
  )


@pytest.mark.parametrize('distribution', ['negative_binomial', 'poisson'])
def test_the_epsilon_of_a_search(capsys, distribution):
  settings = dict(
    noise_multiplier=1.0,
    private_search=distribution,
    search_runs=20.0,
    num_searches=3,
    **_SMALL,
  )
  plan = privacy.PrivacyPlan(noise_multiplier=1.0, clip_norm=1.0, **_SMALL)
  search = privacy.PrivateSearch(distribution=distribution, expected_runs=20)
  found = _json(capsys, **settings)['private_search']
  assert found['epsilon_one_search'] == privacy.search_epsilon(plan, search)
  assert found['epsilon'] == privacy.search_epsilon(plan, search, 3)
  table = _run(capsys, **settings)
  for name, value in {
    'epsilon of the whole search': found['epsilon_one_search'],
    'epsilon of 3 searches': found['epsilon'],
  }.items():
    assert re.search(rf'{name} +{privacy.round_up(value)}\n', table)
  assert '20 runs expected' in table


@pytest.mark.parametrize('suffix', ['png', 'svg'])
def test_plot(capsys, tmp_path, suffix):
  path = tmp_path / f'epsilon.{suffix}'
  _run(capsys, noise_multiplier=1.0, plot=str(path), **_SMALL)
  assert path.stat().st_size > 5000


@pytest.mark.parametrize(
  'settings, message',
  [
    (dict(rounds=3), '--population, --clients_per_round, --delta'),
    (dict(solve_rounds=True), '--solve_rounds needs --target_epsilon'),
    (
      dict(target_epsilon=1.0, noise_multiplier=1.0, **_SMALL),
      '--noise_multiplier must not be given',
    ),
    (
      dict(target_epsilon=1.0, solve_rounds=True, preset='emnist', rounds=2),
      '--rounds must not be given',
    ),
    (
      dict(target_epsilon=1e-3, solve_rounds=True, preset='emnist'),
      '--target_epsilon must allow at least one round',
    ),
    (
      dict(preset='emnist', sampling='fixed_size', accountant='pld'),
      "accountant must be 'rdp'",
    ),
    (
      dict(preset='emnist', expected_cohort=1e9),
      'clients_per_round must be in',
    ),
    (
      dict(
        preset='emnist',
        sampling='fixed_size',
        target_epsilon=1.0,
        accountant='pld',
      ),
      "accountant must be 'rdp'",
    ),
    (
      dict(preset='emnist', population=3, data_dir='data'),
      'Give at most one of --population and --data_dir',
    ),
    (
      dict(preset='emnist', clip_quantile=0.3),
      '--clip_quantile must be given with --adaptive_clipping',
    ),
    (
      dict(preset='emnist', adaptive_clipping=True, sampling='epochs'),
      '--adaptive_clipping must not be given with --sampling=epochs',
    ),
    (
      dict(preset='emnist', private_search='poisson'),
      '--private_search must be given with --search_runs',
    ),
    (
      dict(preset='emnist', search_runs=3.0),
      '--search_runs must be given with --private_search',
    ),
    (
      dict(preset='emnist', num_searches=3),
      '--num_searches must be given with --private_search',
    ),
    (
      dict(preset='emnist', private_search='poisson', search_runs=0.5),
      'expected_runs must be in [1, inf]',
    ),
    (
      dict(
        preset='emnist',
        private_search='negative_binomial',
        search_runs=3.0,
        noise_multiplier=0.0,
      ),
      'noise_multiplier must be above 0 for a private search',
    ),
  ],
)
def test_bad_flags(settings, message):
  with _flags(**settings):
    with pytest.raises(ValueError, match=re.escape(message)):
      script.main()


def test_fill_fails_for_an_audit_that_shows_more(tmp_path):
  folder, _ = runs.train(tmp_path / 'run')
  view = {'estimate': 90.0, 'interval': [80.0, 99.0]}
  view |= {'one_run_bound': 70.0, 'rates_bound': 88.0}
  report = {
    'canaries': 1000,
    'delta': 1e-4,
    'proven': None,
    'views': {'a': view},
  }
  report |= {'added_noise': 0.0, 'most': 99.0, 'resolution': 0.1}
  folder.write_result(
    {**folder.read_result(), 'audit': {**report, 'lower_bound': 88.0}}
  )
  done = programs.run('privacy', f'--fill={tmp_path}')
  assert done.returncode == 5
  assert 'Do not release the model' in done.stderr
