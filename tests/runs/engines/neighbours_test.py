"""The warm start is the same without one private user or example.

Epsilon compares data with and without one of them. It holds for a model that
was pre-trained on public data only if these are the same bit for bit.
"""

import json

import data_prep
from data_prep import sources
import numpy as np
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.runs.engines import jax_federated
from pda_fed.runs.engines import jax_sample_level
import pytest

_KINDS = ('text', 'arrays')
_VALUES = {
  'method': 'warm',
  'engine': 'jax',
  'expected_cohort': 5,
  'rounds': 2,
  'delta': 1e-3,
  'noise_multiplier': 1.0,
  'clip_norm': 1.0,
  'pretraining.max_epochs': 3,
  'seed': 0,
}
_RNG = np.random.default_rng(0)
_OWNERS = np.concatenate([np.arange(260), _RNG.integers(0, 260, 600)])
_WORDS = _RNG.integers(0, 40, (860, 5))
_X = _RNG.normal(3, 2, (860, 3))
_Y = _RNG.integers(0, 4, 860)


def _source(kind, path, without):
  """Users from 'u0' to 'u259', all but one; their rows are in any order."""
  kept = np.flatnonzero(_OWNERS != without)
  names = [f'u{i}' for i in _OWNERS[kept].tolist()]
  if kind == 'arrays':
    rows = {'x': _X[kept], 'y': _Y[kept], 'user': names, 'num_classes': 4}
    np.savez(path / 'x.npz', **rows)
    return sources.open_source(f'npz:{path}/x.npz')
  lines = [
    json.dumps({'user': user, 'text': ' '.join(f'w{i}' for i in words)})
    for user, words in zip(names, _WORDS[kept].tolist(), strict=True)
  ]
  (path / 'x.jsonl').write_text('\n'.join(lines))
  return sources.open_source(f'jsonl:{path}/x.jsonl')


def _engine(kind, path, without=None):
  """An engine on the users, 8 of them public."""
  store = data_prep.prepare(
    _source(kind, path, without),
    path / 'store',
    data_prep.PrepareConfig(
      partition=data_prep.PartitionConfig(
        seed=1, max_sentences=3, num_public_users=8
      ),
      vocabulary=data_prep.VocabularyConfig(
        size=25 if kind == 'text' else None
      ),
      num_processes=1,
    ),
    overwrite=True,
  )
  sizes = {'model.embedding_size': 3, 'model.lstm_size': 4}
  values = _VALUES | (sizes if kind == 'text' else {})
  spec = runs_lib.RunSpec.for_data(None, str(store.path), **values)
  run = runs_lib.resolve(spec)
  return jax_federated.JaxEngine(run, privacy.SeedStreams(0))


def _public_rows(engine):
  return [array.tobytes() for array in engine._public_examples]


def _weights(engine):
  weights, figures = engine.pretrain()
  return [np.asarray(w).tobytes() for w in weights.values()], figures


def _private_people(path):
  """Private users of whom nothing is public."""
  store = data_prep.open_store(path / 'store')
  private, public = (
    [int(name[1:].partition('#')[0]) for name in store.users(group)]
    for group in ('private', 'public')
  )
  return [user for user in private if user not in public]


@pytest.mark.parametrize('kind', _KINDS)
def test_the_model_without_a_private_user(kind, tmp_path):
  engine = _engine(kind, tmp_path)
  rows, weights = _public_rows(engine), _weights(engine)
  sizes = np.bincount(_OWNERS)
  people = sorted(_private_people(tmp_path), key=sizes.__getitem__)
  # The one with the most rows and one of those with the fewest.
  for user in (people[-1], people[0]):
    other = _engine(kind, tmp_path, without=user)
    assert _public_rows(other) == rows
    assert _weights(other) == weights


@pytest.mark.slow
@pytest.mark.parametrize('kind', _KINDS)
def test_the_data_of_the_model_without_one_of_200(kind, tmp_path):
  engine = _engine(kind, tmp_path)
  people = _private_people(tmp_path)[:200]
  assert len(people) == 200
  initial = engine.get_weights(engine.initialize())
  rows = _public_rows(engine)
  for user in people:
    other = _engine(kind, tmp_path, without=user)
    assert _public_rows(other) == rows
    found = other.get_weights(other.initialize())
    for name, array in initial.items():
      assert array.tobytes() == found[name].tobytes()


def test_the_model_without_a_private_example(tmp_path):
  public = 30

  def pretrained(rows):
    arrays = {
      'train_inputs': _X[rows],
      'train_labels': _Y[rows],
      'test_inputs': _X[:9],
      'test_labels': _Y[:9],
      'num_classes': 4,
    }
    path = tmp_path / f'{len(list(tmp_path.iterdir()))}.npz'
    np.savez(path, **arrays)
    values = _VALUES | {'public_examples': public, 'pretraining.batch_size': 7}
    spec = runs_lib.RunSpec.for_data('table', str(path), **values)
    run = runs_lib.resolve(spec)
    seeds = privacy.SeedStreams(0)
    engine = jax_sample_level.SampleLevelEngine(run, seeds)
    return run.data.split, _weights(engine)

  every = np.arange(len(_X))
  parts, expected = pretrained(every)
  of_public = set(map(bytes, parts.public.inputs))
  private = [
    row
    for row in every
    if _X[row].astype(np.float32).tobytes() not in of_public
  ]
  assert len(private) == len(every) - public
  for row in (private[0], private[-1]):
    assert pretrained(np.delete(every, row))[1] == expected
