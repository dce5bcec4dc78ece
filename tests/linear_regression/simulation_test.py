"""Tests for pda_fed.linear_regression.simulation, storage and figures."""

import dataclasses
import json
import math

import numpy as np
from pda_fed import errors
from pda_fed import linear_regression
from pda_fed.linear_regression import problem
import pytest
from scipy.sparse import linalg as sparse_linalg

_CONFIG = linear_regression.SimulationConfig(
  dimensions=(200, 300),
  num_trials=2,
  num_private=400,
  learning_rates=(1.0, 10.0),
  mirror_learning_rates=(100.0, 300.0),
  clip_norms=(0.1,),
  epochs=(2, 5),
  methods=('cold', 'warm', 'pda', 'public'),
  num_condition_numbers=1,
)


@pytest.fixture(scope='module')
def trials():
  return [
    linear_regression.run_trial(_CONFIG, p, trial)
    for p in _CONFIG.dimensions
    for trial in range(_CONFIG.num_trials)
  ]


def _fields(trial):
  fields = dataclasses.asdict(trial)
  del fields['seconds']
  return json.dumps(fields)  # NaN equals NaN here.


def test_a_trial_has_every_method_and_setting(trials):
  for trial in trials:
    methods = [o.method for o in trial.outcomes]
    assert {m: methods.count(m) for m in _CONFIG.methods} == {
      'cold': 4,
      'warm': 4,
      'pda': 4,
      'public': 1,
    }
    for outcome in trial.outcomes:
      assert outcome.loss > 0 and outcome.population_loss >= 0.01
    rates = {o.learning_rate for o in trial.outcomes if o.method == 'pda'}
    assert rates == {100.0, 300.0}
    assert math.isfinite(trial.condition_number) == (trial.trial == 0)


def test_trials_repeat_and_differ(trials):
  assert _fields(linear_regression.run_trial(_CONFIG, 200, 1)) == _fields(
    trials[1]
  )
  first, second = trials[:2]
  assert first.outcomes[0].loss != second.outcomes[0].loss


# For p = 200 all of the first fifth are set: 40 columns are equal.
@pytest.mark.parametrize(('p', 'num_nonzero'), [(200, 160), (300, 299)])
@pytest.mark.parametrize('lanczos', [True, False])
def test_condition_number(p, num_nonzero, lanczos, monkeypatch):
  data = linear_regression.simulate(p, 1, 2 * p, seed=0)
  psi = linear_regression.QuadraticMirrorMap(
    data.public_features, data.public_responses, regularization=1e-4
  )
  dense = data.public_features.toarray()
  eigenvalues = np.linalg.eigvalsh(dense.T @ dense)
  nonzero = eigenvalues[eigenvalues > 1e-6]
  assert nonzero.size == num_nonzero
  expected = nonzero.max() / nonzero.min()
  if not lanczos:

    def fail(*args, **kwargs):
      raise sparse_linalg.ArpackNoConvergence('', [], [])

    monkeypatch.setattr(psi, '_lanczos', fail)
  assert psi.condition_number() == pytest.approx(expected, rel=1e-2)


def test_population_mse_is_the_expectation():
  data = linear_regression.simulate(250, 30_000, 1, seed=0)
  thetas = data.theta_star[:, None] + np.random.default_rng(0).normal(
    0.3, 1, (250, 2)
  )
  samples = linear_regression.LeastSquares(
    data.private_features, data.private_responses
  )
  np.testing.assert_allclose(
    problem.population_mse(thetas, data.theta_star),
    samples.mean_squared_error(thetas),
    rtol=0.03,
  )
  optimum = problem.population_mse(data.theta_star[:, None], data.theta_star)
  np.testing.assert_allclose(optimum, 0.01)


def test_summary_picks_the_best_mean(trials):
  summaries = linear_regression.summarize(trials)
  assert [s.p for s in summaries] == [200] * 4 + [300] * 4
  assert [s.method for s in summaries[:4]] == list(linear_regression.METHODS)
  for summary in summaries:
    means = {}
    for trial in trials:
      for outcome in trial.outcomes:
        if (trial.p, outcome.method) == (summary.p, summary.method):
          means.setdefault(outcome.setting, []).append(outcome.loss)
    best = min(means, key=lambda key: np.mean(means[key]))
    assert summary.best.setting == best
    assert summary.losses == tuple(means[best])
    assert summary.loss == pytest.approx(np.mean(means[best]))
    # Student's t with one degree of freedom: 12.706 standard errors, and the
    # standard error of two numbers is half their distance.
    distance = abs(np.subtract(*means[best]))
    assert summary.half_width == pytest.approx(12.7062 * distance / 2, rel=1e-4)


def test_paired_difference(trials):
  summaries = {(s.p, s.method): s for s in linear_regression.summarize(trials)}
  warm, pda = summaries[200, 'warm'], summaries[200, 'pda']
  mean, half_width = linear_regression.paired_difference(warm, pda)
  assert mean == pytest.approx(warm.loss - pda.loss)
  assert half_width > 0
  assert linear_regression.paired_difference(pda, pda) == (0.0, 0.0)
  shorter = dataclasses.replace(pda, num_trials=1)
  with pytest.raises(ValueError, match='second must have 2 trials'):
    linear_regression.paired_difference(warm, shorter)


