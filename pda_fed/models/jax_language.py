"""The JAX model of a `LanguageSpec`."""

from collections.abc import Sequence
import functools
from typing import Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.models import initializers
from pda_fed.models import jax_layers
from pda_fed.models import language

_EMBEDDING_LIMIT = 0.05  # As in Keras.


class LanguageModel(jax_layers.Model):
  """See `jax_layers.Model`; inputs are tokens, targets the next tokens."""

  def __init__(self, spec: language.LanguageSpec):
    self.spec = spec
    self.shapes = spec.parameter_shapes
    self.layers = (
      jax_layers.Embedding(0),
      *(jax_layers.Lstm(1 + 3 * i) for i in range(spec.num_layers)),
      jax_layers.Dense(1 + 3 * spec.num_layers),
    )

  def initial_params(self, seed: int) -> list[np.ndarray]:
    """See `jax_layers.Model`; distributions are those of Keras."""
    rngs = [
      np.random.default_rng(s)
      for s in np.random.SeedSequence(seed).spawn(len(self.shapes))
    ]
    units = self.spec.lstm_size
    bias = np.zeros(4 * units, np.float32)
    bias[units : 2 * units] = 1  # Forget gate; Keras starts it open, too.
    params = [initializers.uniform(rngs[0], self.shapes[0], _EMBEDDING_LIMIT)]
    for i in range(self.spec.num_layers):
      place = 1 + 3 * i
      params += [
        initializers.glorot_uniform(rngs[place], self.shapes[place]),
        initializers.orthogonal(rngs[place + 1], self.shapes[place + 1]),
        bias.copy(),
      ]
    return [
      *params,
      initializers.glorot_uniform(rngs[-2], self.shapes[-2]),
      np.zeros(self.shapes[-1], np.float32),
    ]

  def run(
    self,
    params: jax_layers.Params,
    inputs: jax.Array,
    targets: jax.Array,
    *,
    taps: Optional[Sequence[jax.Array]] = None,
    dropout: float = 0.0,
    key: Optional[jax.Array] = None,
  ) -> jax_layers.Trace:
    """See `jax_layers.Model`; dropout precedes each layer but the first."""
    record = jax_layers.Recorder(params, taps)
    drop = functools.partial(jax_layers.drop, rate=dropout, key=key)
    x = record.embedding(self.layers[0], inputs.astype(jnp.int32))
    for place, layer in enumerate(self.layers[1:-1]):
      x = record.lstm(layer, drop(x, place=place))
    x = drop(x, place=len(self.layers))
    logits = record.dense(self.layers[-1], x)
    losses = jax_layers.cross_entropy(logits, targets)
    means = losses.mean(axis=-1)
    is_sum = self.spec.loss_per_sequence == 'sum'
    return jax_layers.Trace(
      losses=losses.sum(axis=-1) if is_sum else means,
      inputs=tuple(record.inputs),
      outputs=tuple(record.outputs),
      hits=jax_layers.is_hit(logits, targets).sum(axis=-1),
      token_losses=means,
    )
