"""The door through which runs get their data."""

from data_prep import errors
from data_prep import store as store_lib
import numpy as np
from pda_fed import runs as runs_lib
from pda_fed.runs import data as data_lib
import pytest

from tests.runs import saved_runs
from tests.runs import tiny_users


@pytest.fixture(name='data_dir')
def fixture_data_dir(tmp_path):
  return tiny_users.prepare(tmp_path / 'store')


def _open(data_dir):
  spec = runs_lib.RunSpec.for_data(data_dir=str(data_dir))
  return data_lib.open_data(spec.data)


def test_a_changed_token_is_found(data_dir):
  tokens = _open(data_dir).store.path / store_lib.TOKENS
  content = bytearray(tokens.read_bytes())
  content[-10] ^= 4
  tokens.write_bytes(content)
  # Sizes, offsets and ids are as they were: opening alone sees nothing.
  store_lib.open_store(data_dir)
  with pytest.raises(errors.StoreError, match='tokens.npy .* changed'):
    _open(data_dir)


def test_a_store_is_read_once(data_dir, monkeypatch):
  calls = []
  monkeypatch.setattr(
    store_lib.TokenStore, 'verify', lambda self: calls.append(self.path)
  )
  for _ in range(3):
    assert np.all(_open(data_dir).store.tokens[:, 0] > 0)
  assert len(calls) == 1


@pytest.mark.parametrize(
  'values, words',
  [
    ({'public.users_per_round': 4}, 'users_per_round must be at most 3'),
    (
      {'public.update': 'clipped'},
      "'local_training' or 'gradient' for users",
    ),
    ({'expected_cohort': 50}, 'expected_cohort must be at most'),
    (
      {'mechanism': 'tree', 'sampling': 'epochs', 'engine': 'jax'},
      "mechanism must be 'gaussian' unless --engine=tff",
    ),
    (
      {
        'server.mean_clip_norm': 'private',
        'adaptive_clipping': True,
        'clip_count_stddev': 5.0,
      },
      'mean_clip_norm must be a number or none with adaptive_clipping',
    ),
    ({'audit': 'run', 'noise_multiplier': 0.0}, 'audit must be off'),
    ({'server.averaging': 0.5}, 'server.averaging must be 0.0 in this run'),
    ({'pretraining.dropout': 0.5}, 'pretraining.dropout must be 0.0 in this'),
    ({'compute_dtype': 'bfloat16'}, 'compute_dtype must be .float32.* for jax'),
    ({'model': 'cnn'}, "model must be lstm for these data. Found 'cnn'"),
    ({'model.num_words': 9}, 'model.num_words is not a setting'),
  ],
)
def test_users_that_do_not_fit(data_dir, values, words):
  with pytest.raises(ValueError, match=words):
    tiny_users.make_run(data_dir, 'pda', **values)


@pytest.mark.parametrize(
  'kind, values, words',
  [
    ('table', {'engine': 'tff'}, "engine must be 'jax' with dataset"),
    (
      'table',
      {'public.update': 'local_training'},
      "'gradient' or 'clipped'",
    ),
    ('table', {'client.learning_rate': 0.1}, 'it is only for users'),
    ('table', {'augmentation': 'all'}, "augmentation must be 'none' unless"),
    ('table', {'pretraining.mixup': 0.1}, 'pretraining.mixup must be 0 unless'),
    ('table', {'public_examples': None}, 'public_examples must be given'),
    ('images', {'model': 'lstm'}, 'model must be cnn or wrn-DEPTH-WIDTH for'),
  ],
)
def test_examples_that_do_not_fit(tmp_path, kind, values, words):
  with pytest.raises(ValueError, match=words):
    saved_runs.resolved(kind, tmp_path / 'data', **values)


def test_rounds_that_use_no_private_data_are_mentioned(tmp_path):
  values = {'method': 'pda', 'method.alpha_K': 1, 'rounds': 28}
  with pytest.warns(UserWarning, match='alpha_t is 0 in 3 of 4 epochs'):
    saved_runs.resolved('table', tmp_path / 'data', **values)
