"""Sums and norms against vmap(grad), and the options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping
from pda_fed.clipping import gradients
from pda_fed.clipping import norms
import pytest

from tests.clipping import nets

# The cells of Flax name float64 also where it is switched off.
pytestmark = pytest.mark.filterwarnings('ignore:Explicitly requested dtype')


@pytest.fixture(name='float64')
def fixture_float64():
  with jax.enable_x64(True):
    yield


@functools.cache
def _exact(name):
  """The net, and the reference, in float64; two of five are clipped."""
  with jax.enable_x64(True):
    loss, params, batch = nets.BY_NAME[name]()
    params, batch = nets.cast((params, batch), 'f8')
    run = jax.jit(functools.partial(nets.reference, loss))
    return loss, params, batch, jax.tree.map(np.asarray, run(params, batch))


def _assert_close(found, expected, tolerance):
  largest = max(np.abs(a).max() for a in jax.tree.leaves(expected))
  for a, b in zip(
    jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


_CASES = [
  *((name, 'cpu') for name in nets.PLAIN),
  ('cnn', 'gpu'),
  *(
    pytest.param(name, 'cpu', marks=pytest.mark.slow)
    for name in nets.BY_NAME
    if name not in nets.PLAIN
  ),
]


@pytest.mark.parametrize(('name', 'backend'), _CASES)
def test_sums_and_norms_are_those_of_vmap_grad(
  name, backend, float64, monkeypatch
):
  loss, params, batch, (expected, norms, clip_norm) = _exact(name)
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  sums, info = jax.jit(clipping.clipped_grad(loss, clip_norm))(params, *batch)
  np.testing.assert_allclose(info.norms, norms, rtol=1e-6)
  _assert_close(sums, expected, 1e-6)
  assert jax.tree.structure(sums) == jax.tree.structure(params)
  assert int(info.clipped) == 2
  assert (int(info.count), int(info.non_finite)) == (nets.EXAMPLES, 0)


@pytest.mark.parametrize(
  ('name', 'dtype', 'tolerance'),
  [
    ('mlp', 'float32', 2e-5),
    ('mlp', 'bfloat16', 0.05),
    ('recurrent', 'float32', 1e-4),
    ('recurrent', 'bfloat16', 0.05),
  ],
)
def test_sums_in_a_narrower_dtype(name, dtype, tolerance):
  loss, params, batch, (expected, norms, clip_norm) = _exact(name)
  params, batch = nets.cast((params, batch), dtype)
  sums, info = jax.jit(clipping.clipped_grad(loss, clip_norm))(params, *batch)
  np.testing.assert_allclose(info.norms, norms, rtol=tolerance)
  _assert_close(sums, expected, tolerance)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(sums))


def _loss(params, x, y):
  """A loss whose gradients are easy to write down; weight is 2 x 3."""
  return (jnp.tanh(x @ params['w'] + params['b']) * y).sum()


_PARAMS = {'w': np.ones((2, 3), 'f4') / 4, 'b': np.zeros(3, 'f4')}
_X = np.random.default_rng(0).normal(size=(6, 2)).astype('f4')
_Y = np.random.default_rng(1).normal(size=(6, 3)).astype('f4')


def _gradients(loss=_loss, batch=(_X, _Y)):
  axes = (None, *[0] * len(batch))
  return jax.vmap(jax.grad(loss), in_axes=axes)(_PARAMS, *batch)


def _clip(gradients, clip_norm, counts=None):
  """Clips in numpy; gradients have a leading axis of units."""
  total = jax.tree.map(lambda g: np.zeros(g.shape[1:]), gradients)
  for i in range(len(gradients['b'])):
    one = jax.tree.map(lambda g, i=i: np.asarray(g[i], 'f8'), gradients)
    scale = min(1, clip_norm / nets.norm_of(one))
    scale *= counts is None or counts[i]
    total = jax.tree.map(lambda t, g, s=scale: t + s * g, total, one)
  return total


def test_padding_contributes_nothing_whatever_it_holds():
  mask = np.array([1, 2, 0, 1, 0, 1])
  spoiled = _X.copy()
  spoiled[2], spoiled[4] = np.nan, np.inf
  clip = clipping.clipped_grad(_loss, 0.3)
  sums, info = clip(_PARAMS, spoiled, _Y, mask=mask)
  _assert_close(sums, _clip(_gradients(), 0.3, mask != 0), 1e-5)
  assert (int(info.count), int(info.non_finite)) == (4, 0)
  assert np.asarray(info.norms)[[2, 4]].tolist() == [0, 0]


def test_an_empty_batch_has_a_sum_of_zeros():
  sums, info = clipping.clipped_grad(_loss, 0.3)(_PARAMS, _X[:0], _Y[:0])
  assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(sums))
  assert int(info.count) == 0


def test_what_is_not_finite_becomes_zeros_and_is_counted():
  spoiled = _X.copy()
  spoiled[1, 0], spoiled[2] = np.nan, np.inf
  sums, info = clipping.clipped_grad(_loss, 0.3)(_PARAMS, spoiled, _Y)
  counts = np.array([1, 0, 0, 1, 1, 1])
  _assert_close(sums, _clip(_gradients(), 0.3, counts), 1e-5)
  assert (int(info.count), int(info.non_finite)) == (6, 2)
  assert np.isnan(info.norms).tolist() == [False, True, True] + [False] * 3


def test_an_infinite_clip_changes_nothing():
  sums, info = clipping.clipped_grad(_loss, np.inf)(_PARAMS, _X, _Y)
  expected = jax.tree.map(lambda g: np.asarray(g).sum(axis=0), _gradients())
  _assert_close(sums, expected, 1e-6)
  assert int(info.clipped) == 0


def test_tokens_out_of_bounds_are_treated_as_jax_does(float64):
  def loss(params, t):
    table = params['b']
    clipped = jnp.take(table, t, axis=0, mode='clip')
    filled = table.at[t].get(mode='fill', fill_value=0)
    return sum(jnp.square(x).sum() for x in (table[t], clipped, filled))

  params = {'b': np.random.default_rng(0).normal(size=(30, 3))}
  tokens = np.array([[1, 2, 255], [3, 3, 3], [0, 7, 9], [-5, 6, -40]], 'i2')
  gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, tokens)
  sums, _ = clipping.clipped_grad(loss, 4.0)(params, tokens)
  _assert_close(sums, _clip(gradients, 4.0), 1e-12)


def test_copies_are_averaged_before_the_clip():
  clip = clipping.clipped_grad(_loss, 0.2, copies=3)
  sums, info = clip(_PARAMS, _X, _Y, mask=np.array([1, 1]))
  means = jax.tree.map(
    lambda g: np.asarray(g).reshape(2, 3, *g.shape[1:]).mean(axis=1),
    _gradients(),
  )
  _assert_close(sums, _clip(means, 0.2), 1e-5)
  assert info.norms.shape == (2,)


@pytest.mark.parametrize('how', ['mean', 'sum'])
def test_groups_are_units(how):
  x, y = _X.reshape(3, 2, 2).copy(), _Y.reshape(3, 2, 3)
  x[1, 1] = np.nan
  mask = np.array([[1, 1], [1, 0], [0, 0]])
  clip = clipping.clipped_grad(_loss, 0.3, group=how, has_aux=False)
  sums, info = clip(_PARAMS, x, y, mask=mask)
  own = jax.tree.map(
    lambda g: np.asarray(g).reshape(3, 2, *g.shape[1:]), _gradients()
  )
  divisor = 2 if how == 'mean' else 1
  units = jax.tree.map(
    lambda g: np.stack([g[0].sum(axis=0) / divisor, g[1, 0]]), own
  )
  _assert_close(sums, _clip(units, 0.3), 1e-5)
  assert (int(info.count), int(info.non_finite)) == (2, 0)


def test_a_group_with_a_member_that_is_not_finite_is_dropped():
  x, y = _X.reshape(3, 2, 2).copy(), _Y.reshape(3, 2, 3)
  x[1, 1] = np.nan
  sums, info = clipping.clipped_grad(_loss, 0.3, group='mean')(_PARAMS, x, y)
  assert int(info.non_finite) == 1
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sums))


@pytest.mark.parametrize('size', [2, 4, 10])
def test_microbatches_give_the_same(size):
  def loss(params, x, y):
    return _loss(params, x, y), {'x': x}

  mask = np.array([1, 1, 0, 1, 1, 1])
  whole = clipping.clipped_grad(loss, 0.3, has_aux=True)
  parts = clipping.clipped_grad(loss, 0.3, has_aux=True, microbatch_size=size)
  expected = whole(_PARAMS, _X, _Y, mask=mask)
  found = parts(_PARAMS, _X, _Y, mask=mask)
  _assert_close(found[0], expected[0], 1e-6)
  for a, b in zip(found[1], expected[1], strict=True):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), a, b)
  np.testing.assert_array_equal(found[1].aux['x'], _X)


def test_several_arguments_hold_weights():
  def loss(x, w, y, b):
    return _loss({'w': w, 'b': b}, x, y)

  w, b = _PARAMS['w'], _PARAMS['b']
  clip = clipping.clipped_grad(loss, 0.3, argnums=(1, -1))
  sums, _ = clip(_X, w, _Y, b)
  expected = _clip(_gradients(), 0.3)
  _assert_close(sums, (expected['w'], expected['b']), 1e-5)


def test_each_example_and_copy_has_its_own_key():
  def loss(params, x, y, key):
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    return _loss(params, jnp.where(kept, x, 0), y)

  key = jax.random.key(3)
  clip = clipping.clipped_grad(loss, 0.3, key_argnum=3)
  sums, _ = clip(_PARAMS, _X, _Y, key)
  batch = _X, _Y, jax.random.split(key, 6)
  _assert_close(sums, _clip(_gradients(loss, batch), 0.3), 1e-5)
  values = clipping.clipped_grad(loss, 0.3, key_argnum=3, copies=2)(
    _PARAMS, np.ones((6, 2), 'f4'), np.ones((6, 3), 'f4'), key
  )[1].values
  assert len(set(np.asarray(values).tolist())) > 1


def test_before_clip_changes_whole_gradients():
  def halve(gradient):
    return {'w': gradient['w'] / 2, 'b': gradient['b'].at[0].set(0)}

  clip = clipping.clipped_grad(_loss, 0.1, before_clip=halve)
  sums, info = clip(_PARAMS, _X, _Y)
  expected = _clip(jax.vmap(halve)(_gradients()), 0.1)
  _assert_close(sums, expected, 1e-5)
  assert info.norms.shape == (6,)


@pytest.mark.parametrize(
  'name', ['odds_and_ends', pytest.param('deep', marks=pytest.mark.slow)]
)
def test_formed_gradients_are_those_of_vmap_grad(name, float64):
  loss, params, batch, (expected, _, clip_norm) = _exact(name)
  clip = clipping.clipped_grad(loss, clip_norm, before_clip=lambda g: g)
  sums, _ = jax.jit(clip)(params, *batch)
  _assert_close(sums, expected, 1e-6)


def test_runs_side_by_side_and_steps_in_a_loop():
  clip = clipping.clipped_grad(_loss, 0.3)
  runs = jax.tree.map(lambda w: jnp.stack([w, w + 1]), _PARAMS)
  side_by_side = jax.vmap(
    lambda p, n: clipping.clipped_grad(_loss, n)(p, _X, _Y)[0], in_axes=(0, 0)
  )(runs, jnp.array([0.3, 0.2]))
  own = jax.tree.map(lambda w: w[0], side_by_side)
  _assert_close(own, clip(_PARAMS, _X, _Y)[0], 1e-6)

  def step(params, batch):
    sums, info = clip(params, *batch)
    return jax.tree.map(lambda w, g: w - g, params, sums), info.clipped

  batches = np.stack([_X, _X]), np.stack([_Y, _Y])
  last, _ = jax.jit(lambda p: jax.lax.scan(step, p, batches))(_PARAMS)
  expected = _PARAMS
  for _ in range(2):
    expected, _ = step(expected, (_X, _Y))
  _assert_close(last, expected, 1e-6)


def test_small_scales_do_not_hide_norms_beside_rounded_values():
  # The square of the scale, 1e-42, is 0 in float32.
  def part(squared, rounded=None):
    return norms.Part([], '', [], jnp.float32([squared]), None, rounded)

  parts = [
    part(2e38),
    part(1e38, lambda counts, scales: jnp.float32([9e-5**2])),
  ]
  norm, clip = jnp.sqrt(jnp.float32([3e38])), 1e-4
  yes = jnp.ones(1, bool)
  scales = gradients._scales(parts, yes, yes, norm, clip)
  total = (np.float64(scales[0]) ** 2) * 2e38
  assert scales[0] <= 0.51 * clip / norm[0] and total < clip**2
