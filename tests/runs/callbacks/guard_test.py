import math
import warnings

import numpy as np
from pda_fed import errors
from pda_fed import runs as runs_lib
from pda_fed.runs import checkpoints
from pda_fed.runs.callbacks import guard as guard_lib
from pda_fed.runs.engines import base as engine_lib
import pytest

from tests import fake_engine
from tests.runs import runs

_FIRST = {'round': 0, 'loss': 4.0, 'weights_norm': 3.0}


def _row(**changes):
  return {**_FIRST, 'round': 3, 'clients': 10, **changes}


def _check(row, config=None):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    guard_lib.Guard(config or fake_engine.make_run()).check([_FIRST, row])
  return [str(w.message) for w in caught]


@pytest.mark.parametrize(
  'changes',
  [
    {'loss': 40.1},
    {'loss': math.inf},
    {'loss': math.nan},
    {'weights_norm': 3001.0},
    {'weights_norm': math.nan},
  ],
)
def test_what_left_all_bounds_ends_the_run(changes):
  with pytest.raises(errors.DivergenceError, match='Round 3: .* at the start'):
    _check(_row(**changes))


def test_nothing_is_said_of_a_run_that_learns():
  assert not _check(_row(loss=3.9, diverged_clients=0.4))
  assert not _check(_row(loss=4.3))  # Noise may do that for a while.


def test_a_bad_end_is_a_warning_however_small():
  last = fake_engine.make_run().plan.rounds
  (said,) = _check(_row(round=last, loss=4.01))
  assert 'at the end of the run is 4.01, above 4 at the start' in said


@pytest.mark.parametrize(
  'changes, cause',
  [
    ({'diverged_clients': 3.0}, '30% of the clients diverge'),
    ({'public_norm': 50.0, 'private_norm': 2.0}, 'public update has 25 times'),
    ({'loss': 4.5}, 'validation loss is 4.5, above 4'),
  ],
)
def test_first_signs(changes, cause):
  (said,) = _check(_row(**changes))
  assert cause in said


@pytest.mark.parametrize(
  'changes, cause',
  [
    ({'diverged_clients': 3.0}, '30% of the clients diverge'),
    ({'public_norm': math.nan, 'private_norm': 2.0}, 'public.clip_norm'),
    ({}, r'too high for this noise \(sigma 1, cohorts of 10\)'),
  ],
)
def test_the_likely_cause_is_named(changes, cause):
  with pytest.raises(errors.DivergenceError, match=cause):
    _check(_row(loss=1e9, **changes))


@pytest.mark.parametrize(
  'public_loss, train_loss, is_warned',
  [
    (8.5, 4.2, True),
    (8.4, 4.2, False),
    (2.1, 0.1, True),
    (1.9, 0.1, False),
    (math.nan, 4.2, True),
    (4.0, math.nan, False),
  ],
)
def test_public_users_that_diverge(public_loss, train_loss, is_warned):
  row = _row(public_loss=public_loss, train_loss=train_loss)
  said = _check(row)
  assert len(said) == is_warned
  assert all('Public users diverge' in text for text in said)
  # One gradient does not diverge.
  gradient = fake_engine.make_run(**{'public.update': 'gradient'})
  assert not _check(row, gradient)


def test_each_warning_comes_once():
  guard = guard_lib.Guard(fake_engine.make_run())
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for round_num in (3, 6):
      guard.check([_FIRST, _row(round=round_num, loss=5.0)])
  assert len(caught) == 1


class _Exploding(fake_engine.FakeEngine):
  """Its loss is 1e9 from some round on."""

  def run_rounds(self, state, first_round, num_rounds):
    state, metrics = super().run_rounds(state, first_round, num_rounds)
    if first_round >= 4:
      state = {**state, 'w': state['w'] * 1e3}
    return state, metrics

  def evaluate(self, weights, group, max_users=None):
    found = super().evaluate(weights, group, max_users)
    return found | {'loss': 1e9 if max(abs(weights['w'])) > 50 else 1.0}


def test_a_run_ends_with_its_last_good_checkpoint(tmp_path):
  opener = fake_engine.Opener(_Exploding)
  config = fake_engine.make_run()
  with pytest.raises(errors.DivergenceError, match='round_00000003') as e:
    runs_lib.train(config, tmp_path / 'run', open_engine=opener)
  assert e.value.exit_code == 4
  assert 'Round 6' in str(e.value)
  saved = sorted(p.name for p in (tmp_path / 'run/checkpoints').glob('*.ckpt'))
  assert saved[-1] == 'round_00000003.ckpt'
  # What went wrong can be looked at.
  assert runs.rows(tmp_path / 'run')[-1]['loss'] == 1e9
  assert not (tmp_path / 'run/result.json').exists()
  assert runs_lib.RunFolder(tmp_path / 'run').has_diverged()


class _WithSecrets(_Exploding):
  def to_arrays(self, state):
    secret = engine_lib.numbered(engine_lib.SECRET, [np.ones(3)])
    return super().to_arrays(state) | secret


class _NotFinite(_WithSecrets):
  """Ends like an engine whose model is no longer finite."""

  def run_rounds(self, state, first_round, num_rounds):
    if first_round >= 4:
      raise errors.DivergenceError('Round 4: no longer finite.')
    return super().run_rounds(state, first_round, num_rounds)


class _BadStart(_WithSecrets):
  def evaluate(self, weights, group, max_users=None):
    return super().evaluate(weights, group) | {'loss': math.nan}


@pytest.mark.parametrize('kind', [_WithSecrets, _NotFinite, _BadStart])
@pytest.mark.parametrize('seed', [None, 0])
def test_a_run_that_diverged_has_ended(tmp_path, kind, seed):
  config = fake_engine.make_run('cold', seed=seed)
  with pytest.raises(errors.DivergenceError, match='Round'):
    runs.train(tmp_path / 'run', config, kind)
  folder = runs_lib.RunFolder(tmp_path / 'run')
  secret = folder.path / 'secret_seeds.json'
  assert not secret.exists()
  for path in folder.checkpoints_path.glob('*.ckpt'):
    arrays, _ = checkpoints.read_arrays(path)
    assert (f'{engine_lib.SECRET}/0' in arrays) == (seed is not None)
  # As if it had been killed before it had removed them.
  secret.write_text('{}')
  opener = fake_engine.Opener(kind)
  with pytest.raises(
    errors.DivergenceError, match='diverged and cannot be resumed'
  ) as e:
    runs_lib.train(config, folder.path, open_engine=opener)
  assert e.value.exit_code == 4
  assert opener.engine is None
  assert not secret.exists()
  assert folder.has_diverged()


def test_without_validation_data_weights_are_watched(tmp_path):
  row = {'round': 3, 'weights_norm': 1e9}
  guard = guard_lib.Guard(fake_engine.make_run())
  with pytest.raises(errors.DivergenceError, match='norm of the weights'):
    guard.check([{'round': 0, 'weights_norm': 2.0}, row])
