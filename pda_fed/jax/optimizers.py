"""Optimizers for the server, for DP-SGD steps and for warm starts, in JAX."""

from typing import Any, NamedTuple, Union

import jax
import jax.numpy as jnp
from pda_fed.common import server_optimizers

_Scalar = Union[float, jax.Array]
# Adam's defaults in `tff.learning.optimizers.build_adam`.
_BETA_1 = 0.9
_BETA_2 = 0.999
_EPSILON = 1e-7


def sgd_step(
  params: Any,
  momentum: Any,
  update: Any,
  learning_rate: _Scalar,
  momentum_rate: float,
) -> tuple[Any, Any]:
  """Takes a step of SGD with momentum, as TFF's `build_sgdm` does.

  Args:
    params: The weights.
    momentum: The accumulator; ignored if there is no momentum.
    update: The gradient, or pseudo-gradient, to descend.
    learning_rate: The learning rate.
    momentum_rate: The decay of the accumulator; 0 for none.

  Returns:
    New weights and accumulator.
  """
  if momentum_rate:
    momentum = update = jax.tree_util.tree_map(
      lambda m, u: momentum_rate * m + u, momentum, update
    )
  params = jax.tree_util.tree_map(
    lambda w, u: w - learning_rate * u, params, update
  )
  return params, momentum


class Adam(NamedTuple):
  """Adam's state."""

  step: jax.Array
  mean: Any
  square: Any

  @classmethod
  def start(cls, params: Any) -> 'Adam':
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    return cls(jnp.zeros((), jnp.int32), zeros, zeros)


def adam_step(params: Any, state: Adam, gradients: Any, learning_rate):
  """Takes a step of Adam; returns new weights and state."""
  step = state.step + 1
  rate = learning_rate * jnp.sqrt(1 - _BETA_2**step) / (1 - _BETA_1**step)
  mean = jax.tree_util.tree_map(
    lambda m, g: m + (g - m) * (1 - _BETA_1), state.mean, gradients
  )
  square = jax.tree_util.tree_map(
    lambda s, g: s + (g * g - s) * (1 - _BETA_2), state.square, gradients
  )
  params = jax.tree_util.tree_map(
    lambda w, m, s: w - rate * m / (jnp.sqrt(s) + _EPSILON),
    params,
    mean,
    square,
  )
  return params, Adam(step, mean, square)


def server_start(
  name: str, params: Any, momentum_rate: float
) -> tuple[Any, Any]:
  """Returns the initial means of updates and of their squares.

  Args:
    name: 'sgd', 'adam' or 'yogi'.
    params: The weights.
    momentum_rate: The server's momentum.

  Returns:
    Both means. A mean that the optimizer does not use is ().
  """
  tree_map = jax.tree_util.tree_map
  if name == 'sgd':
    return tree_map(jnp.zeros_like, params) if momentum_rate else (), ()
  first = server_optimizers.FIRST_SQUARE[name]
  return (
    tree_map(jnp.zeros_like, params),
    tree_map(lambda w: jnp.full_like(w, first), params),
  )


def server_step(
  name: str,
  params: Any,
  momentum: Any,
  squares: Any,
  update: Any,
  *,
  step: _Scalar,
  learning_rate: float,
  momentum_rate: float,
) -> tuple[Any, Any, Any]:
  """Takes the server's step, as TFF's optimizer of the same name does.

  Args:
    name: 'sgd', 'adam' or 'yogi'.
    params: The weights.
    momentum: The mean of updates.
    squares: The mean of squared updates.
    update: The pseudo-gradient: the noised mean, as changed by the method.
    step: The index of the step, from 1.
    learning_rate: The learning rate.
    momentum_rate: The decay of `momentum`.

  Returns:
    New weights, mean and squares.
  """
  if name == 'sgd':
    params, momentum = sgd_step(
      params, momentum, update, learning_rate, momentum_rate
    )
    return params, momentum, squares
  beta_2, tree_map = server_optimizers.BETA_2, jax.tree_util.tree_map
  rate = learning_rate * jnp.sqrt(1 - beta_2**step) / (1 - momentum_rate**step)
  momentum = tree_map(
    lambda m, u: m + (u - m) * (1 - momentum_rate), momentum, update
  )

  def next_square(s, u):
    change = u * u - s
    # Yogi adds u^2 with the sign of the difference, Adam the difference.
    return s + (1 - beta_2) * (
      jnp.sign(change) * u * u if name == 'yogi' else change
    )

  squares = tree_map(next_square, squares, update)
  params = tree_map(
    lambda w, m, s: w - rate * m / (jnp.sqrt(s) + server_optimizers.EPSILON),
    params,
    momentum,
    squares,
  )
  return params, momentum, squares
