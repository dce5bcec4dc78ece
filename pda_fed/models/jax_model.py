"""The model interface of the JAX engines: weights, losses, metrics.

A model that provides initial weights and the losses of a batch can be trained.
Examples are the leading axis of its inputs. A model may override a step with a
faster one, as the next-word LSTM does.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

# Values and weights of examples. A metric is the sum of values divided by the
# sum of weights, however examples are split.
Sums = tuple[jax.Array, jax.Array]


class BatchStats(NamedTuple):
  """Sums of training metrics, each batch at the weights before its step.

  Example: see `Model.gradients`.

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


class Outputs(NamedTuple):
  """The result of `Model.run`, [batch] each."""

  losses: jax.Array
  hits: jax.Array
  token_losses: jax.Array


class Model(abc.ABC):
  """A model of the JAX engines; subclass it or use one from `pda_fed.models`.

  Parameters are a tuple of arrays, in the order of the Keras model if there is
  one. Examples are a tuple of arrays, for example inputs and targets.

  Example:

    >>> class Mean(Model):
    ...   shapes = [()]
    ...
    ...   def initial_params(self, seed):
    ...     return [np.zeros((), np.float32)]
    ...
    ...   def losses(self, params, inputs, targets):
    ...     losses = (inputs * params[0] - targets) ** 2
    ...     return losses, jnp.ones_like(losses)
    >>> params = Mean().check_params([2.0])
    >>> batch = (jnp.array([1.0, 1.0]), jnp.array([3.0, 5.0]))
    >>> stats, gradients = Mean().gradients(params, batch, jnp.ones(2))
    >>> float(stats.loss), float(gradients[0])
    (10.0, -4.0)

  Attributes:
    shapes: The shapes of the weights.
    has_perplexity: Whether the exponential of the loss is a metric.
    layers: Used only by `jax_layers.Model`.
  """

  shapes: Sequence[tuple[int, ...]]
  has_perplexity = False
  layers: tuple[Any, ...] = ()

  @abc.abstractmethod
  def initial_params(self, seed: int) -> Sequence[np.ndarray]:
    """Draws weights; the same seed gives the same weights everywhere."""

  @abc.abstractmethod
  def losses(self, params: Any, *examples: jax.Array) -> Sums:
    """Returns for each example the sum of losses and the number of targets.

    Args:
      params: The weights, in the dtype of the computation.
      *examples: A batch, [batch, ...] each.
    """

  def metric_sums(self, params: Any, *examples: jax.Array) -> dict[str, Sums]:
    """Returns sums of metrics for each example; `loss` must be one of them."""
    return {'loss': self.losses(params, *examples)}

  def run(
    self,
    params: Any,
    *examples: jax.Array,
    dropout: float = 0.0,
    key: Optional[jax.Array] = None,
  ) -> Any:
    """Returns the losses and hits of a batch, for sample-level training.

    Args:
      params: The weights.
      *examples: A batch.
      dropout: Fraction of activations that are dropped; must be 0 here.
      key: The random key of the dropout.

    Returns:
      `losses`, whose gradients are clipped, `token_losses`, the mean loss of
      each example's targets, and `hits`.

    Raises:
      ValueError: If `dropout` is not 0.
    """
    del key
    if dropout:
      raise ValueError(f'dropout must be 0 for {self}. Found {dropout}.')
    sums = self.metric_sums(params, *examples)
    losses, targets = sums['loss']
    hits = sums['accuracy'][0] if 'accuracy' in sums else 0 * losses
    return Outputs(losses, hits, losses / jnp.maximum(targets, 1))

  def check_params(self, weights: Sequence[Any]) -> Any:
    """Returns weights as parameters in float32.

    Args:
      weights: The arrays.

    Raises:
      ValueError: If the number of arrays or a shape does not fit the model.
    """
    found = [tuple(np.shape(w)) for w in weights]
    if found != [tuple(shape) for shape in self.shapes]:
      raise ValueError(
        f'weights must have the shapes {list(self.shapes)}. Found {found}: they'
        ' belong to another model.'
      )
    return self.as_params([jnp.asarray(w, jnp.float32) for w in weights])

  def as_params(self, leaves: Sequence[Any]) -> Any:
    """Returns arrays in the structure of the parameters."""
    return tuple(leaves)

  def pad_params(self, params: Any, multiple: int) -> Any:
    """Pads weights to multiples of a size, without affecting results."""
    del multiple
    return params

  def unpad_params(self, params: Any) -> Any:
    """Removes the padding of `pad_params`; also for updates."""
    return params

  def batch_stats(
    self, params: Any, examples: tuple, weights: jax.Array, dtype=jnp.float32
  ) -> tuple[jax.Array, BatchStats]:
    """Returns the mean loss of a batch's targets, and its metrics.

    Args:
      params: The weights, in float32.
      examples: A batch; padding comes last and may have any value.
      weights: [batch], 1 for an example and 0 for padding.
      dtype: The dtype of the computation.
    """
    cast = jax.tree_util.tree_map(lambda w: w.astype(dtype), params)
    present = weights > 0

    def filled(array):
      # Padding comes last. A model may divide by values that are 0 there.
      mask = present.reshape((-1,) + (1,) * (array.ndim - 1))
      return jnp.where(mask, array, array[:1])

    losses, targets = self.losses(cast, *map(filled, examples))
    loss = jnp.where(present, losses.astype(jnp.float32), 0).sum()
    targets = jnp.where(present, targets.astype(jnp.float32), 0).sum()
    stats = BatchStats.of_batch(loss, targets, weights)
    return loss / jnp.maximum(targets, 1.0), stats

  def gradients(
    self, params: Any, examples: tuple, weights: jax.Array, dtype=jnp.float32
  ) -> tuple[BatchStats, Any]:
    """Returns the metrics of a batch and the gradient of its mean loss.

    Args:
      params: See `batch_stats`.
      examples: See `batch_stats`.
      weights: See `batch_stats`.
      dtype: See `batch_stats`.
    """
    gradients, stats = jax.grad(self.batch_stats, has_aux=True)(
      params, examples, weights, dtype
    )
    # A batch of padding only has gradient 0, whatever the model returns.
    return stats, jax.tree_util.tree_map(
      lambda g: jnp.where(stats.examples > 0, g, 0), gradients
    )

  def sgd_step(
    self,
    params: Any,
    examples: tuple,
    weights: jax.Array,
    learning_rate: jax.Array,
    dtype=jnp.float32,
  ) -> tuple[Any, BatchStats]:
    """Takes a step of SGD on a batch; returns new weights and metrics.

    Args:
      params: See `batch_stats`.
      examples: See `batch_stats`.
      weights: See `batch_stats`.
      learning_rate: The learning rate.
      dtype: See `batch_stats`.
    """
    stats, gradients = self.gradients(params, examples, weights, dtype)
    stepped = jax.tree_util.tree_map(
      lambda w, g: w - learning_rate * g, params, gradients
    )
    return stepped, stats
