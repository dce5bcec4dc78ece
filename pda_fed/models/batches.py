"""Batches of a model: its loss, mapped over examples, and weights by name."""

from collections.abc import Mapping
import functools
import inspect
import math
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import model as model_lib

# The value and the weight of a metric.
Sums = dict[str, tuple[jax.Array, jax.Array]]


class BatchStats(NamedTuple):
  """Sums of training metrics, each batch at the weights before its step.

  Attributes:
    loss: The sum of all targets' losses.
    targets: The number of targets.
    batch_loss: The mean loss of each batch times its number of examples.
    examples: The number of examples.
  """

  loss: jax.Array
  targets: jax.Array
  batch_loss: jax.Array
  examples: jax.Array

  @classmethod
  def of_batch(cls, loss, targets, weights: jax.Array) -> 'BatchStats':
    """Returns the metrics of one batch.

    Args:
      loss: The sum of losses.
      targets: The number of targets.
      weights: 1 for an example and 0 for padding.
    """
    count = weights.sum()
    mean = loss / jnp.maximum(targets, 1.0)
    return cls(loss, targets, mean * count, count)


def loss_of_one(
  model: model_lib.Model, params: Any, *example: Any, **options: Any
) -> tuple[jax.Array, Sums]:
  """Returns the loss of one example and its metrics, of which one is `loss`.

  Args:
    model: The model.
    params: The weights.
    *example: The example.
    **options: Keywords of the loss.

  Raises:
    TypeError: If the loss does not return floating-point numbers.
    ValueError: If it returns no scalar.
  """
  found = model.loss(params, *example, **options)
  value, sums = found if isinstance(found, tuple) else (found, {})
  if jnp.shape(value):
    raise ValueError(
      'loss must return a scalar for one example, or a pair of it and sums.'
      f' Found shape {jnp.shape(value)}: examples have no axis of the batch.'
    )
  if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
    raise TypeError(
      'loss must return a floating-point number. Found dtype'
      f' {jnp.result_type(value)}.'
    )
  return value, {'loss': (value, jnp.ones(())), **sums}


def cast(params: Any, dtype: Any) -> Any:
  """Returns weights in the dtype of the computation."""
  return jax.tree.map(lambda w: jnp.asarray(w, dtype), params)


def metric_sums(
  model: model_lib.Model, params: Any, examples: tuple, **options: Any
) -> Sums:
  """Returns the metrics of each example of a batch.

  Args:
    model: The model.
    params: The weights.
    examples: A batch.
    **options: Keywords of the loss; `key` is split.
  """
  if not options:
    one = functools.partial(loss_of_one, model, params)
    return jax.vmap(lambda *e: one(*e)[1])(*examples)
  _check_dropout(model)
  keys = jax.random.split(options.pop('key'), len(examples[0]))

  def one_of(key, *example):
    return loss_of_one(model, params, *example, key=key, **options)[1]

  return jax.vmap(one_of)(keys, *examples)


def _check_dropout(model: model_lib.Model) -> None:
  names = inspect.signature(model.loss).parameters
  if not {'key', 'dropout'} <= set(names):
    raise ValueError(
      'dropout must be 0 for this model: its loss takes no `key` and no'
      f' `dropout`. Found {model.loss}.'
    )


def batch_stats(
  model: model_lib.Model,
  params: Any,
  examples: tuple,
  weights: jax.Array,
  dtype=jnp.float32,
) -> tuple[jax.Array, BatchStats]:
  """Returns the mean loss of a batch's targets, and its metrics.

  Args:
    model: The model.
    params: The weights, in float32.
    examples: A batch; padding comes last and may have any value.
    weights: [batch], 1 for an example and 0 for padding.
    dtype: The dtype of the computation.
  """
  computed = cast(params, dtype)
  if model.fast is not None:
    loss, targets = model.fast.batch_loss(computed, examples, weights)
  else:
    present = weights > 0

    def filled(array):
      # Padding comes last. A model may divide by values that are 0 there.
      mask = present.reshape((-1,) + (1,) * (array.ndim - 1))
      return jnp.where(mask, array, array[:1])

    pair = metric_sums(model, computed, tuple(map(filled, examples)))['loss']
    loss, targets = (
      jnp.where(present, sums.astype(jnp.float32), 0).sum() for sums in pair
    )
  stats = BatchStats.of_batch(loss, targets, weights)
  return loss / jnp.maximum(targets, 1.0), stats


