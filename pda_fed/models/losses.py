"""Losses of one example, from what a network returns."""

from typing import Any

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the cross-entropy of each target, in float32.

  Args:
    logits: [..., classes].
    targets: Classes, [...].
  """
  logits, targets = logits.astype(jnp.float32), jnp.asarray(targets)
  classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  # Compare instead of gathering: the derivative of a gather is a scatter.
  is_target = classes == targets[..., None].astype(jnp.int32)
  chosen = jnp.where(is_target, logits, 0).sum(axis=-1)
  return jax.nn.logsumexp(logits, axis=-1) - chosen


def is_hit(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns whether each target is the most likely class, as float32."""
  best = jnp.argmax(logits, axis=-1)
  return (best == jnp.asarray(targets, best.dtype)).astype(jnp.float32)


def classification(logits: jax.Array, target: jax.Array) -> tuple[Any, Any]:
  """Returns the cross-entropy of one class, with `accuracy` as a metric.

  Args:
    logits: [classes].
    target: The class.
  """
  loss, one = cross_entropy(logits, target), jnp.ones(())
  return loss, {'loss': (loss, one), 'accuracy': (is_hit(logits, target), one)}


def tokens(logits: jax.Array, targets: jax.Array) -> tuple[Any, Any]:
  """Returns the sum of a sequence's losses; metrics are for each token.

  Args:
    logits: [time, tokens].
    targets: The next tokens, [time].
  """
  loss = cross_entropy(logits, targets).sum()
  count = jnp.full((), targets.size, jnp.float32)
  hits = is_hit(logits, targets).sum()
  return loss, {'loss': (loss, count), 'accuracy': (hits, count)}
