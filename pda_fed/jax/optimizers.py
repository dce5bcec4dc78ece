"""Optimizers of the server, of DP-SGD steps and of warm starts, in JAX.

As in optax, an optimizer is a pair of pure functions, and a step is

    changes, state = optimizer.update(gradients, state, params)
    params = apply_updates(params, changes)
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
from pda_fed.common import server_optimizers
from pda_fed.common import validate

_Scalar = Union[float, jax.Array]


class Optimizer(NamedTuple):
  """An optimizer, with the two functions of `optax.GradientTransformation`.

  Example: see `sgd`.

  Attributes:
    init: Returns the optimizer's first state, given the weights.
    update: Returns what to add to the weights and the next state, given the
      gradient (or another update to descend), the state and the weights.
    learning_rate: If a step only subtracts this times the gradient. A model may
      then compute gradient and step together, which is faster.
  """

  init: Callable[[Any], Any]
  update: Callable[..., tuple[Any, Any]]
  learning_rate: Optional[_Scalar] = None


class Moments(NamedTuple):
  """The state of `adam` and `yogi`.

  Attributes:
    count: Number of steps.
    mean: The mean of gradients.
    square: The mean of squared gradients.
  """

  count: jax.Array
  mean: Any
  square: Any


def apply_updates(params: Any, changes: Any) -> Any:
  """Adds an optimizer's changes to the weights."""
  return jax.tree_util.tree_map(jnp.add, params, changes)


def sgd(learning_rate: _Scalar, momentum: float = 0.0) -> Optimizer:
  """Returns SGD, with TFF's momentum.

  Example:

    >>> optimizer = sgd(0.5)
    >>> changes, _ = optimizer.update(jnp.array([2.0]), optimizer.init(0.0))
    >>> changes.tolist()
    [-1.0]

  Args:
    learning_rate: The learning rate; it may be traced.
    momentum: The decay of the accumulator, at least 0; 0 for none.
  """
  _check(learning_rate, momentum)

  def init(params):
    return jax.tree_util.tree_map(jnp.zeros_like, params) if momentum else ()

  def update(gradients, state, params=None):
    del params
    if momentum:
      state = gradients = jax.tree_util.tree_map(
        lambda m, g: momentum * m + g, state, gradients
      )
    changes = jax.tree_util.tree_map(lambda g: -learning_rate * g, gradients)
    return changes, state

  return Optimizer(init, update, None if momentum else learning_rate)


def adam(
  learning_rate: _Scalar,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-7,
  *,
  first_square: float = 0.0,
  is_yogi: bool = False,
) -> Optimizer:
  """Returns Adam, with the defaults of TFF's `build_adam`.

  Example:

    >>> optimizer = adam(0.5)
    >>> state = optimizer.init(jnp.array([0.0]))
    >>> changes, _ = optimizer.update(jnp.array([2.0]), state)
    >>> changes.round(3).tolist()
    [-0.5]

  Args:
    learning_rate: The learning rate; it may be traced.
    b1: The decay of the mean of gradients.
    b2: The decay of the mean of squared gradients.
    eps: Added to the root of the mean of squares.
    first_square: The initial mean of squares.
    is_yogi: Whether to change the mean of squares as Yogi does: by the new
      square with the sign of the difference, not by the difference.
  """
  _check(learning_rate, b1)
  tree_map = jax.tree_util.tree_map

  def init(params):
    return Moments(
      jnp.zeros((), jnp.int32),
      tree_map(jnp.zeros_like, params),
      tree_map(lambda w: jnp.full_like(w, first_square), params),
    )

  def next_square(s, g):
    change = g * g - s
    return s + (1 - b2) * (jnp.sign(change) * g * g if is_yogi else change)

  def update(gradients, state, params=None):
    del params
    count = state.count + 1
    rate = learning_rate * jnp.sqrt(1 - b2**count) / (1 - b1**count)
    mean = tree_map(lambda m, g: m + (g - m) * (1 - b1), state.mean, gradients)
    square = tree_map(next_square, state.square, gradients)
    changes = tree_map(
      lambda m, s: -rate * m / (jnp.sqrt(s) + eps), mean, square
    )
    return changes, Moments(count, mean, square)

  return Optimizer(init, update)


def of_server(
  name: str, learning_rate: float, momentum: float = 0.0
) -> Optimizer:
  """Returns the server's optimizer, which steps as TFF's of the same name.

  Example:

    >>> state = of_server('yogi', 0.1, 0.9).init(jnp.zeros(2))
    >>> int(state.count), state.mean.tolist()
    (0, [0.0, 0.0])

  Args:
    name: 'sgd', 'adam' or 'yogi'.
    learning_rate: The learning rate.
    momentum: Momentum of SGD; b1 of Adam and Yogi.

  Raises:
    ValueError: If a number is out of range, or there is no such optimizer.
  """
  validate.one_of(server_optimizers.NAMES, server_optimizer=name)
  if name == 'sgd':
    return sgd(learning_rate, momentum)
  return adam(
    learning_rate,
    momentum,
    server_optimizers.BETA_2,
    server_optimizers.EPSILON,
    first_square=server_optimizers.FIRST_SQUARE[name],
    is_yogi=name == 'yogi',
  )


def _check(learning_rate: _Scalar, momentum: float) -> None:
  if not isinstance(learning_rate, jax.Array):  # It may be traced.
    validate.positive(learning_rate=learning_rate)
  validate.non_negative(momentum=momentum)
