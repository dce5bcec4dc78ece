"""Evaluates a model on the examples of many users, in JAX."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import batches
from pda_fed.models import metrics
from pda_fed.models import model as model_lib

_CPU_BATCH = 128
_BATCH = 1024


@functools.partial(jax.jit, static_argnames='model')
def _batch_sums(params, examples, present, *, model):
  sums = batches.metric_sums(model, params, examples)
  return jax.tree_util.tree_map(
    lambda values: jnp.where(present, values, 0).sum(), sums
  )


def evaluate(
  model: model_lib.Model, params: Any, examples: tuple[np.ndarray, ...]
) -> dict[str, float]:
  """Returns the metrics of a model on all examples together.

  Example:

    >>> from pda_fed import models
    >>> spec = models.RecurrentSpec(num_words=5, embedding_size=2, lstm_size=2)
    >>> model = spec.jax_model()
    >>> params = jax.tree.map(jnp.zeros_like, model.init(0))
    >>> sentence = np.array([[spec.bos, 1, 2, spec.eos]], np.uint16)
    >>> found = evaluate(model, params, (sentence,))
    >>> round(found['perplexity'], 3)  # Of 9 tokens.
    9.0

  Args:
    model: The model.
    params: Its weights.
    examples: Arrays with one row per example; memory-mapped arrays are read
      batch by batch.

  Returns:
    `loss` per target, the model's other metrics (such as `accuracy`), and
    `perplexity` for text.

  Raises:
    ValueError: If there are no examples, or the weights do not fit the model.
  """
  count = len(examples[0])
  if not count:
    raise ValueError('examples must have at least one row. Found none.')
  params = jax.device_put(batches.check_params(params, model))
  size = _CPU_BATCH if jax.default_backend() == 'cpu' else _BATCH
  totals: dict[str, np.ndarray] = {}
  for start in range(0, count, size):
    batch = tuple(
      _padded(array[start : start + size], size) for array in examples
    )
    sums = _batch_sums(
      params, batch, np.arange(start, start + size) < count, model=model
    )
    for name, pair in sums.items():
      # Sums over many batches need float64.
      pair = np.array(pair, np.float64)
      totals[name] = totals.get(name, 0) + pair
  found = {
    name: float(value / max(weight, 1))
    for name, (value, weight) in totals.items()
  }
  if model.has_perplexity:
    found['perplexity'] = metrics.perplexity(found['loss'])
  return found


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
  batch = np.zeros((size, *rows.shape[1:]), rows.dtype)
  batch[: len(rows)] = rows
  return batch
