"""Runs of every kind of model that were saved and never trained.

Weights are random; a checkpoint has what engines, audits and optimizers put
beside them. Only the loop and the engines are left out.
"""

import dataclasses
import pathlib

import data_prep
from data_prep import sources
import numpy as np
from pda_fed import models
from pda_fed import runs as runs_lib
from pda_fed.models import batches
from pda_fed.models import convolutional
from pda_fed.runs import checkpoints
from pda_fed.runs import resuming

from tests.runs import tiny_users

ROUNDS = 7
_WORDS = [f'w{i}' for i in range(12)]
_LANGUAGE = models.LanguageSpec(
  vocabulary_size=10, embedding_size=4, lstm_size=5
)
# Of images as sample-level runs and stores have them, and what they become.
_IMAGES = {
  'cifar10': convolutional.CIFAR10,
  'emnist': convolutional.EMNIST,
  'images': models.for_images((8, 8, 1), 3),
}
FEDERATED = ('lstm', 'linear', 'cnn')
KINDS = (*FEDERATED, 'language', 'cifar10', 'emnist', 'table')


def inputs_of(kind: str, spec: models.ModelSpec, count: int = 3) -> np.ndarray:
  """Random inputs, not standardised."""
  rng = np.random.default_rng(5)
  if kind in ('lstm', 'language'):
    return rng.integers(0, spec.vocabulary_size, (count, 6))
  inputs = rng.uniform(0, 255, (count, *spec.input_shape))
  return inputs.astype(np.uint8 if len(spec.input_shape) == 3 else np.float32)


def random_weights(spec: models.ModelSpec) -> dict[str, np.ndarray]:
  """Initial weights with random biases.

  Filters are smaller, or rounding errors would grow from layer to layer.
  """
  rng = np.random.default_rng(3)
  scales = {2: 1.0, 4: 0.6}
  return {
    name: np.asarray(w) + rng.normal(0, 0.3, w.shape).astype('f')
    if w.ndim == 1
    else np.asarray(w) * np.float32(scales[w.ndim])
    for name, w in batches.named(spec.jax_model().init(1)).items()
  }


def _array_source(spec) -> sources.ArraySource:
  count = 60
  return sources.ArraySource(
    pathlib.Path('mine.npz'),
    inputs_of('', spec, count),
    np.arange(count) % spec.num_classes,
    [f'u{i:02d}' for i in range(20)],
    np.arange(count) % 20,
  )


def prepare(source, path: pathlib.Path, max_sentences: int = 256, **options):
  """Writes a store of the users of a source, of whom four are public."""
  config = data_prep.PrepareConfig(
    partition=data_prep.PartitionConfig(
      seed=0, max_sentences=max_sentences, num_public_users=4
    ),
    holdout=data_prep.HoldoutConfig(validation_fraction=0.2, test_fraction=0.2),
    num_processes=1,
    **options,
  )
  return data_prep.prepare(source, path, config)


def _write_users(kind: str, data_dir: pathlib.Path) -> None:
  if kind == 'lstm':
    tiny_users.prepare(data_dir)
    return
  linear = models.linear((4,), 3)
  prepare(
    _array_source(linear if kind == 'linear' else _IMAGES['images']), data_dir
  )


def _write_data(kind: str, spec, path: pathlib.Path) -> str:
  """Writes the data of a sample-level run; returns its data set."""
  if kind == 'language':
    path.mkdir()
    rng = np.random.default_rng(2)
    for part in ('train', 'valid', 'test'):
      lines = rng.choice(_WORDS, (20, 40), p=np.arange(1, 13) / 78)
      text = '\n'.join(map(' '.join, lines.tolist()))
      (path / f'wiki.{part}.tokens').write_text(text)
    return 'wikitext2'
  name = 'inputs' if kind == 'table' else 'images'
  arrays = {}
  for part in ('train', 'test'):
    arrays[f'{part}_{name}'] = inputs_of(kind, spec, 20)
    arrays[f'{part}_labels'] = np.arange(20) % spec.num_classes
  arrays['train_' + name][0] += 1  # No image of both.
  with open(path, 'wb') as f:
    np.savez(f, **arrays, num_classes=spec.num_classes)
  return kind if kind == 'table' else 'images'


_VALUES = {
  'method': 'warm',
  'engine': 'jax',
  'rounds': ROUNDS,
  'expected_cohort': 2,
  'delta': 1e-3,
  'noise_multiplier': 1.0,
  'clip_norm': 1.0,
  'seed': 0,
}
_SIZES = {
  'lstm': {'model.embedding_size': 3, 'model.lstm_size': 4},
  'language': {
    'vocabulary_size': 10,
    'model.embedding_size': 4,
    'model.lstm_size': 5,
  },
}


def resolved(kind: str, data_dir: pathlib.Path, **values) -> runs_lib.Run:
  """Writes data and returns a run on them."""
  values = {**_VALUES, **_SIZES.get(kind, {}), **values}
  if kind in FEDERATED:
    _write_users(kind, data_dir)
    spec = runs_lib.RunSpec.for_data(None, str(data_dir), **values)
    return runs_lib.resolve(spec)
  values = {'public_examples': 6, 'server.learning_rate': 0.1, **values}
  model = {'language': _LANGUAGE, 'table': models.linear((4,), 3)}.get(kind)
  model = model or _IMAGES[kind]
  dataset = _write_data(kind, model, data_dir)
  spec = runs_lib.RunSpec.for_data(dataset, str(data_dir), **values)
  return dataclasses.replace(runs_lib.resolve(spec), model=model)


def save(path: pathlib.Path, run, weights, **arrays) -> pathlib.Path:
  """Writes the folder of a run."""
  with resuming.opened(path, run) as folder:
    beside = {
      **{f'optimizer/{i}': w + 1 for i, w in enumerate(weights.values())},
      'audit/scores': np.ones(3),
      'tff/aggregator/0': np.ones(3),
      'clip_norm': np.ones(()),
    }
    own = {f'weights/{name}': w for name, w in weights.items()}
    saved = checkpoints.Checkpoints(folder.checkpoints_path)
    saved.save(ROUNDS, {**own, **beside, **arrays}, {})
  return path


def make_run(kind: str, folder: pathlib.Path, **values) -> pathlib.Path:
  """Makes the folder of a run of a kind of model, with its data beside it."""
  folder.mkdir(parents=True, exist_ok=True)
  run = resolved(kind, folder / 'data', **values)
  return save(folder / 'run', run, random_weights(run.model))
