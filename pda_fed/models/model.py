"""What the JAX engines train: initial weights and the loss of one example."""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple, Optional, Union


class FastRule(NamedTuple):
  """Faster ways to train a model, with the results of its loss.

  Attributes:
    batch_loss: Returns the sum of losses and the number of targets of a batch,
      given weights, the tuple of its arrays, and 1 for each example or 0 for
      padding.
    sgd_step: Returns padded weights after a step of SGD and the batch's
      `BatchStats`, given padded weights, arrays, 1 or 0 for each example, the
      learning rate and the dtype of products.
    pad: Pads weights for `sgd_step`.
    unpad: Removes the padding; also from updates.
  """

  batch_loss: Callable[..., tuple[Any, Any]]
  sgd_step: Callable[..., tuple[Any, Any]]
  pad: Callable[[Any], Any]
  unpad: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Model:
  """A model of the JAX engines.

  Weights are any pytree of floating-point arrays. An example is a tuple of
  arrays, for example an input and its target, without an axis of the batch.

  Example:

    >>> import jax.numpy as jnp
    >>> def init(seed):
    ...   return {'slope': jnp.zeros(3)}
    >>> def loss(params, x, y):
    ...   return (x @ params['slope'] - y) ** 2
    >>> model = Model(init, loss)
    >>> float(model.loss(model.init(0), jnp.ones(3), 2.0))
    4.0

  Attributes:
    init: Returns the initial weights, given a seed of 63 bits. None if only the
      loss is known.
    loss: `loss(params, *example)` returns the loss of one example, a scalar, or
      a pair of it and sums of metrics: a dict from names to pairs of a value
      and a weight. A metric is the sum of values over the sum of weights. The
      metric `loss`, by default the scalar with weight 1, is what batches
      average. A loss may take the keywords `key` and `dropout`, for warm starts
      that drop activations.
    logits: `logits(params, inputs)` of one example, for predictions.
    has_perplexity: Whether the exponential of the loss is a metric.
    fast: Faster training with the same results.
  """

  init: Optional[Callable[[int], Any]]
  loss: Callable[..., Any]
  logits: Optional[Callable[..., Any]] = None
  has_perplexity: bool = False
  fast: Optional[FastRule] = None


def as_model(model: Union[Model, Callable[..., Any]]) -> Model:
  """Returns a model; a function is the loss of one.

  Args:
    model: A model, or the loss of one example.

  Raises:
    TypeError: If it is neither.
  """
  if isinstance(model, Model):
    return model
  if not callable(model):
    raise TypeError(
      'model must be a models.Model, or a function: the loss of one example.'
      f' Found {model!r:.80}.'
    )
  return Model(None, model)
