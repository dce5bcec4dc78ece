"""No example moves the sum by more than the clip, measured in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping
import pytest

from tests.clipping import nets

_CLIP = 1.0


def _linear(weight, x, deltas):
  """The data are both factors of the gradient, x' deltas."""
  return ((x @ weight).astype(jnp.float32) * deltas).sum()


def _table(weight, tokens, deltas):
  """Rows of a table."""
  return (weight[tokens].astype(jnp.float32) * deltas).sum()


def _tied(weight, tokens, deltas, x, logits):
  """Rows of a table, and its product."""
  return _table(weight, tokens, deltas) + _linear(weight.T, x, logits)


@functools.cache
def _compiled(loss, backend):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, 'default_backend', lambda: backend)
    clip = jax.jit(
      lambda *args, mask: clipping.clipped_grad(loss, _CLIP)(*args, mask=mask)
    )

    def run(*args, mask):
      patch.setattr(jax, 'default_backend', lambda: backend)
      try:
        return clip(*args, mask=mask)
      finally:
        patch.undo()

    return run


def _largest(loss, backend, weight, batch):
  """The norm of what each example adds to an empty sum, at most."""
  run, count = _compiled(loss, backend), len(batch[0])
  found = [
    nets.norm_of(run(weight, *batch, mask=np.arange(count) == i)[0])
    for i in range(count)
  ]
  return max(found)


_HOW = [(d, b) for d in ('float32', 'bfloat16') for b in ('cpu', 'gpu')]


@pytest.mark.parametrize(('dtype', 'backend'), _HOW)
def test_positions_that_cancel(dtype, backend):
  # Inputs that hardly differ between positions, and deltas whose sum is 0: the
  # gradient is a tiny part of what is added up.
  rng = np.random.default_rng(0)
  largest = 0.0
  for size in (1e2, 1e3, 1e4, 1e5, 1e6):
    x = 1 + 1e-3 * rng.normal(size=(6, 64, 300))
    delta = rng.normal(size=(6, 64, 200))
    delta -= delta.mean(axis=1, keepdims=True)
    scale = np.linalg.norm(x, axis=(1, 2)) * np.linalg.norm(delta, axis=(1, 2))
    delta *= size / scale[:, None, None]
    weight = jnp.zeros((300, 200), dtype)
    batch = jnp.asarray(x, dtype), jnp.asarray(delta, jnp.float32)
    largest = max(largest, _largest(_linear, backend, weight, batch))
  assert 1e-2 < largest <= _CLIP


@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_rounded_gradients_are_as_long_as_the_clip(backend):
  # On a GPU, scaled values are rounded to bfloat16.
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(8, 40, 32)), jnp.bfloat16)
  delta = jnp.asarray(rng.normal(size=(8, 40, 64)), jnp.bfloat16)
  weight, run = jnp.zeros((32, 64), jnp.bfloat16), _compiled(_linear, backend)
  for i in range(len(x)):
    batch = x, delta.astype(jnp.float32)
    found, _ = run(weight, *batch, mask=np.arange(len(x)) == i)
    whole = np.asarray(x[i], 'f8').T @ np.asarray(delta[i], 'f8')
    goal = _CLIP * whole / np.linalg.norm(whole)
    assert _CLIP * (1 - 2**-9) < nets.norm_of(found) <= _CLIP
    assert nets.norm_of(found - goal) < 4e-3


@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_roundings_to_one_side(backend):
  # Two inputs that hardly differ, and deltas that nearly cancel: all roundings
  # of 1,152 products go down, and a squared norm was found to be -160.
  largest, batches = 0.0, []
  for first in np.random.default_rng(0).uniform(1, 2, 8).astype(np.float32):
    for apart in (7, 15, 20, 25, 31):
      x = np.full((2, 1152), first)
      x[1] += apart * np.spacing(first)
      batches.append(x)
  for factor in (20, 2e3, 2e5):
    x = np.stack(batches)
    delta = np.zeros((len(x), 2, 64), np.float32)
    delta[:, 0], delta[:, 1] = factor, -factor * 0.998
    weight = np.zeros((1152, 64), np.float32)
    largest = max(largest, _largest(_linear, backend, weight, (x, delta)))
  assert 1e-2 < largest <= _CLIP


@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_huge_beside_tiny(backend):
  # Gradients of 1e-19 times 2e18: one Gram matrix is 0, or the other one.
  weight = np.zeros((64, 32), np.float32)
  x, delta = np.full((4, 1, 64), 2e18), np.full((4, 1, 32), 1e-20)
  delta[0, 0, 0] = 1e-19
  x[1], delta[1] = 1e-20, 1e19
  x[2], delta[2] = 1e-30, 3e38
  x[3], delta[3] = 3e38, 3e38
  batch = x.astype(np.float32), delta.astype(np.float32)
  assert 0 < _largest(_linear, backend, weight, batch) <= _CLIP


@pytest.mark.parametrize(('dtype', 'backend'), _HOW)
def test_repeated_tokens_and_tied_weights(dtype, backend):
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 4, (6, 40))
  tokens[0] = 3
  deltas = rng.normal(size=(6, 40, 8)) * np.logspace(-3, 3, 6)[:, None, None]
  # The table's other gradients cancel: tokens' rows are given back as logits.
  x = -deltas
  logits = np.eye(90)[tokens] * rng.choice([0.999, 0.97], (6, 1, 1))
  weight = jnp.zeros((90, 8), dtype)
  rows = tokens, jnp.asarray(deltas, jnp.float32)
  assert 0.5 < _largest(_table, backend, weight, rows) <= _CLIP
  batch = *rows, jnp.asarray(x, dtype), jnp.asarray(logits, jnp.float32)
  assert 1e-2 < _largest(_tied, backend, weight, batch) <= _CLIP


@pytest.mark.parametrize(
  ('name', 'backend'), [('mlp', 'gpu'), ('cnn', 'gpu'), ('cnn', 'cpu')]
)
def test_neighbouring_batches(name, backend):
  loss, params, (x, y) = nets.BY_NAME[name]()
  params, x = nets.cast((params, x), jnp.bfloat16)
  run = _compiled(loss, backend)
  rest = np.array([1, 0, 1, 1, 1])
  clean = run(params, x, y, mask=rest)[0]
  place = (1, *(1,) * (x.ndim - 1))
  for value in (np.nan, -np.inf, 3.4e38, 3.39e38, 1e30, 1e4, 5.0, 1e-30):
    spoiled = x.at[place].set(value)
    with_it, info = run(params, spoiled, y, mask=np.ones(5))
    without = run(params, spoiled, y, mask=rest)[0]
    moved = jax.tree.map(
      lambda a, b: np.asarray(a, 'f8') - np.asarray(b, 'f8'), with_it, without
    )
    # Sums of several examples are rounded, too.
    assert nets.norm_of(moved) <= _CLIP * (1 + 1e-6), value
    jax.tree.map(np.testing.assert_array_equal, without, clean)
    # Finite examples whose gradients overflow are dropped, too.
    assert int(info.non_finite) == 1 or abs(value) < 1e38
