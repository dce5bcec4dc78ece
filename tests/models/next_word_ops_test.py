"""Products and their derivatives in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import next_word_ops
import pytest


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('shape', [(7,), (128, 7), (129, 7), (3, 100, 7)])
def test_derivatives_of_products(shape, dtype):
  # Products over more than 128 rows are sums of parts.
  rng = np.random.default_rng(0)
  a, b, weights = (
    jnp.asarray(rng.integers(-2, 3, size), dtype)
    for size in (shape, (7, 5), (*shape[:-1], 5))
  )

  def loss(a, b):
    return (next_word_ops.dot(a, b) * weights).astype('float32').sum()

  d_a, d_b = jax.grad(loss, (0, 1))(a, b)
  assert d_a.dtype == d_b.dtype == dtype
  a, b, weights = (np.asarray(x, np.float64) for x in (a, b, weights))
  np.testing.assert_array_equal(d_a.astype('float32'), weights @ b.T)
  # Sums of small integers have no error in float32; bfloat16 rounds the result.
  expected = a.reshape(-1, 7).T @ weights.reshape(-1, 5)
  np.testing.assert_array_equal(d_b, jnp.asarray(expected, dtype))


def test_derivatives_of_several_products_side_by_side():
  rng = np.random.default_rng(1)
  a, b = rng.normal(size=(2, 4, 300, 6)).astype('f4')

  def gradient(a, b):
    return jax.grad(lambda kernel: (next_word_ops.dot(a, kernel) * b).sum())(
      jnp.zeros((6, 6))
    )

  found = jax.vmap(gradient)(a, b)
  np.testing.assert_allclose(found, np.einsum('crm,crn->cmn', a, b), atol=1e-4)


def test_the_gradient_of_a_bias_is_summed_in_float32():
  # In bfloat16 256 + 1 is 256: a sum that rounds each step stays there.
  x = jnp.zeros((50, 20, 3), jnp.bfloat16)
  bias = jnp.zeros(3, jnp.bfloat16)
  of_x, of_bias = jax.jit(
    jax.grad(lambda *a: next_word_ops.add_bias(*a).astype('f4').sum(), (0, 1))
  )(x, bias)
  assert of_x.dtype == of_bias.dtype == jnp.bfloat16
  np.testing.assert_array_equal(of_x, np.ones(x.shape))
  np.testing.assert_array_equal(of_bias, np.full(3, 1000))
