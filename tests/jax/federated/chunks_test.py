"""How clients are arranged."""

import jax
import numpy as np
from pda_fed import models
from pda_fed.jax.federated import chunks
import pytest

from tests.jax import small_users

_SPEC = models.RecurrentSpec(num_words=11, embedding_size=5, lstm_size=6)
_SIZES = [7, 1, 3, 12, 5]
_USERS = small_users.make_users(_SPEC, _SIZES, seed=0)


def test_buckets_are_few_and_never_too_small():
  sizes = [chunks.bucket_size(n) for n in range(26)]
  assert sizes == [
    *(1, 1, 2, 3, 4),
    *(6, 6, 8, 8),
    *(12, 12, 12, 12, 16, 16, 16, 16),
    *[24] * 8,
    32,
  ]


def test_largest_first_and_devices_share():
  # Chunks of sizes (9, 7), (6, 2), (1): the second device gets two of them.
  devices = chunks.assign_chunks(np.array([1, 9, 2, 7, 6]), 2, 2)
  assert [[c.tolist() for c in d] for d in devices] == [[[1, 3]], [[4, 2], [0]]]


@pytest.mark.parametrize('clients_per_chunk', [1, 2, 3, 8])
@pytest.mark.parametrize('num_devices', [1, 2])
def test_every_sentence_is_there_once(clients_per_chunk, num_devices):
  found = small_users.chunk(
    _USERS, 3, clients_per_chunk, num_devices=num_devices
  )
  assert found.present.sum() == len(_USERS)
  assert found.weights.sum() == sum(_SIZES)
  rows = found.examples[0][found.weights > 0]
  expected = np.concatenate(_USERS)
  np.testing.assert_array_equal(
    rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)]
  )
  # Steps cover all sentences, and no more than the largest client needs.
  steps = -(-found.weights.sum(axis=(3, 4)) // 3)
  np.testing.assert_array_equal(found.num_steps, steps.max(axis=2))
  used = np.arange(found.num_steps.shape[1]) < found.num_chunks[:, None]
  assert not found.num_steps[~used].any()
  assert found.present.any(axis=2)[used].all()


def test_an_empty_cohort():
  found = small_users.chunk([], 3)
  assert found.num_chunks.tolist() == [0]
  assert not found.present.any()


def test_rounds_get_one_shape():
  cohorts = [_USERS[:1], _USERS]
  rounds = chunks.chunk_rounds(
    [np.array([len(u) for u in users]) for users in cohorts],
    [small_users.loader(users, 3, 4) for users in cohorts],
    batch_size=3,
    clients_per_chunk=1,
  )
  for clients in rounds:
    assert clients.examples[0].shape == (1, 6, 1, 4, 3, 6)
  assert [r.num_chunks.tolist() for r in rounds] == [[1], [5]]


def test_users_in_memory():
  users = [(user, user[:, 0] + 0.5) for user in _USERS]
  found = chunks.chunk_users(users, batch_size=3, clients_per_chunk=2)
  expected = small_users.chunk(_USERS, 3, clients_per_chunk=2)
  tokens, firsts = found.examples
  jax.tree_util.tree_map(
    np.testing.assert_array_equal, found._replace(examples=(tokens,)), expected
  )
  real = found.weights > 0
  np.testing.assert_array_equal(firsts[real], tokens[real][:, 0] + 0.5)


def test_one_batch_is_for_the_first_device():
  found = chunks.chunk_users(
    [(_USERS[0],)], batch_size=7, clients_per_chunk=1, num_devices=2
  )
  (tokens,) = found.examples
  assert tokens.shape == (2, 1, 1, 1, 7, 6)
  assert found.weights.sum() == 7
  assert found.num_chunks.tolist() == [1, 0]
  assert found.num_steps.tolist() == [[1], [0]]


@pytest.mark.parametrize('name', ['clients_per_chunk', 'num_devices'])
def test_bad_numbers(name):
  with pytest.raises(ValueError, match=f'{name} must be at least 1'):
    small_users.chunk(_USERS, 3, **{name: 0})
