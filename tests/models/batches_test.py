"""Batches of a model, and weights by name."""

import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed.models import batches
from pda_fed.models import model as model_lib
import pytest

_SPEC = models.linear((3,), 2)


def test_a_padded_row_may_be_what_a_model_cannot_take():
  def loss(params, x, y):
    return (x / jnp.linalg.norm(x) @ params - y) ** 2

  model, params = models.Model(None, loss), jnp.ones(2)
  x, y = np.float32([[3.0, 4.0], [0.0, 0.0]]), np.float32([0.5, 0.0])
  _, padded = batches.gradients(model, params, (x, y), np.float32([1, 0]))
  _, alone = batches.gradients(model, params, (x[:1], y[:1]), np.float32([1]))
  np.testing.assert_allclose(padded, alone)
  _, nothing = batches.gradients(model, params, (0 * x, y), np.float32([0, 0]))
  assert nothing.tolist() == [0, 0]


def test_a_batch_averages_over_targets():
  def loss(params, x, count):
    total = params * x * count
    return total, {'loss': (total, count), 'twice': (2 * x, 1.0)}

  model = models.Model(None, loss)
  batch = np.float32([1.0, 2.0]), np.float32([3.0, 1.0])
  stats, found = batches.gradients(
    model, jnp.float32(1), batch, np.ones(2, np.float32)
  )
  assert float(found) == pytest.approx((1 * 3 + 2 * 1) / 4)
  assert (float(stats.loss), float(stats.targets)) == (5, 4)
  sums = batches.metric_sums(model, jnp.float32(1), batch)
  assert sums['twice'][0].tolist() == [2, 4]


@pytest.mark.parametrize(
  ('value', 'error', 'message'),
  [
    (jnp.ones(1), ValueError, r'must return a scalar.*Found shape \(1,\)'),
    (jnp.int32(3), TypeError, 'floating-point number. Found dtype int32'),
  ],
)
def test_losses_that_are_none(value, error, message):
  model = models.Model(None, lambda params, x: value)
  with pytest.raises(error, match=message):
    batches.loss_of_one(model, jnp.ones(2), jnp.ones(3))


def test_names_of_weights():
  model = _SPEC.jax_model()
  params = model.init(0)
  named = batches.named(params)
  assert list(named) == ['logits/bias', 'logits/kernel']
  again = batches.from_named(model, dict(reversed(named.items())))
  np.testing.assert_array_equal(
    again['logits']['kernel'], params['logits']['kernel']
  )
  with pytest.raises(ValueError, match="Found {'logits/bias': .* another mod"):
    batches.from_named(model, {'logits/bias': named['logits/bias']})


def test_weights_that_are_not_trained():
  with pytest.raises(TypeError, match="dtype int.* in 'a/1'"):
    batches.check_params({'a': [np.ones(2), np.arange(3)]})
  with pytest.raises(ValueError, match='at least one weight'):
    batches.check_params({})
  model = _SPEC.jax_model()
  other = models.linear((4,), 2).jax_model().init(0)
  with pytest.raises(ValueError, match='they belong to another model'):
    batches.check_params(other, model)


def test_a_loss_without_dropout():
  model = models.Model(None, lambda params, x: params @ x)
  with pytest.raises(ValueError, match='dropout must be 0 for this model'):
    batches.metric_sums(
      model, jnp.ones(2), (jnp.ones((3, 2)),), key=None, dropout=0.5
    )


def test_what_is_no_model():
  with pytest.raises(TypeError, match='must be a models.Model, or a function'):
    model_lib.as_model({'w': 1.0})
