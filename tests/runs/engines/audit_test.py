"""Audits of federated runs: canaries in both engines, the loop, the verdict."""

import json
import signal

import numpy as np
from pda_fed import audit
from pda_fed import errors
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.runs import loop
from pda_fed.tff import noise
import pytest

from tests import fake_engine
from tests.runs import runs
from tests.runs import tiny_users

_PLANS = {
  'gaussian': {},
  'adaptive': {'adaptive_clipping': True, 'clip_count_stddev': 5.0},
  'fixed size': {'sampling': 'fixed_size'},
  'tree': {'sampling': 'epochs', 'mechanism': 'tree'},
}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return tiny_users.prepare(tmp_path_factory.mktemp('store') / 'users')


def _make_run(data_dir, engine, method='cold', **values):
  settings = {
    'engine': engine,
    'noise_multiplier': 1.0,
    'expected_cohort': 8,
    'model.embedding_size': 24,
    'model.lstm_size': 8,
    'audit': 'run',
    'audit_canaries': 200,
  }
  return tiny_users.make_run(data_dir, method, **{**settings, **values})


def _scores(config):
  with runs_lib.open_engine(
    config, privacy.SeedStreams(config.spec.seed)
  ) as engine:
    _, metrics = engine.run_rounds(engine.initialize(), 0, config.plan.rounds)
  return engine.canaries, np.stack([m['canary_scores'] for m in metrics])


@pytest.mark.slow
@pytest.mark.parametrize('method', ['cold', 'dope'])
@pytest.mark.parametrize('engine', ['jax', 'tff'])
def test_a_canary_adds_the_clip_in_its_rounds(data_dir, engine, method):
  # Hardly any noise: what is seen is who was there. DOPE-SGD changes what
  # canaries send.
  config = _make_run(
    data_dir,
    engine,
    method,
    noise_multiplier=1e-3,
    **{'server.mean_clip_norm': 0.01},  # Comes after what is seen.
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
  config = _make_run(data_dir, engine, **_PLANS[plan], rounds=6)
  canaries, scores = _scores(config)
  auditor = audit.Auditor(canaries)
  for of_round in scores:
    auditor.add_round(of_round)
  proven = config.plan.epsilon()
  nothing = [np.zeros(config.model.num_parameters)]
  report = auditor.report(nothing, proven)
  assert not report.is_violated
  assert report.views['every noised mean'].estimate < 1.5 * proven


@pytest.mark.slow
def test_a_run_that_is_resumed_has_the_same_audit(data_dir, tmp_path):
  config = _make_run(data_dir, 'jax', 'pda', rounds_per_checkpoint=1)

  class Stopping(loop.Callback):
    def rounds(self, loop, metrics):
      if loop.done == 2:
        signal.raise_signal(signal.SIGTERM)

  options = dict(warm_start_dir=tmp_path / 'warm_start')
  whole = runs_lib.train(config, tmp_path / 'whole', **options)
  with pytest.raises(errors.StoppedError):
    runs_lib.train(
      config, tmp_path / 'parts', callbacks=[Stopping()], **options
    )
  parts = runs_lib.train(config, tmp_path / 'parts', **options)
  assert parts.read_result()['audit'] == whole.read_result()['audit']


@pytest.mark.slow
def test_a_copy_leaves_the_run_as_it_is(data_dir, tmp_path):
  config = _make_run(data_dir, 'jax')
  plain = _make_run(data_dir, 'jax', audit=None, audit_canaries=None)
  copied = _make_run(data_dir, 'jax', audit='copy')
  found = {
    name: runs_lib.train(c, tmp_path / name).read_result()
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
  runs_lib.train(copied, tmp_path / 'copied')


def test_a_copy_that_does_not_fit_is_found_before_the_run(data_dir, tmp_path):
  config = _make_run(data_dir, 'jax', audit='copy', audit_canaries=50_000)
  with pytest.raises(ValueError, match='audit_canaries must be at most'):
    runs_lib.train(config, tmp_path / 'run')
  assert not (tmp_path / 'run' / 'metrics.csv').exists()


@pytest.mark.slow
@pytest.mark.parametrize('plan', ['gaussian', 'adaptive'])
def test_tff_with_hardly_any_noise_is_found(data_dir, monkeypatch, plan):
  draw = noise.draw_normal
  monkeypatch.setattr(noise, 'draw_normal', lambda *a: draw(*a) / 20)
  config = _make_run(data_dir, 'tff', **_PLANS[plan], rounds=12)
  canaries, scores = _scores(config)
  auditor = audit.Auditor(canaries)
  for of_round in scores:
    auditor.add_round(of_round)
  nothing = [np.zeros(config.model.num_parameters)]
  proven = 1.0  # Below that of the tiny plan, which 200 canaries cannot exceed.
  assert auditor.report(nothing, proven).is_violated


class _Leaking(fake_engine.FakeEngine):
  """Scores without noise: whoever sees them knows who took part."""

  def __init__(self, run, seeds):
    super().__init__(run, seeds)
    self.canaries = audit.Canaries(
      [(30_000,)], run.plan, seed=seeds.audit, count=1000
    )

  def run_rounds(self, state, first_round, num_rounds):
    state, metrics = super().run_rounds(state, first_round, num_rounds)
    for i, row in enumerate(metrics):
      scores = np.random.default_rng(first_round + i).normal(0, 1e-3, 1000)
      scores[self.canaries.cohort(first_round + i)] += 1
      row['canary_scores'] = scores
    return state, metrics

  def get_weights(self, state):
    return {'w': np.resize(state['w'], 30_000).astype(np.float32)}


def test_a_leak_fails_the_run_loudly(tmp_path):
  config = fake_engine.make_run(rounds=30, audit='run', audit_canaries=1000)
  for _ in range(2):  # And again, when it has ended.
    with pytest.raises(runs_lib.AuditError, match='Do not release') as caught:
      runs.train(tmp_path / 'run', config, _Leaking)
    assert caught.value.exit_code == 5
  result = json.loads((tmp_path / 'run' / 'result.json').read_text())
  assert result['audit']['lower_bound'] > result['audit']['proven']
  assert result['test'] is not None


def test_an_infinite_epsilon_is_not_audited(data_dir):
  with pytest.raises(ValueError, match='noise_multiplier is 0.*drop --audit'):
    _make_run(data_dir, 'jax', noise_multiplier=0.0)


def test_a_run_without_an_audit_says_so(tmp_path):
  folder, _ = runs.train(tmp_path / 'run')
  assert folder.read_result()['audit'] is None
