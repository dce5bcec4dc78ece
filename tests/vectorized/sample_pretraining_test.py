"""Warm starts on public examples."""

import jax.numpy as jnp
import numpy as np
from pda_fed import pretraining
from pda_fed import vectorized
from pda_fed.experiments import central_config
from pda_fed.vectorized import sample_pretraining
import pytest

from tests.vectorized import small_models

_CONFIG = pretraining.PretrainingConfig(
  batch_size=4, held_out=0.2, patience=4, max_epochs=4, seed=1
)


@pytest.fixture(autouse=True, scope='module')
def fixture_quick_compilation():
  with small_models.quick_compilation():
    yield


def _pretrain(candidates=1, on_epoch=None, **options):
  model, inputs, targets = small_models.create('pooled')
  settings = vectorized.SampleLevelSettings(clip_norm=1.0, expected_batch=1.0)
  examples = vectorized.ExampleArrays(
    jnp.concatenate([inputs] * 4), jnp.concatenate([targets] * 4)
  )
  return sample_pretraining.pretrain(
    model,
    vectorized.SampleTrainer(model, settings),
    examples,
    pretraining.PretrainingOptimizer(**options),
    _CONFIG,
    initialization_seed=3,
    candidates=candidates,
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


def test_the_best_of_several_candidates_is_kept():
  alone = _pretrain(learning_rate=0.02)
  several = _pretrain(candidates=3, learning_rate=0.02)
  best = several.held_out_losses[several.epochs]
  assert best <= alone.held_out_losses[alone.epochs]
  again = _pretrain(candidates=3, learning_rate=0.02)
  for a, b in zip(several.weights, again.weights, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  'options',
  [
    {'optimizer': 'other'},
    {'learning_rate': 0.0},
    {'dropout': 1.0},
    {'averaging': 1.0},
    {'clip_norm': 0.0},
    {'decay': 'linear'},
    {'weight_decay': -1.0},
  ],
)
@pytest.mark.parametrize(
  'settings',
  [pretraining.PretrainingOptimizer, central_config.CentralPretraining],
)
def test_bad_options(settings, options):
  with pytest.raises(ValueError, match='pretraining_'):
    settings(**options)


@pytest.mark.parametrize('options', [{'candidates': 0}, {'patience': 0}])
def test_bad_options_of_a_run(options):
  with pytest.raises(ValueError, match='pretraining_'):
    central_config.CentralPretraining(**options)
