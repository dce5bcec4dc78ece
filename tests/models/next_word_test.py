"""The next-word LSTM in JAX: its Keras twin, and its fast rule."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping
from pda_fed import models
from pda_fed.models import batches
from pda_fed.models import keras_names
from pda_fed.models import keras_recurrent
from pda_fed.models import next_word
import pytest
import tensorflow as tf

_SPEC = models.RecurrentSpec(num_words=30, embedding_size=6, lstm_size=5)
_MODEL = _SPEC.jax_model()
_PLAIN = dataclasses.replace(_MODEL, fast=None)


def _sentences(seed=0):
  """Sentences with special tokens and padding, one of them padding alone."""
  rng = np.random.default_rng(seed)
  sentences = rng.integers(1, _SPEC.vocabulary_size, (5, 9))
  sentences[1, 4:] = 0
  sentences[4] = 0
  return sentences


@pytest.fixture(scope='module', name='keras_model')
def fixture_keras_model():
  return keras_recurrent.create_keras_model(_SPEC, seed=3)


@pytest.fixture(scope='module', name='params')
def fixture_params(keras_model):
  names = keras_names.weight_names(keras_model)
  weights = dict(zip(names, keras_model.get_weights(), strict=True))
  return batches.check_params(batches.from_named(_MODEL, weights), _MODEL)


def _gradients(params, sentences, model=_MODEL, dtype=jnp.float32):
  ones = np.ones(len(sentences), np.float32)
  stats, found = batches.gradients(model, params, (sentences,), ones, dtype)
  return stats, batches.named(found)


def _logits(params, tokens):
  return jax.vmap(_MODEL.logits, in_axes=(None, 0))(params, tokens)


def _assert_near(found, expected, tolerance):
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    error = np.linalg.norm(np.asarray(found[name], np.float64) - array)
    assert error <= tolerance * np.linalg.norm(array), name


def test_keras_takes_the_weights():
  params = _MODEL.init(1)
  model = keras_recurrent.create_keras_model(_SPEC)
  keras_names.set_weights(model, batches.named(params))
  tokens = _sentences()[:, :-1]
  np.testing.assert_allclose(_logits(params, tokens), model(tokens), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('model', [_MODEL, _PLAIN], ids=['fast', 'plain'])
def test_loss_and_gradients_are_those_of_keras(keras_model, params, model):
  sentences = _sentences()
  loss_fn = keras_recurrent.MaskedCrossEntropy(_SPEC)
  with tf.GradientTape() as tape:
    expected = loss_fn(
      tf.constant(sentences[:, 1:]), keras_model(sentences[:, :-1])
    )
  names = keras_names.weight_names(keras_model)
  gradients = tape.gradient(expected, keras_model.trainable_variables)
  arrays = [tf.convert_to_tensor(g).numpy() for g in gradients]
  stats, found = _gradients(params, sentences, model)
  assert stats.loss / stats.targets == pytest.approx(float(expected), rel=1e-6)
  _assert_near(found, dict(zip(names, arrays, strict=True)), 1e-5)


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
  sums = batches.metric_sums(_MODEL, params, (sentences,))
  assert {a.shape for pair in sums.values() for a in pair} == {(5,)}
  assert sums['accuracy_with_oov'][0].sum() > 0
  means = {n: float(s.sum() / counts.sum()) for n, (s, counts) in sums.items()}
  means['token_loss'] = means.pop('loss')
  assert expected == pytest.approx(means, rel=1e-5)


def test_padding_alone_has_no_loss_and_no_gradient(params):
  stats, gradients = _gradients(params, np.zeros((2, 6), np.int64))
  assert stats.loss == 0
  assert not any(np.any(g) for g in gradients.values())


def test_padded_units_and_tokens_change_nothing(params):
  padded = next_word.pad_params(params, 8)
  assert padded['lstm']['recurrent_kernel'].shape == (8, 32)
  assert padded['logits']['bias'].shape == (40,)
  _, expected = _gradients(params, _sentences())
  _, found = batches.gradients(
    _MODEL, padded, (_sentences(),), np.ones(5, np.float32)
  )
  inner = next_word.unpad_params(found, _SPEC)
  for name, array in batches.named(inner).items():
    np.testing.assert_allclose(array, expected[name], atol=1e-7)
    # All that is not zero lies inside.
    whole = batches.named(found)[name]
    assert np.count_nonzero(whole) == np.count_nonzero(array)
  again = batches.named(next_word.unpad_params(padded, _SPEC))
  for name, array in batches.named(params).items():
    np.testing.assert_array_equal(again[name], array)


def test_a_fast_step_is_that_of_the_gradients(params):
  weights = np.float32([1, 1, 1, 0, 0])
  batch = (_sentences(),), weights
  fast = _MODEL.fast
  stepped, stats = fast.sgd_step(fast.pad(params), *batch, 0.6, jnp.float32)
  expected_stats, gradients = batches.gradients(_PLAIN, params, *batch)
  expected = jax.tree.map(lambda w, g: w - 0.6 * g, params, gradients)
  found = batches.named(fast.unpad(stepped))
  for name, array in batches.named(expected).items():
    np.testing.assert_allclose(found[name], array, atol=1e-6)
  np.testing.assert_allclose(stats, expected_stats, rtol=1e-6)
  assert stats.examples == 3
  assert stats.targets == np.count_nonzero(_sentences()[:3, 1:])


@pytest.mark.parametrize('at_once', [1, 7, 64])
def test_rows_are_summed_in_parts(at_once, monkeypatch):
  rng = np.random.default_rng(0)
  table = rng.standard_normal((5, 3)).astype(np.float32)
  tokens = rng.integers(0, 5, 23)
  rows = rng.standard_normal((23, 3)).astype(np.float32)
  expected = table.copy()
  np.add.at(expected, tokens, rows)
  monkeypatch.setattr(next_word, '_TOKENS_AT_ONCE', at_once)
  found = next_word.add_rows(table, jnp.asarray(tokens), rows)
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_is_near(params):
  stats, expected = _gradients(params, _sentences())
  low_stats, found = _gradients(params, _sentences(), dtype=jnp.bfloat16)
  assert float(low_stats.loss) == pytest.approx(float(stats.loss), rel=1e-2)
  _assert_near(found, expected, 0.05)


def test_clipped_gradients_need_not_form_its_weights(params):
  found = clipping.explain(_MODEL.loss, params, _sentences()[0], has_aux=True)
  assert 'formed' not in {row.norm for row in found.rows}


def test_initial_weights_are_those_of_keras():
  spec = models.RecurrentSpec(num_words=96, embedding_size=20, lstm_size=30)
  ours = batches.named(spec.jax_model().init(1))
  theirs = keras_recurrent.create_keras_model(spec, 1)
  names = keras_names.weight_names(theirs)
  for name, e in zip(names, theirs.get_weights(), strict=True):
    a = ours[name]
    assert a.dtype == np.float32
    assert a.mean() == pytest.approx(e.mean(), abs=0.02)
    assert np.abs(a).max() == pytest.approx(np.abs(e).max(), rel=0.25)
    assert a.std() == pytest.approx(e.std(), rel=0.1)
  recurrent = np.asarray(ours['lstm/recurrent_kernel'], np.float64)
  np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(30), atol=1e-6)
  again, other = (spec.jax_model().init(seed) for seed in (1, 2))
  np.testing.assert_array_equal(
    ours['logits/kernel'], again['logits']['kernel']
  )
  assert not np.array_equal(ours['logits/kernel'], other['logits']['kernel'])
