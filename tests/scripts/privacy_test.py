"""The privacy calculator, run in this process."""

import json
import re

from absl import flags
from absl.testing import flagsaver
from pda_fed import privacy
from pda_fed.privacy import presets
import pytest
from scripts import privacy as script


@pytest.fixture(autouse=True)
def parsed_flags():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['privacy'])


def _run(capsys, **settings) -> str:
  with flagsaver.flagsaver(**settings):
    script.main()
  return capsys.readouterr().out


def _json(capsys, **settings) -> dict:
  return json.loads(_run(capsys, json=True, **settings))


_SMALL = dict(population=1000, expected_cohort=50.0, rounds=100, delta=1e-5)


def test_epsilon_from_noise(capsys):
  output = _json(capsys, noise_multiplier=1.0, **_SMALL)
  plan = privacy.PrivacyPlan(noise_multiplier=1.0, clip_norm=1.0, **_SMALL)
  assert output['epsilon_pld'] == privacy.epsilon(plan)
  assert output['epsilon_rdp'] == privacy.epsilon(plan, accountant='rdp')
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
  printed = presets.get_preset(name).paper_epsilon
  assert re.search(rf"the paper's epsilon +{printed:g}\n", table)
  assert 'DP, add or remove one' in table


def test_a_changed_preset_is_not_the_papers(capsys):
  table = _run(capsys, preset='stackoverflow', rounds=100)
  assert "the paper's" not in table
  assert '342,477' in table


@pytest.mark.parametrize('suffix', ['png', 'svg'])
def test_plot(capsys, tmp_path, suffix):
  path = tmp_path / f'epsilon.{suffix}'
  _run(capsys, noise_multiplier=1.0, plot=str(path), **_SMALL)
  assert path.stat().st_size > 5000


@pytest.mark.parametrize(
  'settings, message',
  [
    (dict(rounds=3), '--population, --expected_cohort, --delta'),
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
      '--target_epsilon must allow a round',
    ),
    (
      dict(preset='emnist', sampling='fixed_size', accountant='pld'),
      "accountant must be 'rdp'",
    ),
    (dict(preset='emnist', expected_cohort=1e9), 'expected_cohort must be in'),
    (
      dict(
        preset='emnist',
        sampling='fixed_size',
        target_epsilon=1.0,
        accountant='pld',
      ),
      "accountant must be 'rdp'",
    ),
  ],
)
def test_bad_flags(settings, message):
  with flagsaver.flagsaver(**settings):
    with pytest.raises(ValueError, match=re.escape(message)):
      script.main()
