"""Canaries: their directions, coins and cohorts."""

import jax.numpy as jnp
import numpy as np
from pda_fed import audit
from pda_fed import privacy
import pytest

_SHAPES = [(40, 60), (60,), (60, 50), (50,)]
_SIZE = 40 * 60 + 60 + 60 * 50 + 50


def _plan(**changes):
  fields = dict(
    population=100,
    expected_cohort=20,
    rounds=10,
    delta=1e-3,
    noise_multiplier=1.5,
    clip_norm=0.5,
  )
  return privacy.PrivacyPlan(**(fields | changes))


def _canaries(count=200, **changes):
  return audit.Canaries(_SHAPES, _plan(**changes), seed=7, count=count)


def test_directions_are_unit_vectors_and_nearly_orthogonal():
  canaries = _canaries()
  found = canaries.directions.take(np, canaries.signs, np.arange(200))
  assert found.shape == (200, _SIZE)
  products = found @ found.T
  np.testing.assert_allclose(np.diag(products), 1, rtol=1e-5)
  first = canaries.directions.groups[0].count  # Those that point anywhere.
  np.testing.assert_array_less(
    np.abs(products[:first, :first] - np.eye(first)), 0.05
  )


def test_half_of_the_canaries_lie_within_one_array():
  canaries = _canaries()
  groups = canaries.directions.groups
  assert sum(group.count for group in groups) == 200
  assert (groups[0].start, groups[0].stop) == (0, _SIZE)
  # 200 / 2 / 4 each; arrays of 60 and 50 hold an eighth of their size.
  assert [group.count for group in groups[1:]] == [25, 7, 25, 6]
  last = canaries.directions.take(np, canaries.signs, np.array([199]))[0]
  assert not last[:-50].any() and last[-50:].all()


@pytest.mark.slow
@pytest.mark.parametrize('xp', [np, jnp], ids=['numpy', 'jax'])
def test_scores_are_the_inner_products(xp):
  canaries = _canaries()
  directions, signs = canaries.directions, xp.asarray(canaries.signs)
  vector = np.random.default_rng(0).normal(size=_SIZE).astype(np.float32)
  every = directions.take(xp, signs, xp.arange(200))
  found = directions.scores(xp, signs, xp.asarray(vector))
  np.testing.assert_allclose(found, every @ vector, atol=1e-4)


def test_scores_of_arrays_in_their_order():
  canaries = _canaries()
  arrays = [np.random.default_rng(1).normal(size=s) for s in _SHAPES]
  flat = np.concatenate([a.ravel() for a in arrays])
  every = np.arange(200)
  sent = canaries.updates(every) / canaries.norm
  taken = canaries.directions.take(np, canaries.signs, every)
  np.testing.assert_allclose(sent, taken, rtol=1e-6)
  np.testing.assert_allclose(canaries.scores(arrays), sent @ flat, atol=1e-4)


def test_what_a_canary_sends_is_clipped():
  sent = _canaries().updates(np.array([0, 3]))
  np.testing.assert_allclose(np.linalg.norm(sent, axis=1), 5.0, rtol=1e-5)


def test_coins_are_fair_and_follow_the_seed():
  plan = _plan()
  many = audit.Canaries([(100_000,)], plan, seed=1, count=10_000)
  assert many.took_part.mean() == pytest.approx(0.5, abs=0.02)
  again = audit.Canaries([(100_000,)], plan, seed=1, count=10_000)
  other = audit.Canaries([(100_000,)], plan, seed=2, count=10_000)
  np.testing.assert_array_equal(many.took_part, again.took_part)
  np.testing.assert_array_equal(many.signs, again.signs)
  assert (many.took_part != other.took_part).mean() > 0.4


@pytest.mark.parametrize(
  'changes, rounds',
  [
    ({}, 50),
    ({'sampling': 'fixed_size'}, 50),
    ({'sampling': 'epochs', 'mechanism': 'tree'}, 50),
  ],
  ids=['poisson', 'fixed', 'epochs'],
)
def test_those_that_took_part_are_sampled_as_users_are(changes, rounds):
  canaries = _canaries(count=200, **changes)  # More than there are users.
  counts = np.zeros(200)
  for round_num in range(rounds):
    cohort = canaries.cohort(round_num)
    counts[cohort] += 1
    assert len(np.unique(cohort)) == len(cohort)
  assert not counts[~canaries.took_part].any()
  inside = counts[canaries.took_part]
  assert inside.mean() == pytest.approx(0.2 * rounds, rel=0.1)
  if 'mechanism' in changes:
    assert (inside == rounds / 5).all()  # Once an epoch of five rounds.


def test_added_noise_by_hand():
  canaries = _canaries()
  mean = 0.2 * canaries.took_part.sum()
  noise = 1.5**2 * _SIZE
  expected = np.sqrt((noise + mean) / noise) - 1
  assert canaries.added_noise == pytest.approx(expected)


def test_too_many_for_the_model():
  with pytest.raises(ValueError, match='audit_canaries must be at most 688'):
    _canaries(count=2000)
