"""The users of each round, by plan, with the secret that noises their sum."""

import copy
import dataclasses
import pickle

import numpy as np
from pda_fed import privacy
import pytest

from tests.privacy.plans import PLAN

_PLAN = dataclasses.replace(
  PLAN, population=40, expected_cohort=8, rounds=6, delta=1e-2
)
_USERS = [np.full(3, i) for i in range(40)]


def test_cohorts_are_the_plans_draws():
  seeds = privacy.SeedStreams(3)
  cohorts = list(_PLAN.cohorts(_USERS, seeds))
  assert [cohort.round_num for cohort in cohorts] == list(range(6))
  for cohort in cohorts:
    expected = _PLAN.cohort(cohort.round_num, seeds.sampling)
    assert cohort.names == tuple(expected)
    assert [user[0] for user in cohort] == list(expected)
    assert len(cohort) == len(expected)
    assert cohort.seeds is seeds
  (last,) = _PLAN.cohorts(_USERS, seeds, first_round=5)
  assert last.names == cohorts[5].names


def test_users_may_have_names():
  class Store(dict):
    read = []

    def __getitem__(self, name):
      self.read.append(name)
      return super().__getitem__(name)

  store = Store({f'user {i}': i for i in range(40)})
  cohort = next(_PLAN.cohorts(store, privacy.SeedStreams(3)))
  assert cohort.names == tuple(f'user {i}' for i in cohort.indices)
  assert list(cohort) == cohort.indices.tolist()
  assert cohort[:2] == cohort.indices[:2].tolist()
  assert set(Store.read) == set(cohort.names)  # Nobody else's data.


def test_without_seeds_cohorts_have_one_fresh_secret():
  cohorts, others = (list(_PLAN.cohorts(_USERS)) for _ in range(2))
  assert len({id(cohort.seeds) for cohort in cohorts}) == 1
  assert cohorts[0].seeds.noise != others[0].seeds.noise
  assert [c.names for c in cohorts] != [c.names for c in others]


def test_a_round_is_claimed_once():
  seeds = privacy.SeedStreams()
  cohort = next(_PLAN.cohorts(_USERS, seeds))
  cohort.claim()
  cohort.claim()  # The same round again reveals nothing new.
  next(_PLAN.cohorts(copy.deepcopy(_USERS), seeds)).claim()
  changed = [user + 1 for user in _USERS]
  fewer = privacy.Cohort(_USERS, cohort.indices[1:], 0, seeds)
  for other in (fewer, next(_PLAN.cohorts(changed, seeds))):
    with pytest.raises(privacy.ReusedNoiseError, match='^Round 0 must have'):
      other.claim()
  privacy.Cohort(_USERS, cohort.indices[1:], 1, seeds).claim()


@pytest.mark.parametrize(
  'one, other',
  [
    (['ab', 'c'], ['a', 'bc']),
    ([1, 2], [[1, 2]]),
    ({'x': np.zeros(2)}, {'x': np.zeros((2, 1))}),
    ({'x': 1}, {'y': 1}),
    (np.float32([1.0]), np.float64([1.0])),
  ],
)
def test_data_that_differ_have_other_digests(one, other):
  seeds = privacy.SeedStreams()
  privacy.Cohort([one], [0], 0, seeds).claim()
  with pytest.raises(privacy.ReusedNoiseError):
    privacy.Cohort([other], [0], 0, seeds).claim()


def test_nothing_of_a_cohort_gets_out():
  cohort = next(_PLAN.cohorts(_USERS))
  for text in (repr(cohort), str(cohort), f'{cohort!r}'):
    assert text == 'Cohort(round_num=0)'
  with pytest.raises(TypeError, match='must not be pickled'):
    pickle.dumps(cohort)


def test_bad_users():
  with pytest.raises(ValueError, match='users must be as many as population'):
    _PLAN.cohorts(_USERS[1:])  # At once, not in the first round.
  with pytest.raises(ValueError, match='first_round must be at least 0'):
    _PLAN.cohorts(_USERS, first_round=-1)