def test_public_data_help_and_the_mirror_step_does_not_harm():
  # The findings of figure 1(a) and (b), in small.
  config = dataclasses.replace(
    _CONFIG,
    dimensions=(300,),
    num_private=4000,
    methods=('cold', 'warm', 'pda'),
    learning_rates=(3.0, 10.0, 30.0),
    mirror_learning_rates=(300.0, 1000.0, 3000.0),
    epochs=(30,),
    num_trials=3,
  )
  found = linear_regression.summarize(
    [linear_regression.run_trial(config, 300, trial) for trial in range(3)]
  )
  losses = {s.method: s.loss for s in found}
  cold, warm, pda = losses['cold'], losses['warm'], losses['pda']
  assert cold > 3 * warm
  assert pda < warm


def test_store_round_trip(trials, tmp_path):
  store = linear_regression.TrialStore(tmp_path / 'new', _CONFIG)
  assert store.load(200, 0) is None
  store.save(trials[0])
  loaded = linear_regression.TrialStore(tmp_path / 'new', _CONFIG).load(200, 0)
  assert _fields(loaded) == _fields(trials[0])
  assert store.load(200, 1) is None
  # Nothing half-written is left.
  names = sorted(path.name for path in (tmp_path / 'new').rglob('*'))
  assert names == ['config.json', 'p00200_trial000.json', 'trials']


def test_store_of_another_simulation(trials, tmp_path):
  # A run that failed before its first trial leaves nothing to keep to.
  failed = dataclasses.replace(_CONFIG, epsilon=3.0)
  linear_regression.TrialStore(tmp_path, failed)
  linear_regression.TrialStore(tmp_path, _CONFIG).save(trials[0])
  more = dataclasses.replace(_CONFIG, num_trials=9, dimensions=(200, 900))
  linear_regression.TrialStore(tmp_path, more)
  other = dataclasses.replace(_CONFIG, epsilon=2.0)
  with pytest.raises(errors.OutputError, match=r'epsilon: 1\.0 there, 2\.0'):
    linear_regression.TrialStore(tmp_path, other)


@pytest.mark.slow
def test_table_and_figure(trials, tmp_path):
  store = linear_regression.TrialStore(tmp_path, _CONFIG)
  summaries = linear_regression.summarize(trials)
  store.write_tables(summaries)
  lines = (tmp_path / 'summary.csv').read_text().splitlines()
  assert lines[0].startswith('p,method,num_trials,loss,half_width')
  assert len(lines) == 1 + len(summaries)
  paths = linear_regression.plot_simulation(
    summaries, {200: 10.0, 300: math.nan}, tmp_path / 'figure_1'
  )
  assert [path.name for path in paths] == ['figure_1.png', 'figure_1.svg']
  first = paths[1].read_text()
  assert 'PDA-DPMD' in first or '<path' in first
  linear_regression.plot_simulation(summaries, {200: 10.0}, paths[0])


def test_tight_noise_is_less_and_few_public_samples_are_enough():
  config = dataclasses.replace(
    _CONFIG, methods=('warm',), epochs=(5,), public_factor=0.5
  )
  tight = dataclasses.replace(config, noise='tight')
  trials = [linear_regression.run_trial(c, 300, 0) for c in (config, tight)]
  loud, quiet = (linear_regression.summarize([t])[0] for t in trials)
  assert quiet.loss < loud.loss < math.inf
  assert math.isnan(quiet.half_width)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'dimensions': (199,)}, 'dimensions must be at least 200. Found 199'),
    ({'dimensions': ()}, 'dimensions must not be empty'),
    ({'num_trials': 1}, 'num_trials must be at least 2'),
    ({'epsilon': 0.0}, 'epsilon must be positive'),
    ({'epsilon': 93.0}, r'epsilon must be in \[0, 92\.1'),
    ({'delta': 1.0}, r'delta must be in \(0, 1\)'),
    ({'dimensions': (200, 200)}, 'dimensions must not repeat a value'),
    ({'clip_norms': (0.1, 0.1)}, 'clip_norms must not repeat a value'),
    ({'noise': 'none'}, 'noise must be one of'),
    ({'learning_rates': (0.0,)}, 'learning_rates must be positive'),
    ({'regularizations': (0.0,)}, 'regularizations must be positive'),
    ({'epochs': (0,)}, 'epochs must be at least 1'),
    ({'methods': ('hot',)}, "methods must be one of .*'hot'"),
    ({'public_factor': 0.0}, 'public_factor must be positive'),
    ({'cold_stddev': -1.0}, 'cold_stddev must be non-negative'),
  ],
)
def test_bad_config(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_CONFIG, **changes)


@pytest.mark.slow
def test_the_theory_is_drawn(tmp_path):
  for path in linear_regression.plot_theory(tmp_path / 'theory.png'):
    assert path.stat().st_size > 10_000
