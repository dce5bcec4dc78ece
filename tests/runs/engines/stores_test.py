"""The door through which runs get their token store."""

from data_prep import build
from data_prep import errors
from data_prep import partition
from data_prep import sources
from data_prep import store as store_lib
from data_prep import vocabulary
import numpy as np
from pda_fed import methods
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.runs.engines import stores
import pytest


@pytest.fixture
def config(tmp_path):
  store = build.prepare(
    sources.SyntheticSource(sources.SyntheticConfig(num_users=40)),
    tmp_path / 'store',
    build.PrepareConfig(
      partition=partition.PartitionConfig(
        seed=0, max_sentences=30, num_public_users=2
      ),
      vocabulary=vocabulary.VocabularyConfig(size=100),
    ),
  )
  return runs_lib.FederatedConfig(
    method=methods.ColdStart(),
    dataset='synthetic',
    data_dir=str(store.path),
    data_hash=stores.data_hash(store),
    engine='jax',
    spec=store.spec,
    plan=privacy.PrivacyPlan(
      population=len(store.users('private')),
      expected_cohort=5,
      rounds=1,
      delta=1e-3,
      noise_multiplier=1.0,
      clip_norm=1.0,
    ),
  )


def test_a_changed_token_is_found(config):
  tokens = stores.open_checked(config).path / store_lib.TOKENS
  content = bytearray(tokens.read_bytes())
  content[-10] ^= 4
  tokens.write_bytes(content)
  # Sizes, offsets and ids are as they were: opening alone sees nothing.
  store_lib.open_store(config.data_dir)
  with pytest.raises(errors.StoreError, match='tokens.npy .* changed'):
    stores.open_checked(config)


def test_a_store_is_read_once(config, monkeypatch):
  calls = []
  monkeypatch.setattr(
    store_lib.TokenStore, 'verify', lambda self: calls.append(self.path)
  )
  for _ in range(3):
    assert np.all(stores.open_checked(config).tokens[:, 0] > 0)
  assert len(calls) == 1
