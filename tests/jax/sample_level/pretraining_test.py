"""Warm starts on public examples."""

import dataclasses
import itertools

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
from pda_fed import jax as pda_jax
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import pretraining
from pda_fed.models import batches
from pda_fed.models import convergence
import pytest

from tests.jax import small_models

_CONFIG = convergence.PretrainingConfig(
  learning_rate=1e-3,
  batch_size=4,
  held_out=0.2,
  patience=4,
  max_epochs=4,
  seed=1,
)


@pytest.fixture(autouse=True, scope='module')
def fixture_quick_compilation():
  with small_models.quick_compilation():
    yield


def _pretrain(on_epoch=None, **options):
  model, inputs, targets = small_models.create('pooled')
  settings = small_models.step_settings()
  examples = pda_jax.ExampleArrays(
    jnp.concatenate([inputs] * 4), jnp.concatenate([targets] * 4)
  )
  return pretraining.pretrain(
    model,
    pda_jax.SampleTrainer(model, settings),
    examples,
    dataclasses.replace(_CONFIG, **options),
    initialization_seed=3,
    on_epoch=on_epoch,
  )


@pytest.mark.parametrize(
  'options',
  [
    {'learning_rate': 0.02, 'averaging': 0.5},
    {
      'optimizer': 'sgd',
      'learning_rate': 0.2,
      'momentum': 0.5,
      'clip_norm': 1.0,
      'weight_decay': 1e-3,
      'dropout': 0.1,
      'decay': 'cosine',
    },
  ],
)
def test_it_learns(options):
  losses = []
  done = _pretrain(on_epoch=lambda _, loss: losses.append(loss), **options)
  assert losses[-1] < done.held_out_losses[0]
  assert done.held_out_losses[done.epochs] == min(done.held_out_losses)


_RATE = 0.2


def _trainer(standard=None, **options):
  """A warm start whose epoch is one step over all examples."""
  model, inputs, targets = small_models.create('pooled')
  settings = small_models.step_settings()
  weights = small_models.params_of(model)
  trainer = pretraining._Trainer(
    model,
    pda_jax.SampleTrainer(model, settings, standard),
    weights,
    pda_jax.ExampleArrays(inputs, targets),
    dataclasses.replace(
      _CONFIG,
      batch_size=len(inputs),
      optimizer='sgd',
      learning_rate=_RATE,
      **options,
    ),
  )

  def gradient(params):
    return batches.gradients(
      model, params, (inputs, targets), np.ones(len(inputs), np.float32)
    )[1]

  return trainer, weights, gradient, np.arange(len(inputs))


def _clipped(gradient, clip_norm):
  norm = np.linalg.norm(flatten_util.ravel_pytree(gradient)[0])
  assert norm > clip_norm
  return jax.tree.map(lambda g: g * clip_norm / norm, gradient)


def _assert_near(found, expected, tolerance):
  for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(a, b, atol=tolerance)


def _first(params):
  return jax.tree.leaves(params)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('options', 'change'),
  [
    ({}, lambda w, g: g),
    ({'clip_norm': 0.01}, lambda w, g: _clipped(g, 0.01)),
    (
      {'weight_decay': 0.3},
      lambda w, g: jax.tree.map(lambda a, d: d + 0.3 * a, w, g),
    ),
  ],
)
def test_a_step_by_hand(options, change):
  trainer, weights, gradient, rows = _trainer(**options)
  trainer.train(rows)
  step = change(weights, gradient(weights))
  expected = jax.tree.map(lambda w, d: w - _RATE * d, weights, step)
  _assert_near(trainer.weights(), expected, 1e-6)


def test_a_rate_that_falls_by_a_cosine():
  trainer, weights, gradient, rows = _trainer(decay='cosine')
  for epoch in range(_CONFIG.max_epochs):
    trainer.train(rows)
    rate = _RATE * 0.5 * (1 + np.cos(np.pi * epoch / _CONFIG.max_epochs))
    step = gradient(weights)
    weights = jax.tree.map(lambda w, g, r=rate: w - r * g, weights, step)
    _assert_near(trainer.weights(), weights, 1e-5)


def test_the_average_is_what_is_kept():
  averaged, *_, rows = _trainer(averaging=0.9)
  plain, *_ = _trainer()
  seen = []
  for _ in range(3):
    averaged.train(rows)
    plain.train(rows)
    seen.append(_first(plain.weights()))
  found = _first(averaged.weights())
  assert not np.allclose(found, seen[-1], atol=1e-4)
  low, high = np.min(seen, axis=0), np.max(seen, axis=0)
  start = _first(small_models.params_of(small_models.create('pooled')[0]))
  low, high = np.minimum(low, start), np.maximum(high, start)
  assert (found >= low - 1e-6).all() and (found <= high + 1e-6).all()


@pytest.mark.slow
def test_dropout_and_varied_images_change_a_step():
  standard = augmentation.Standardization(np.zeros(1), np.ones(1))
  steps = []
  for options in (
    {},
    {'dropout': 0.5},
    {'augmentation': 'standard'},
    {'augmentation': 'strong'},
    {'mixup': 1.0},
  ):
    trainer, *_, rows = _trainer(standard, **options)
    trainer.train(rows)
    steps.append(_first(trainer.weights()))
  for i, j in itertools.combinations(range(len(steps)), 2):
    assert not np.allclose(steps[i], steps[j], atol=1e-5), (i, j)


@pytest.mark.slow
def test_the_best_of_several_candidates_is_kept():
  alone = _pretrain(learning_rate=0.02)
  several = _pretrain(candidates=3, learning_rate=0.02)
  best = several.held_out_losses[several.epochs]
  assert best <= alone.held_out_losses[alone.epochs]
  again = _pretrain(candidates=3, learning_rate=0.02)
  _assert_near(several.weights, again.weights, 0)


@pytest.mark.parametrize(
  'options',
  [
    {'optimizer': 'other'},
    {'augmentation': 'other'},
    {'mixup': -1.0},
    {'learning_rate': 0.0},
    {'dropout': 1.0},
    {'averaging': 1.0},
    {'clip_norm': 0.0},
    {'decay': 'linear'},
    {'weight_decay': -1.0},
    {'candidates': 0},
    {'patience': 0},
  ],
)
def test_bad_options(options):
  (name,) = options
  with pytest.raises(ValueError, match=f'{name} must be'):
    convergence.PretrainingConfig(**options)
