"""Random programs of recognized operations, against vmap(grad)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping
import pytest

from tests.clipping import nets

_LENGTH, _WIDTH = 4, 6


class _Weights:
  """Draws weights; at times one that was used before."""

  def __init__(self, rng):
    self.rng = rng
    self.arrays = []

  def draw(self, *shape):
    same = [k for k, a in enumerate(self.arrays) if a.shape == shape]
    if same and self.rng.random() < 0.3:
      return int(self.rng.choice(same))
    self.arrays.append(self.rng.normal(size=shape) / 2)
    return len(self.arrays) - 1


def _dense(weights):
  k = weights.draw(_WIDTH, _WIDTH)
  if weights.rng.random() < 0.5:
    return lambda w, x: x @ w[k]
  return lambda w, x: x @ w[k].T


def _left(weights):
  k = weights.draw(_LENGTH, _LENGTH)
  return lambda w, x: w[k] @ x


def _bias(weights):
  k = weights.draw(_WIDTH)
  return lambda w, x: jnp.tanh(x * 0.5) * w[k] - w[k]


def _heads(weights):
  k = weights.draw(2, 3, 3)
  return lambda w, x: jnp.einsum(
    'the,hef->thf', x.reshape(_LENGTH, 2, 3), w[k]
  ).reshape(x.shape)


def _convolve(weights):
  groups = int(weights.rng.choice([1, 2, 6]))
  size = int(weights.rng.integers(1, 4))
  k = weights.draw(size, _WIDTH // groups, _WIDTH)
  dilation = int(weights.rng.integers(1, 3))
  return lambda w, x: jax.lax.conv_general_dilated(
    x[None],
    w[k],
    (1,),
    'SAME',
    rhs_dilation=(dilation,),
    dimension_numbers=('NWC', 'WIO', 'NWC'),
    feature_group_count=groups,
  )[0]


def _look_up(weights):
  k = weights.draw(5, _WIDTH)
  return lambda w, x: x + w[k][jnp.argmax(x, axis=1) % 5]


def _cut(weights):
  k = weights.draw(2 * _WIDTH, _WIDTH)
  first = int(weights.rng.integers(0, _WIDTH + 1))
  return lambda w, x: x @ w[k][first : first + _WIDTH]


def _join(weights):
  k, m = weights.draw(_WIDTH, 2), weights.draw(_WIDTH, 4)
  return lambda w, x: x @ jnp.concatenate([w[k], w[m]], axis=1)


def _merge(weights):
  k, m = weights.draw(_WIDTH, 2), weights.draw(2, _WIDTH)
  return lambda w, x: x @ (w[k] @ w[m])


_SIMPLE = (
  _dense, _left, _bias, _heads, _convolve, _look_up, _cut, _join, _merge
)  # fmt: skip


def _again(weights):
  inside = _chain(weights, 2)
  return lambda w, x: jax.checkpoint(inside)(w, x)


def _steps(weights):
  """A scan whose weights are shared by all steps."""
  inside = _chain(weights, 2)
  reverse = bool(weights.rng.integers(2))

  def run(w, x):
    def step(carry, row):
      carry = jnp.tanh(inside(w, carry + row))
      return carry, carry[0]

    return jax.lax.scan(step, x, x[:, None], reverse=reverse)[1]

  return run


def _layers(weights):
  """A scan over weights."""
  k, m = weights.draw(3, _WIDTH, _WIDTH), weights.draw(3, _WIDTH)

  def run(w, x):
    def step(x, p):
      return jnp.tanh(x @ p[0] + p[1]), None

    return jax.lax.scan(step, x, (w[k], w[m]))[0]

  return run


def _chain(weights, count, kinds=_SIMPLE):
  chosen = weights.rng.integers(len(kinds), size=count)
  steps = [kinds[k](weights) for k in chosen]

  def run(w, x):
    for step in steps:
      y = step(w, x)
      x = jnp.tanh(y) + x / 2
    return x

  return run


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(10))
def test_random_programs(seed):
  rng = np.random.default_rng(seed)
  weights = _Weights(rng)
  program = _chain(weights, 4, (*_SIMPLE, _again, _steps, _layers))

  def loss(w, x):
    return jnp.square(program(w, x)).mean()

  x = rng.normal(size=(nets.EXAMPLES, _LENGTH, _WIDTH))
  with jax.enable_x64(True):
    run = jax.jit(functools.partial(nets.reference, loss))
    expected, norms, clip_norm = run(weights.arrays, (x,))
    clip = jax.jit(lambda w, x, n: clipping.clipped_grad(loss, n)(w, x))
    sums, info = clip(weights.arrays, x, clip_norm)
  np.testing.assert_allclose(info.norms, norms, rtol=1e-6)
  for found, array in zip(sums, expected, strict=True):
    np.testing.assert_allclose(found, array, rtol=0, atol=1e-9)
