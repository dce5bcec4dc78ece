"""Warm starts of both engines, and evaluation."""

import jax
import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed import models
from pda_fed.common import optimizers
from pda_fed.jax.federated import evaluation
from pda_fed.jax.federated import pretraining
from pda_fed.models import batches
from pda_fed.models import convergence as pretraining_lib
from pda_fed.models import keras_names
from pda_fed.models import keras_recurrent
import pytest
import tensorflow as tf

from tests.jax import small_users

_SPEC = models.RecurrentSpec(num_words=7, embedding_size=4, lstm_size=5)
_MODEL = _SPEC.jax_model()
_SENTENCES = np.concatenate(small_users.make_users(_SPEC, [9, 12, 9], seed=0))
_CONFIG = pretraining_lib.PretrainingConfig(
  batch_size=4, max_epochs=4, patience=2, seed=5
)


def _params_of(keras_model):
  names = keras_names.weight_names(keras_model)
  weights = dict(zip(names, keras_model.get_weights(), strict=True))
  return batches.from_named(_MODEL, weights)


@pytest.mark.slow
def test_both_engines_train_alike():
  # Here: the other tests need no TFF.
  from pda_fed import tff as pda_tff

  settings = optimizers.OptimizerSettings(optimizer='yogi', learning_rate=0.05)
  start = _params_of(keras_recurrent.create_keras_model(_SPEC, 0))
  epochs = []
  ours = pretraining.pretrain(
    _MODEL,
    start,
    (_SENTENCES,),
    pda_jax.build_optimizer(settings),
    _CONFIG,
    on_epoch=lambda *e: epochs.append(e),
  )
  public = [
    (_SENTENCES[:, :-1].astype(np.int64), _SENTENCES[:, 1:].astype(np.int64))
  ]
  theirs = pda_tff.pretrain(
    pda_tff.build_model_fn(_SPEC, 0),
    public,
    pda_tff.build_optimizer(settings),
    _CONFIG,
  )
  assert ours.epochs == theirs.epochs
  assert ours.held_out_losses == pytest.approx(theirs.held_out_losses, rel=1e-4)
  assert [e for e, _ in epochs] == [1, 2, 3, 4]
  both = jax.tree.leaves(ours.weights), theirs.weights.trainable
  for a, e in zip(*both, strict=True):
    assert np.linalg.norm(a - e) <= 1e-3 * np.linalg.norm(e)


def test_a_rate_too_high_says_so():
  with pytest.raises(ValueError, match='lower the learning rate'):
    pretraining.pretrain(
      _MODEL, _MODEL.init(0), (_SENTENCES,), optax.sgd(1e38), _CONFIG
    )


def test_metrics_are_those_of_keras(monkeypatch):
  monkeypatch.setattr(evaluation, '_CPU_BATCH', 7)  # 30 is no multiple.
  model = keras_recurrent.create_keras_model(_SPEC, 1)
  metrics = keras_recurrent.create_metrics(_SPEC)
  for metric in metrics:
    metric.update_state(
      tf.constant(_SENTENCES[:, 1:].astype(np.int64)), model(_SENTENCES[:, :-1])
    )
  expected = {m.name: float(m.result()) for m in metrics}
  found = evaluation.evaluate(_MODEL, _params_of(model), (_SENTENCES,))
  assert found['perplexity'] == pytest.approx(np.exp(found['loss']))
  assert found['loss'] == pytest.approx(expected['token_loss'], rel=1e-5)
  assert found['accuracy'] == pytest.approx(expected['accuracy'])
  assert found['accuracy_with_oov'] == pytest.approx(
    expected['accuracy_with_oov']
  )


def test_no_sentences():
  with pytest.raises(ValueError, match='at least one row'):
    evaluation.evaluate(_MODEL, _MODEL.init(0), (_SENTENCES[:0],))
