import math

import numpy as np
from pda_fed import models
from pda_fed.models import keras_recurrent
import pytest
import tensorflow as tf

_SPEC = models.RecurrentSpec(num_words=5, embedding_size=3, lstm_size=4)


def test_special_tokens_lie_as_in_tffs_baseline():
  assert (_SPEC.pad, _SPEC.oov, _SPEC.bos, _SPEC.eos) == (0, 6, 7, 8)
  assert _SPEC.vocabulary_size == 9


def test_seed_decides_the_initial_weights():
  first, again, other = (
    [w.numpy() for w in keras_recurrent.create_keras_model(_SPEC, seed).weights]
    for seed in (1, 1, 2)
  )
  for a, b in zip(first, again, strict=True):
    np.testing.assert_array_equal(a, b)
  assert any(
    not np.array_equal(a, b) for a, b in zip(first, other, strict=True)
  )


# Five targets: a hit, a miss, oov (hit), eos (hit), padding.
_TARGETS = np.array([[1, 2, 6, 8, 0]])
_LOGITS = np.eye(9, dtype=np.float32)[[[1, 3, 6, 8, 0]]] * 2
_HIT = math.log(math.exp(2) + 8) - 2
_MISS = math.log(math.exp(2) + 8)
_EXPECTED = {
  'token_loss': (3 * _HIT + _MISS) / 4,
  'accuracy': 1 / 2,
  'accuracy_with_oov': 3 / 4,
}


def test_metrics_by_hand():
  metrics = keras_recurrent.create_metrics(_SPEC)
  for metric in metrics:
    metric.update_state(tf.constant(_TARGETS), tf.constant(_LOGITS))
  results = {m.name: float(m.result()) for m in metrics}
  assert results == pytest.approx(_EXPECTED, rel=1e-6)


def _loss(targets):
  loss = keras_recurrent.MaskedCrossEntropy(_SPEC)
  return loss(tf.constant(targets), tf.constant(_LOGITS))


def test_loss_by_hand():
  assert float(_loss(_TARGETS)) == pytest.approx(_EXPECTED['token_loss'])


def test_loss_by_hand_in_a_graph_where_eq_compares_identities():
  # So TFF traces models; `targets != pad` would be True there.
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    assert session.run(_loss(_TARGETS)) == pytest.approx(
      _EXPECTED['token_loss']
    )


def test_loss_of_padding_alone_is_zero():
  assert float(_loss(np.zeros([1, 5], np.int64))) == 0.0


@pytest.mark.parametrize('size', ['num_words', 'embedding_size', 'lstm_size'])
def test_bad_sizes(size):
  with pytest.raises(ValueError, match=f'{size} must be at least 1'):
    models.RecurrentSpec(**{size: 0})
