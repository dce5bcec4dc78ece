"""Optimizers of optax, from the settings that all engines share."""

from collections.abc import Callable
import functools
from typing import Any, Optional

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import optax
from pda_fed.common import optimizers


@functools.cache  # Equal settings give equal programs.
def build_optimizer(
  settings: optimizers.OptimizerSettings,
  gradient_clip: Optional[float] = None,
) -> optax.GradientTransformation:
  """Returns an optimizer that steps as `pda_tff.build_optimizer`'s.

  Example:

    >>> optimizer = build_optimizer(optimizers.OptimizerSettings(momentum=0.5))
    >>> optimizer.init(jnp.zeros(2))[0].trace.tolist()
    [0.0, 0.0]

  Args:
    settings: Its name, rate and other settings.
    gradient_clip: An optional bound on the norm of what it is given.
  """
  parts = [_DIRECTIONS[settings.optimizer](**settings.values)]
  if gradient_clip is not None:
    parts.insert(0, optax.clip_by_global_norm(gradient_clip))
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


def sgd_rate(
  optimizer: optax.GradientTransformation, params: Any
) -> Optional[float]:
  """Returns the learning rate of plain SGD, or None for other optimizers.

  A model may take a step of SGD faster than by way of its gradient.

  Example:

    >>> sgd_rate(optax.sgd(0.5), jnp.zeros(3))
    0.5

  Args:
    optimizer: The optimizer. Its program tells what it is.
    params: The weights.
  """

  def program(optimizer):
    def step(params):
      return optimizer.update(params, optimizer.init(params), params)[0]

    return jax.make_jaxpr(step)(params)

  found = program(optimizer)
  numbers = (n for eqn in found.eqns[:1] for n in eqn.invars)
  factors = [n.val for n in numbers if isinstance(n, jex_core.Literal)]
  if len(factors) != 1:
    return None
  rate = -float(factors[0])
  return rate if str(found) == str(program(optax.sgd(rate))) else None
