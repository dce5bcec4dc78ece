"""A few synthetic users, and runs of a tiny model on them."""

import dataclasses
import pathlib

import data_prep
from data_prep import sources
import numpy as np
from pda_fed import runs as runs_lib
from pda_fed import schedules

from tests import fake_engine

_PARTS = {
  'partition': data_prep.PartitionConfig(
    seed=0, max_sentences=24, num_public_users=3
  ),
  'holdout': data_prep.HoldoutConfig(
    validation_fraction=0.1, test_fraction=0.1
  ),
}


def prepare(path: pathlib.Path) -> pathlib.Path:
  """Writes a token store of 40 users; returns its path."""
  data_prep.prepare(
    sources.SyntheticSource(sources.SyntheticConfig(num_users=40)),
    path,
    data_prep.PrepareConfig(
      **_PARTS,
      vocabulary=data_prep.VocabularyConfig(size=50),
      num_processes=1,
    ),
  )
  return path


def prepare_table(path: pathlib.Path) -> pathlib.Path:
  """Writes a store of 40 users with rows of a table; returns its path."""
  rng = np.random.default_rng(0)
  users = np.concatenate([np.arange(40), rng.integers(0, 40, 360)])
  classes = rng.integers(0, 3, 400)
  features = rng.normal(classes[:, None] + np.arange(3), 1.0)
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = path.with_suffix('.npz')
  np.savez(rows, x=features, y=classes, user=users, num_classes=3)
  data_prep.prepare(
    sources.open_npz(rows),
    path,
    data_prep.PrepareConfig(
      **_PARTS,
    ),
  )
  return path


def make_run(data_dir, method='pda', **values):
  """Returns a run of a tiny model; `method` is a name or a method."""
  is_text = isinstance(data_prep.open_store(data_dir), data_prep.TokenStore)
  sizes = {'model.embedding_size': 3, 'model.lstm_size': 4}
  settings = {
    'data_dir': str(data_dir),
    'expected_cohort': 2,
    'rounds': 4,
    'delta': 1e-3,
    'noise_multiplier': 0.5,
    'clip_norm': 0.3,
    'engine': 'tff',
    'seed': 0,
    'public.users_per_round': 2,
    'pretraining.max_epochs': 1,
    'rounds_per_evaluation': 2,
    **(sizes if is_text else {}),
    **values,
  }
  run = runs_lib.resolve(runs_lib.RunSpec(method='cold').with_values(settings))
  method = fake_engine.make_method(method, schedules.cosine(3))
  return dataclasses.replace(run, method=method)