def gradients(
  model: model_lib.Model,
  params: Any,
  examples: tuple,
  weights: jax.Array,
  dtype=jnp.float32,
) -> tuple[BatchStats, Any]:
  """Returns the metrics of a batch and the gradient of its mean loss.

  Args:
    model: See `batch_stats`.
    params: See `batch_stats`.
    examples: See `batch_stats`.
    weights: See `batch_stats`.
    dtype: See `batch_stats`.
  """
  found, stats = jax.grad(batch_stats, argnums=1, has_aux=True)(
    model, params, examples, weights, dtype
  )
  # A batch of padding only has gradient 0, whatever the model returns.
  return stats, jax.tree.map(
    lambda g: jnp.where(stats.examples > 0, g, 0), found
  )


def named(params: Any) -> dict[str, Any]:
  """Returns weights by their names, such as 'dense_1/kernel'.

  They have the order of `jax.tree.leaves`.

  Example:

    >>> list(named({'logits': {'kernel': 0.0, 'bias': 1.0}}))
    ['logits/bias', 'logits/kernel']

  Args:
    params: A pytree.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  return {
    jax.tree_util.keystr(path, simple=True, separator='/') or 'weights': leaf
    for path, leaf in leaves
  }


@functools.lru_cache(maxsize=64)
def shapes(model: model_lib.Model) -> Any:
  """Returns the weights' shapes and dtypes, a pytree like the weights."""
  return jax.eval_shape(lambda: model.init(0))


def named_shapes(model: model_lib.Model) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the weights, by name."""
  return {name: leaf.shape for name, leaf in named(shapes(model)).items()}


def num_weights(model: model_lib.Model) -> int:
  """Returns the number of weights."""
  return sum(math.prod(shape) for shape in named_shapes(model).values())


def from_named(
  model: model_lib.Model, weights: Mapping[str, np.ndarray]
) -> Any:
  """Returns weights by name as the model's pytree; see `named`.

  Args:
    model: The model.
    weights: The arrays, in any order.

  Raises:
    ValueError: If they belong to another model.
  """
  expected = named_shapes(model)
  found = {name: np.shape(weights[name]) for name in sorted(weights)}
  if found != expected:
    raise ValueError(
      f'weights must have the names and shapes {expected}. Found {found}: they'
      ' belong to another model.'
    )
  leaves = [weights[name] for name in expected]
  return jax.tree.unflatten(jax.tree.structure(shapes(model)), leaves)


def check_params(params: Any, model: Optional[model_lib.Model] = None) -> Any:
  """Returns weights in float32.

  Args:
    params: The weights.
    model: The model that they must fit, if known.

  Raises:
    TypeError: If a weight is not a floating-point array.
    ValueError: If there are none, or they belong to another model.
  """
  of_names = named(params)
  if not of_names:
    raise ValueError('params must have at least one weight. Found none.')
  for name, leaf in of_names.items():
    dtype = jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jnp.floating):
      raise TypeError(
        f'params must hold floating-point weights. Found dtype {dtype} in'
        f' {name!r}: close over what is not trained.'
      )
  if model is not None and model.init is not None:
    expected = named_shapes(model)
    found = {name: np.shape(leaf) for name, leaf in of_names.items()}
    if found != expected:
      raise ValueError(
        f'params must have the names and shapes {expected}. Found {found}: they'
        ' belong to another model.'
      )
  return cast(params, jnp.float32)
