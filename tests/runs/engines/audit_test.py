"""Audits of federated runs: canaries in both engines, the loop, the verdict."""

import dataclasses
import json
import signal

import numpy as np
from pda_fed import audit
from pda_fed import errors
from pda_fed import models
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.tff import noise
import pytest

from tests import fake_engine
from tests.runs import runs
from tests.runs import tiny_users

_SPEC = models.RecurrentSpec(num_words=50, embedding_size=24, lstm_size=8)
_PLANS = {
  'gaussian': {},
  'adaptive': {'adaptive_clipping': privacy.AdaptiveClipping(count_stddev=5.0)},
  'fixed size': {'sampling': 'fixed_size'},
  'tree': {'sampling': 'epochs', 'mechanism': 'tree'},
}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return tiny_users.prepare(tmp_path_factory.mktemp('store') / 'users')


def _config(data_dir, engine, method='cold', rounds=4, plan=None, **changes):
  settings = dict(noise_multiplier=1.0, expected_cohort=8, rounds=rounds)
  return tiny_users.make_config(
    data_dir,
    method,
    plan={**settings, **(plan or {})},
    engine=engine,
    spec=_SPEC,
    **(dict(audit=audit.AuditConfig(canaries=200)) | changes),
  )


def _scores(config):
  with runs_lib.open_engine(config, privacy.SeedStreams(config.seed)) as engine:
    _, metrics = engine.run_rounds(engine.initialize(), 0, config.plan.rounds)
  return engine.canaries, np.stack([m['canary_scores'] for m in metrics])


@pytest.mark.slow
@pytest.mark.parametrize('method', ['cold', 'dope'])
@pytest.mark.parametrize('engine', ['jax', 'tff'])
def test_a_canary_adds_the_clip_in_its_rounds(data_dir, engine, method):
  # Hardly any noise: what is seen is who was there. DOPE-SGD changes what
  # canaries send.
  config = _config(
    data_dir,
    engine,
    method,
    plan={'noise_multiplier': 1e-3},
    mean_clip_norm=0.01,  # Comes after what is seen.
  )
  canaries, scores = _scores(config)
  present = np.zeros_like(scores)
  for round_num in range(config.plan.rounds):
    present[round_num, canaries.cohort(round_num)] = 1
  assert 0 < present.sum() < present.size / 4
  if method == 'cold':
    assert np.abs(scores - present).max() < 0.35
  assert scores[present == 1].mean() == pytest.approx(1, abs=0.1)
  assert np.corrcoef(scores.ravel(), present.ravel())[0, 1] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
  'engine, plan',
  [
    *(('tff', plan) for plan in _PLANS),
    *(('jax', plan) for plan in _PLANS if plan != 'tree'),
  ],
)
def test_no_mechanism_leaks_more_than_proven(data_dir, engine, plan):
  config = _config(data_dir, engine, plan=_PLANS[plan], rounds=6)
  canaries, scores = _scores(config)
  auditor = audit.Auditor(canaries)
  for of_round in scores:
    auditor.add_round(of_round)
  proven = config.plan.epsilon()
  nothing = [np.zeros(shape) for shape in _SPEC.jax_model().shapes]
  report = auditor.report(nothing, proven)
  assert not report.is_violated
  assert report.views['every noised mean'].estimate < 1.5 * proven


@pytest.mark.slow
def test_a_run_that_is_resumed_has_the_same_audit(data_dir, tmp_path):
  config = _config(data_dir, 'jax', 'pda', rounds_per_checkpoint=1)

  class Stopping(runs_lib.create_progress().__class__):
    def rounds(self, done, metrics):
      if done == 2:
        signal.raise_signal(signal.SIGTERM)

  options = dict(warm_start_dir=tmp_path / 'warm_start')
  whole = runs_lib.train(
    config, runs_lib.open_engine, tmp_path / 'whole', **options
  )
  with pytest.raises(errors.StoppedError):
    runs_lib.train(
      config,
      runs_lib.open_engine,
      tmp_path / 'parts',
      progress=Stopping(),
      **options,
    )
  parts = runs_lib.train(
    config, runs_lib.open_engine, tmp_path / 'parts', **options
  )
  assert parts.read_result()['audit'] == whole.read_result()['audit']


