"""Padded arrays of cohorts."""

from data_prep import cohorts
import numpy as np
import pytest


def test_every_sentence_is_there_once(small_store):
  users = [3, 0, 7]
  cohort = cohorts.load_cohort(small_store, 'private', users, batch_size=10)
  assert cohort.examples[0].shape == (3, 7, 10, 21)  # 64 sentences at most.
  assert cohort.examples[0].dtype == np.uint16
  assert cohort.weights.shape == (3, 7, 10)
  assert cohort.weights.dtype == np.float32
  for i, user in enumerate(users):
    rows = small_store.sentences(('private', user))
    flat = cohort.examples[0][i].reshape(-1, 21)
    assert np.array_equal(flat[: len(rows)], rows)
    assert not flat[len(rows) :].any()
    weights = cohort.weights[i].ravel()
    assert weights.tolist() == [1] * len(rows) + [0] * (70 - len(rows))


def test_static_shapes(small_store):
  for users in ([], [1], list(range(5))):
    cohort = cohorts.load_cohort(
      small_store, 'private', users, steps=6, num_clients=5
    )
    assert cohort.examples[0].shape == (5, 6, 16, 21)
    assert not cohort.weights[len(users) :].any()
    assert not cohort.examples[0][len(users) :].any()


def test_an_empty_cohort(small_store):
  cohort = cohorts.load_cohort(small_store, 'private', [])
  assert cohort.examples[0].shape == (0, 4, 16, 21)


@pytest.mark.parametrize(
  ('settings', 'error', 'words'),
  [
    ({'users': [10**6]}, IndexError, r'users must be in .*Found 1000000'),
    ({'users': [-1]}, IndexError, 'users must be in'),
    ({'users': [True, False]}, TypeError, 'users .* integers. Found .*bool'),
    ({'users': [1.5]}, TypeError, 'users .* integers. Found .*float64'),
    ({'users': [[1]]}, TypeError, r'users .* the shape \(1, 1\)'),
    ({'group': 'train'}, ValueError, 'group must be one of'),
    ({'batch_size': 0}, ValueError, 'batch_size .* Found 0'),
    ({'steps': 1}, ValueError, 'steps must be at least .* Found 1'),
    ({'num_clients': 1}, ValueError, 'num_clients .* Found 1'),
  ],
)
def test_what_does_not_fit(small_store, settings, error, words):
  settings = {'group': 'private', 'users': range(10), **settings}
  with pytest.raises(error, match=words):
    cohorts.load_cohort(small_store, **settings)
