"""Warm start in JAX; `pda_fed.models.convergence` says when it ends."""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.common import validate
from pda_fed.models import convergence
from pda_fed.models import jax_recurrent
from pda_fed.vectorized.federated import local_training

_EVALUATION_BATCH = 256
# Of Adam, as `tff.learning.optimizers.build_adam` has them.
_BETA_1 = 0.9
_BETA_2 = 0.999
_EPSILON = 1e-7


class Adam(NamedTuple):
  """Adam's state."""

  step: jax.Array
  mean: Any
  square: Any

  @classmethod
  def start(cls, params: Any) -> 'Adam':
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    return cls(jnp.zeros((), jnp.int32), zeros, zeros)


def adam_step(params: Any, state: Adam, gradients: Any, learning_rate):
  """One step of Adam; returns new weights and state."""
  step = state.step + 1
  rate = learning_rate * jnp.sqrt(1 - _BETA_2**step) / (1 - _BETA_1**step)
  mean = jax.tree_util.tree_map(
    lambda m, g: m + (g - m) * (1 - _BETA_1), state.mean, gradients
  )
  square = jax.tree_util.tree_map(
    lambda s, g: s + (g * g - s) * (1 - _BETA_2), state.square, gradients
  )
  params = jax.tree_util.tree_map(
    lambda w, m, s: w - rate * m / (jnp.sqrt(s) + _EPSILON),
    params,
    mean,
    square,
  )
  return params, Adam(step, mean, square)


@functools.partial(jax.jit, static_argnames='dtype')
def _epoch(params, state, tokens, weights, learning_rate, *, dtype):
  """Steps over batches, [steps, batch, time + 1] and [steps, batch]."""

  def step(carry, batch):
    params, state = carry
    _, gradients = local_training.loss_and_gradients(
      params, *batch, dtype=dtype
    )
    return adam_step(params, state, gradients, learning_rate), None

  return jax.lax.scan(step, (params, state), (tokens, weights))[0]


@functools.partial(jax.jit, static_argnames='dtype')
def _mean_loss(params, tokens, weights, *, dtype):
  """The mean of batches' losses by their sentences, as TFF's trainer has it."""

  def loss(batch):
    stats = local_training.loss_stats(params, *batch, dtype=dtype)
    return stats.batch_loss, stats.sentences

  totals, counts = jax.lax.map(loss, (tokens, weights))
  return totals.sum() / counts.sum()


class _Trainer:
  """See `convergence.Trainer`."""

  def __init__(self, params, sentences, learning_rate, batch_size, dtype):
    self._params = jax_recurrent.cast_params(params, jnp.float32)
    self._state = Adam.start(self._params)
    self._sentences = sentences
    self._learning_rate = learning_rate
    self._batch_size = batch_size
    self._dtype = dtype

  def weights(self) -> list[np.ndarray]:
    return [np.array(w) for w in self._params]

  def train(self, rows: np.ndarray) -> None:
    self._params, self._state = _epoch(
      self._params,
      self._state,
      *self._batches(rows, self._batch_size),
      self._learning_rate,
      dtype=self._dtype,
    )

  def loss(self, rows: np.ndarray) -> float:
    batches = self._batches(rows, _EVALUATION_BATCH)
    return float(_mean_loss(self._params, *batches, dtype=self._dtype))

  def _batches(self, rows: np.ndarray, size: int):
    steps = -(-len(rows) // size)
    tokens = np.zeros((steps * size, self._sentences.shape[1]), np.uint16)
    tokens[: len(rows)] = self._sentences[rows]
    weights = (np.arange(steps * size) < len(rows)).astype(np.float32)
    return tokens.reshape(steps, size, -1), weights.reshape(steps, size)


def pretrain(
  weights: Sequence[np.ndarray],
  sentences: np.ndarray,
  learning_rate: float,
  config: Optional[convergence.PretrainingConfig] = None,
  *,
  compute_dtype: str = 'float32',
  on_epoch: Optional[Callable[[int, float], None]] = None,
) -> convergence.Pretrained:
  """Trains with Adam on sentences of all public users together.

  What `learning.pretrain` does: from the same weights, the same steps.

  Example:

  ```
  warm = pretrain(weights, public_sentences, learning_rate=1e-2)
  state = initial_state(settings, warm.weights)
  ```

  Args:
    weights: Where to start, in the order of the Keras model.
    sentences: Token ids, [sentences, time + 1].
    learning_rate: Of Adam.
    config: When to stop.
    compute_dtype: Of products.
    on_epoch: Called with the number of epochs and the held-out loss.

  Returns:
    The weights with the lowest held-out loss.

  Raises:
    ValueError: If the data are too few to hold some out, or the loss is not
      finite.
  """
  validate.positive(learning_rate=learning_rate)
  config = config or convergence.PretrainingConfig()
  trainer = _Trainer(
    jax_recurrent.RecurrentParams(*weights),
    sentences,
    learning_rate,
    config.batch_size,
    jnp.dtype(compute_dtype),
  )
  return convergence.train_to_convergence(
    trainer, len(sentences), config, on_epoch
  )