@pytest.mark.slow
def test_a_copy_leaves_the_run_as_it_is(data_dir, tmp_path):
  config = _config(data_dir, 'jax')
  plain = dataclasses.replace(config, audit=None)
  copied = dataclasses.replace(
    config, audit=dataclasses.replace(config.audit, copy=True)
  )
  found = {
    name: runs_lib.train(c, runs_lib.open_engine, tmp_path / name).read_result()
    for name, c in (('plain', plain), ('run', config), ('copied', copied))
  }
  assert found['plain']['audit'] is None
  assert found['copied']['test'] == found['plain']['test']
  assert found['run']['test'] != found['plain']['test']
  # A copy has noise of its own, and is removed: with the same noise the
  # difference of both runs would have none.
  assert found['copied']['audit']['copy']
  assert found['copied']['audit']['views'] != found['run']['audit']['views']
  assert not (tmp_path / 'copied' / 'audit').exists()
  # Again: everything is there.
  runs_lib.train(copied, runs_lib.open_engine, tmp_path / 'copied')


def test_a_copy_that_does_not_fit_is_found_before_the_run(data_dir, tmp_path):
  config = _config(
    data_dir, 'jax', audit=audit.AuditConfig(canaries=50_000, copy=True)
  )
  with pytest.raises(ValueError, match='audit_canaries must be at most'):
    runs_lib.train(config, runs_lib.open_engine, tmp_path / 'run')
  assert not (tmp_path / 'run' / 'metrics.csv').exists()


@pytest.mark.slow
@pytest.mark.parametrize('plan', ['gaussian', 'adaptive'])
def test_tff_with_hardly_any_noise_is_found(data_dir, monkeypatch, plan):
  draw = noise.draw_normal
  monkeypatch.setattr(noise, 'draw_normal', lambda *a: draw(*a) / 20)
  config = _config(data_dir, 'tff', plan=_PLANS[plan], rounds=12)
  canaries, scores = _scores(config)
  auditor = audit.Auditor(canaries)
  for of_round in scores:
    auditor.add_round(of_round)
  nothing = [np.zeros(shape) for shape in _SPEC.jax_model().shapes]
  proven = 1.0  # Below that of the tiny plan, which 200 canaries cannot exceed.
  assert auditor.report(nothing, proven).is_violated


class _Leaking(fake_engine.FakeEngine):
  """Scores without noise: whoever sees them knows who took part."""

  def __init__(self, config, seeds):
    super().__init__(config, seeds)
    self.canaries = audit.Canaries(
      [(30_000,)], config.plan, seed=seeds.audit, count=1000
    )

  def run_rounds(self, state, first_round, num_rounds):
    state, metrics = super().run_rounds(state, first_round, num_rounds)
    for i, row in enumerate(metrics):
      scores = np.random.default_rng(first_round + i).normal(0, 1e-3, 1000)
      scores[self.canaries.cohort(first_round + i)] += 1
      row['canary_scores'] = scores
    return state, metrics

  def get_weights(self, state):
    return [np.resize(state['w'], 30_000).astype(np.float32)]


def test_a_leak_fails_the_run_loudly(tmp_path):
  config = fake_engine.make_config(
    rounds=30, audit=audit.AuditConfig(canaries=1000)
  )
  for _ in range(2):  # And again, when it has ended.
    with pytest.raises(runs_lib.AuditError, match='Do not release') as caught:
      runs_lib.train(config, fake_engine.Opener(_Leaking), tmp_path / 'run')
    assert caught.value.exit_code == 5
  result = json.loads((tmp_path / 'run' / 'result.json').read_text())
  assert result['audit']['lower_bound'] > result['audit']['proven']
  assert result['test'] is not None


def test_an_infinite_epsilon_is_not_audited(data_dir):
  with pytest.raises(ValueError, match='noise_multiplier is 0.*drop --audit'):
    _config(data_dir, 'jax', plan={'noise_multiplier': 0.0})


def test_a_run_without_an_audit_says_so(tmp_path):
  folder, _ = runs.train(tmp_path / 'run')
  assert folder.read_result()['audit'] is None
