"""The optimizers of servers, steps and warm starts, in JAX."""

from typing import Any, NamedTuple, Union

import jax
import jax.numpy as jnp

_Scalar = Union[float, jax.Array]
# Of Adam, as `tff.learning.optimizers.build_adam` has them.
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
  """SGD with momentum, as TFF's `build_sgdm` takes it.

  Args:
    params: The weights.
    momentum: The accumulator; anything without momentum.
    update: What is descended.
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
  """One step of Adam; returns new weights and state."""
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
