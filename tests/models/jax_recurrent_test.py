"""The JAX model and its Keras twin."""

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed.models import jax_recurrent
from pda_fed.models import keras_recurrent
import pytest
import tensorflow as tf

_SPEC = models.RecurrentSpec(num_words=30, embedding_size=6, lstm_size=5)


def _sentences(seed=0):
  """Sentences with special tokens and padding, one of them padding alone."""
  rng = np.random.default_rng(seed)
  sentences = rng.integers(1, _SPEC.vocabulary_size, (5, 9))
  sentences[1, 4:] = 0
  sentences[4] = 0
  return sentences


@pytest.fixture(scope='module')
def keras_model():
  return keras_recurrent.create_keras_model(_SPEC, seed=3)


@pytest.fixture(scope='module')
def params(keras_model):
  return _SPEC.jax_model().check_params(keras_model.get_weights())


def _gradients(params, sentences, weights=None):
  targets = sentences[:, 1:].T
  counts = jax_recurrent.target_weights(targets, (0,))
  if weights is not None:
    counts = counts * weights

  def loss(params):
    embedded = params.embedding[sentences[:, :-1].T]
    return jax_recurrent.embedded_loss(params, embedded, targets, counts)[0]

  params = jax.tree_util.tree_map(jnp.asarray, params)
  return jax.value_and_grad(loss)(params)


def test_logits_are_those_of_keras(keras_model, params):
  tokens = _sentences()[:, :-1]
  np.testing.assert_allclose(
    jax_recurrent.apply(params, tokens), keras_model(tokens), atol=1e-5
  )


def test_keras_takes_the_weights_back():
  params = jax_recurrent.initial_params(_SPEC, seed=1)
  model = keras_recurrent.create_keras_model(_SPEC)
  model.set_weights(list(params))
  tokens = _sentences()[:, :-1]
  np.testing.assert_allclose(
    jax_recurrent.apply(params, tokens), model(tokens), atol=1e-5
  )


@pytest.mark.slow
def test_loss_and_gradients_are_those_of_keras(keras_model, params):
  sentences = _sentences()
  loss_fn = keras_recurrent.MaskedCrossEntropy(_SPEC)
  with tf.GradientTape() as tape:
    expected = loss_fn(
      tf.constant(sentences[:, 1:]), keras_model(sentences[:, :-1])
    )
  gradients = tape.gradient(expected, keras_model.trainable_variables)
  loss, actual = _gradients(params, sentences)
  assert float(loss) == pytest.approx(float(expected), rel=1e-6)
  for a, e in zip(actual, gradients, strict=True):
    e = tf.convert_to_tensor(e).numpy()
    assert np.linalg.norm(a - e) <= 1e-5 * np.linalg.norm(e)


def test_metrics_are_those_of_keras(keras_model, params):
  sentences = _sentences()
  # Some right predictions, too.
  best = keras_model(sentences[:, :-1]).numpy().argmax(axis=-1)
  sentences[0, 1:3] = best[0, :2]
  metrics = keras_recurrent.create_metrics(_SPEC)
  for metric in metrics:
    metric.update_state(
      tf.constant(sentences[:, 1:]), keras_model(sentences[:, :-1])
    )
  expected = {m.name: float(m.result()) for m in metrics}
  sums = jax_recurrent.token_sums(_SPEC, params, sentences)
  assert {a.shape for pair in sums.values() for a in pair} == {(5,)}
  assert sums['accuracy_with_oov'][0].sum() > 0
  means = {n: float(s.sum() / counts.sum()) for n, (s, counts) in sums.items()}
  means['token_loss'] = means.pop('loss')
  assert expected == pytest.approx(means, rel=1e-5)


@pytest.mark.slow
def test_padding_alone_has_no_loss_and_no_gradient(params):
  loss, gradients = _gradients(params, np.zeros((2, 6), np.int64))
  assert loss == 0
  assert not any(np.any(g) for g in gradients)


@pytest.mark.slow
def test_padded_units_and_tokens_change_nothing(params):
  sentences = _sentences()
  padded = jax_recurrent.pad_params(params, 8)
  assert padded.lstm_recurrent.shape == (8, 32)
  assert padded.logits_bias.shape == (40,)
  loss, gradients = _gradients(params, sentences)
  padded_loss, padded_gradients = _gradients(padded, sentences)
  assert float(padded_loss) == pytest.approx(float(loss), rel=1e-6)
  inner = jax_recurrent.unpad_params(padded_gradients, _SPEC)
  for a, e, whole in zip(inner, gradients, padded_gradients, strict=True):
    np.testing.assert_allclose(a, e, atol=1e-7)
    # All that is not zero lies inside.
    assert np.count_nonzero(whole) == np.count_nonzero(a)


def test_unpadding_undoes_padding(params):
  padded = jax_recurrent.pad_params(params, 16)
  for a, e in zip(
    jax_recurrent.unpad_params(padded, _SPEC), params, strict=True
  ):
    np.testing.assert_array_equal(a, e)
  assert jax_recurrent.pad_params(params, 1) is params


@pytest.mark.slow
def test_bfloat16_is_near(params):
  sentences = _sentences()
  loss, gradients = _gradients(params, sentences)
  low = jax_recurrent.cast_params(params, jnp.bfloat16)
  low_loss, low_gradients = _gradients(low, sentences)
  assert float(low_loss) == pytest.approx(float(loss), rel=1e-2)
  for a, e in zip(low_gradients, gradients, strict=True):
    assert a.dtype == jnp.bfloat16
    error = np.linalg.norm(np.asarray(a, np.float32) - e)
    assert error <= 0.05 * np.linalg.norm(e)


class TestInitialParams:
  def test_the_paper_counts_them(self):
    spec = models.RecurrentSpec()
    params = jax_recurrent.initial_params(spec)
    assert sum(w.size for w in params) == 4_050_748
    assert {w.dtype for w in params} == {np.dtype(np.float32)}

  def test_distributions_are_those_of_keras(self):
    spec = models.RecurrentSpec(num_words=96, embedding_size=20, lstm_size=30)
    ours = jax_recurrent.initial_params(spec, 1)
    theirs = keras_recurrent.create_keras_model(spec, 1).get_weights()
    for a, e in zip(ours, theirs, strict=True):
      assert a.shape == e.shape
      assert a.mean() == pytest.approx(e.mean(), abs=0.02)
      assert np.abs(a).max() == pytest.approx(np.abs(e).max(), rel=0.25)
      assert a.std() == pytest.approx(e.std(), rel=0.1)
    recurrent = ours.lstm_recurrent.astype(np.float64)
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(30), atol=1e-6)
    np.testing.assert_array_equal(ours.lstm_bias, theirs[3])

  def test_seeds(self):
    first, again, other = (
      jax_recurrent.initial_params(_SPEC, seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.embedding, again.embedding)
    assert not np.array_equal(first.embedding, other.embedding)


def test_weights_of_another_model(params):
  other = models.RecurrentSpec(num_words=30, embedding_size=6, lstm_size=4)
  with pytest.raises(ValueError, match='they belong to another model'):
    other.jax_model().check_params(params)
  with pytest.raises(ValueError, match='they belong to another model'):
    _SPEC.jax_model().check_params(params[:-1])
