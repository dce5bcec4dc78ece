"""Optimizers of optax, from the settings that all engines share."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import optax
from pda_fed.common import optimizers
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
  """The state of `adam`.

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
  """
  _check(learning_rate, b1)
  tree_map = jax.tree_util.tree_map

  def init(params):
    return Moments(
      jnp.zeros((), jnp.int32),
      tree_map(jnp.zeros_like, params),
      tree_map(jnp.zeros_like, params),
    )

  def next_square(s, g):
    return s + (1 - b2) * (g * g - s)

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


@functools.cache  # Equal settings give equal programs.
def build_optimizer(
  settings: optimizers.OptimizerSettings,
) -> optax.GradientTransformation:
  """Returns an optimizer that steps as `pda_tff.build_optimizer`'s.

  Example:

    >>> optimizer = build_optimizer(optimizers.OptimizerSettings(momentum=0.5))
    >>> optimizer.init(jnp.zeros(2))[0].trace.tolist()
    [0.0, 0.0]

  Args:
    settings: Its name, rate and other settings.
  """
  parts = [_DIRECTIONS[settings.optimizer](**settings.values)]
  if settings.weight_decay:
    parts.append(optax.add_decayed_weights(settings.weight_decay))
  return optax.chain(
    *parts, optax.scale_by_learning_rate(settings.learning_rate)
  )


def _momentum(momentum: float) -> optax.GradientTransformation:
  return optax.trace(momentum) if momentum else optax.identity()


def _moments(
  scale_by: Callable[..., optax.GradientTransformation],
  beta1: float,
  beta2: float,
  epsilon: float,
  initial_accumulator: Optional[float] = None,
) -> optax.GradientTransformation:
  """Returns Adam or Yogi with TFF's epsilon and first mean."""
  make = functools.partial(scale_by, beta1, beta2)
  if initial_accumulator is not None:
    make = functools.partial(
      make, initial_accumulator_value=initial_accumulator
    )

  def init(params):
    state = make().init(params)
    # Optax starts also the mean of Yogi with the value for squares.
    return state._replace(mu=optax.tree.zeros_like(state.mu))

  def update(updates, state, params=None):
    # TFF adds epsilon before it corrects the bias of the mean of squares.
    correction = jnp.sqrt(1 - beta2 ** (state.count + 1))
    return make(eps=epsilon / correction).update(updates, state, params)

  return optax.GradientTransformation(init, update)


def _adagrad(epsilon, initial_accumulator):
  return optax.scale_by_rss(initial_accumulator, epsilon)


_DIRECTIONS: dict[str, Callable[..., optax.GradientTransformation]] = {
  'sgd': _momentum,
  'adam': functools.partial(_moments, optax.scale_by_adam),
  'yogi': functools.partial(_moments, optax.scale_by_yogi),
  'adagrad': _adagrad,
}


def _check(learning_rate: _Scalar, momentum: float) -> None:
  if not isinstance(learning_rate, jax.Array):  # It may be traced.
    validate.positive(learning_rate=learning_rate)
  validate.non_negative(momentum=momentum)
