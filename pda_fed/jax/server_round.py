"""The server's part of a round, the same over clients and over examples.

    clipped sum -> noise -> / qN -> [mean clip] -> [after_noise] -> optimizer

This is Algorithm 1 of "Public Data-Assisted Mirror Descent for Private Model
Training" (Amid et al., ICML 2022, arXiv:2112.00193), with the mirror step of
equation (3) in the method's `after_noise`. All that follows the noise is
post-processing, so it cannot change epsilon.
"""

import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import optax
from pda_fed import methods
from pda_fed import privacy
from pda_fed.jax import aggregation
from pda_fed.jax import canaries as canaries_lib
from pda_fed.jax import clipping
from pda_fed.methods import arrays


class ServerState(NamedTuple):
  """Server state that is passed from round to round.

  Example: see `Federated`.

  Attributes:
    params: The model's weights.
    optimizer: The state of the server's optimizer.
    clip_norm: S, the current clipping norm; adaptive clipping changes it.
    memory: The method's memory of public updates.
    average: Averaged weights; () without averaging.
  """

  params: Any
  optimizer: Any
  clip_norm: jax.Array
  memory: arrays.Update = ()
  average: Any = ()


class PublicUpdate(NamedTuple):
  """A round's public update, and what the method derived from it.

  The default is that of methods that use no public data.

  Attributes:
    update: The update.
    prepared: The method's `public` argument.
    memory: The method's next memory.
    loss: The loss over the public data.
  """

  update: arrays.Update = ()
  prepared: Any = ()
  memory: arrays.Update = ()
  loss: Optional[jax.Array] = None


def leaves_of(tree: Any) -> arrays.Update:
  """Returns weights or an update as methods see them: a tuple of arrays."""
  return tuple(jax.tree_util.tree_leaves(tree))


def initial_state(
  plan: privacy.PrivacyPlan,
  method: methods.Method,
  optimizer: optax.GradientTransformation,
  params: Any,
) -> ServerState:
  """Returns the state before the first round.

  Args:
    plan: The privacy plan.
    method: The public-data method.
    optimizer: The server's optimizer.
    params: The model's weights.
  """
  return ServerState(
    params,
    optimizer.init(params),
    jnp.asarray(plan.clip_norm, jnp.float32),
    method.initial_memory(leaves_of(params)),
  )


def public_update(
  method: methods.Method, state: ServerState, update: Any, loss: jax.Array
) -> PublicUpdate:
  """Returns a round's public update, as the method prepares it.

  Args:
    method: The public-data method.
    state: The state before the round.
    update: The mean update of public clients, or a public gradient.
    loss: The loss over the public data.
  """
  update = leaves_of(update)
  return PublicUpdate(
    update, *method.prepare_public(update, state.memory), loss
  )


def before_clip(method: methods.Method, public: PublicUpdate) -> Any:
  """Returns how the method changes an update before the clip, or None."""
  if not method.acts_before_clip:
    return None
  return functools.partial(method.before_clip, public=public.prepared)


def server_round(
  plan: privacy.PrivacyPlan,
  method: methods.Method,
  optimizer: optax.GradientTransformation,
  state: ServerState,
  sums: aggregation.ClippedSum,
  public: PublicUpdate,
  *,
  key: jax.Array,
  t: jax.Array,
  noise_multiplier: Optional[jax.Array] = None,
  mean_clip_norm: Optional[float] = None,
  canaries: Optional[canaries_lib.Canaries] = None,
) -> tuple[ServerState, dict[str, jax.Array]]:
  """Adds noise to a round's sum, applies the method and takes the step.

  Args:
    plan: The privacy plan: noise, expected cohort and adaptive clipping.
    method: The public-data method, with its schedules at this round.
    optimizer: The server's optimizer.
    state: The state before the round.
    sums: The sum of updates, each clipped to `state.clip_norm`.
    public: The public update.
    key: The round's noise key. Never use it for another round.
    t: The index of the round, or at sample level of the epoch.
    noise_multiplier: A traced noise multiplier, for programs that runs with
      different noise share; by default the plan's.
    mean_clip_norm: An optional bound on the noised mean's norm.
    canaries: The round's canaries, if the run is audited.

  Returns:
    The next state, and metrics.
  """
  everybody = sums
  if canaries is not None:
    everybody = canaries.add_to(
      sums, state.clip_norm, before_clip(method, public)
    )
  update_key, count_key = jax.random.split(key)
  mean = aggregation.noised_mean(
    plan, everybody.total, state.clip_norm, update_key, noise_multiplier
  )
  metrics = {
    'clients': sums.num_clients,
    'non_finite_clients': sums.num_non_finite,
    'clipped_fraction': sums.num_clipped / jnp.maximum(sums.num_clients, 1),
  }
  if canaries is not None:
    metrics[canaries_lib.SCORES] = canaries.scores(
      mean, sums, state.clip_norm, plan.expected_cohort
    )
  clip_norm = state.clip_norm
  if plan.adaptive_clipping is not None:
    clip_norm = aggregation.adapted_clip_norm(
      plan, clip_norm, everybody, count_key
    )
    metrics['clip_norm'] = clip_norm
  if mean_clip_norm is not None:
    mean = clipping.clip_one(mean, mean_clip_norm)
  update, measured = methods.server_step(
    method,
    leaves_of(mean),
    t.astype(jnp.float32),
    public.update,
    public.prepared,
  )
  metrics |= measured
  if public.loss is not None:
    metrics['public_loss'] = public.loss
  update = jax.tree_util.tree_structure(state.params).unflatten(update)
  changes, optimizer_state = optimizer.update(
    update, state.optimizer, state.params
  )
  params = optax.apply_updates(state.params, changes)
  metrics['weights_norm'] = arrays.norm(leaves_of(params))
  return state._replace(
    params=params,
    optimizer=optimizer_state,
    clip_norm=clip_norm,
    memory=public.memory if method.uses_public else state.memory,
  ), metrics
