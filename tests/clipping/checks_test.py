"""Bad input: messages with names and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping
import pytest

_W = {'w': np.ones((2, 3), 'f4')}
_X = np.ones((4, 2), 'f4')


def _loss(params, x):
  return jnp.tanh(x @ params['w']).sum()


@pytest.mark.parametrize(
  ('options', 'error', 'message'),
  [
    ({'clip_norm': -1.0}, ValueError, r'clip_norm must be positive'),
    ({'clip_norm': np.array(0.0)}, ValueError, r'clip_norm must be positive'),
    ({'copies': 0}, ValueError, r'copies must be at least 1'),
    ({'microbatch_size': 1.5}, TypeError, r'microbatch_size must be an int'),
    ({'group': 'max'}, ValueError, r"group must be one of None, 'mean', 'sum'"),
    ({'group': 'sum', 'copies': 2}, ValueError, r'copies must be 1 if'),
  ],
)
def test_options(options, error, message):
  with pytest.raises(error, match=message):
    clipping.clipped_grad(_loss, **{'clip_norm': 1.0, **options})


@pytest.mark.parametrize(
  ('loss', 'args', 'options', 'message'),
  [
    (lambda p, x: x @ p['w'], (_W, _X), {}, r'one scalar .* Found \(3,\)'),
    (lambda p, x: {'a': 1.0}, (_W, _X), {}, r'one scalar .* Found PyTree'),
    (_loss, (_W, _X), {'has_aux': True}, r'a pair of a scalar and other'),
    (_loss, (_W, _X), {'argnums': 2}, r'argnums must be less than .*, 2\.'),
    (_loss, ({}, _X), {}, r'argument 0 must have at least one weight'),
    (_loss, (_W,), {}, r'must hold examples besides the weights'),
    (_loss, (_W, 1.0), {}, r'argument 1 must have an axis of examples'),
    (_loss, (_W, _X), {'copies': 3}, r'copies must divide .*, 4\. Found 3'),
    (
      lambda p, b: _loss(p, b['x']) + b['y'],
      (_W, {'x': _X, 'y': np.ones(5)}),
      {},
      r"argument 1\['y'\] must have as many examples as argument 1\['x'\]",
    ),
    (
      _loss,
      ({**_W, 'batch_stats': {'mean': np.ones(3)}}, _X),
      {},
      r"argument 0\['batch_stats'\]\['mean'\] is the state of a batch norm",
    ),
    (_loss, (_W, _X), {'before_clip': lambda g: g['w']}, r'before_clip must'),
  ],
)
def test_arguments(loss, args, options, message):
  with pytest.raises(ValueError, match=message):
    clipping.clipped_grad(loss, 1.0, **options)(*args)


def test_masks():
  with pytest.raises(ValueError, match=r'mask must have shape \(4,\). Found'):
    clipping.clipped_grad(_loss, 1.0)(_W, _X, mask=np.ones((4, 1)))


def test_integer_weights_and_losses():
  clip = clipping.clipped_grad(_loss, 1.0)
  with pytest.raises(TypeError, match=r"argument 0\['w'\] must hold floating"):
    clip({'w': np.ones((2, 3), 'i4')}, _X)
  with pytest.raises(TypeError, match=r'loss must return a floating-point'):
    clipping.clipped_grad(lambda p, x: 1, 1.0)(_W, _X)


def test_weights_in_a_while_loop_are_refused():
  def loss(params, x):
    def step(carry):
      return carry[0] + 1, carry[1] * params['w'].sum()

    return jax.lax.while_loop(lambda c: c[0] < 3, step, (0, x.sum()))[1]

  with pytest.raises(ValueError, match=r'while_loop.*checks_test.py:\d+'):
    clipping.clipped_grad(loss, 1.0)(_W, _X)


def test_weights_in_a_cond_are_formed_and_named_once():
  def loss(params, x):
    y = jax.lax.cond(
      x[0] > 0, lambda w: x @ w, lambda w: 2 * x @ w, params['w']
    )
    return jnp.tanh(y).sum()

  signs = np.array([[1, 1], [-1, 1], [1, -2], [0.1, 0.2]], 'f4')
  clip = clipping.clipped_grad(loss, 0.1)
  with pytest.warns(UserWarning, match=r"\['w'\] \(cond\)") as warned:
    sums, _ = clip(_W, signs)
  assert len(warned) == 1
  total = np.zeros((2, 3))
  for x in signs:
    gradient = np.asarray(jax.grad(loss)(_W, x)['w'], 'f8')
    total += gradient * min(1, 0.1 / np.linalg.norm(gradient))
  np.testing.assert_allclose(sums['w'], total, rtol=1e-5)


def test_a_custom_rule_with_weights_keeps_its_derivative():
  @jax.custom_vjp
  def product(x, w):
    return x @ w

  product.defvjp(
    lambda x, w: (x @ w, (x, w)),
    lambda kept, g: (g @ kept[1].T, 3 * jnp.outer(kept[0], g)),
  )
  with pytest.warns(UserWarning, match=r"\['w'\] \(custom_vjp_call\)"):
    sums, _ = clipping.clipped_grad(
      lambda p, x: product(x, p['w']).sum(), np.inf
    )(_W, _X)
  np.testing.assert_allclose(sums['w'], np.full((2, 3), 12), rtol=1e-6)


def test_a_model_that_returns_nan_for_every_example():
  with pytest.warns(UserWarning, match='gradients of all 4 examples are NaN'):
    sums, info = clipping.clipped_grad(_loss, 1.0)(_W, _X * np.nan)
  assert int(info.non_finite) == 4
  assert not np.asarray(sums['w']).any()
