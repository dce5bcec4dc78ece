"""Evaluation of a model on sentences, in JAX."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed.models import jax_recurrent
from pda_fed.models import metrics

_CPU_BATCH = 128
_BATCH = 1024


@functools.partial(jax.jit, static_argnames='spec')
def _token_sums(params, sentences, *, spec):
  return jax_recurrent.token_sums(spec, params, sentences.astype(jnp.int32))


def evaluate(
  spec: models.RecurrentSpec, weights: Any, sentences: np.ndarray
) -> dict[str, float]:
  """Returns the metrics of the paper on all sentences together.

  Example:

    >>> from pda_fed.models import jax_recurrent
    >>> spec = models.RecurrentSpec(num_words=5, embedding_size=2, lstm_size=2)
    >>> weights = [0 * w for w in jax_recurrent.initial_params(spec)]
    >>> sentence = np.array([[spec.bos, 1, 2, spec.eos]], np.uint16)
    >>> found = evaluate(spec, weights, sentence)
    >>> round(found['perplexity'], 3)  # Of 9 tokens.
    9.0

  Args:
    spec: The model's sizes.
    weights: In the order of the Keras model.
    sentences: Token ids, [sentences, time + 1]; a memory-mapped array is read
      batch by batch.

  Returns:
    `loss` per token, `accuracy` over words of the vocabulary,
    `accuracy_with_oov` over all tokens, and `perplexity`.

  Raises:
    ValueError: If there are no sentences, or the weights are another model's.
  """
  if not len(sentences):
    raise ValueError('sentences must have at least one row. Found none.')
  params = jax_recurrent.check_params(spec, weights)
  params = jax.device_put(jax_recurrent.cast_params(params, jnp.float32))
  size = _CPU_BATCH if jax.default_backend() == 'cpu' else _BATCH
  totals = np.zeros(len(jax_recurrent.TokenSums._fields))
  for start in range(0, len(sentences), size):
    batch = np.zeros((size, sentences.shape[1]), sentences.dtype)
    rows = sentences[start : start + size]
    batch[: len(rows)] = rows
    # In float64: sums over many batches.
    totals += np.array(_token_sums(params, batch, spec=spec), np.float64)
  sums = jax_recurrent.TokenSums(*totals.tolist())
  loss = sums.loss / max(sums.tokens, 1)
  return {
    'loss': loss,
    'accuracy': sums.word_hits / max(sums.words, 1),
    'accuracy_with_oov': sums.hits / max(sums.tokens, 1),
    'perplexity': metrics.perplexity(loss),
  }
