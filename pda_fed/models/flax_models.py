"""Models from modules of Flax, both linen and nnx."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from pda_fed.models import losses
from pda_fed.models import model as model_lib


def from_flax(
  module: Any,
  example: Any,
  loss: Callable[..., Any] = losses.classification,
  *,
  has_perplexity: bool = False,
) -> model_lib.Model:
  """Returns a model from a Flax module.

  The module takes batches, as usual: it sees one example with a leading axis of
  1. Examples and weights have the dtype of the computation.

  Example:

    >>> import flax.linen as nn
    >>> model = from_flax(nn.Dense(3), jnp.zeros(4))
    >>> params = model.init(0)
    >>> params['kernel'].shape, params['bias'].shape
    ((4, 3), (3,))
    >>> value, sums = model.loss(params, jnp.zeros(4), 1)
    >>> round(float(value), 3), float(sums['accuracy'][0])
    (1.099, 0.0)

  Args:
    module: A module of `flax.linen`, or a function that makes one of
      `flax.nnx`, given `nnx.Rngs`.
    example: The input of one example, or a `jax.ShapeDtypeStruct`.
    loss: The loss of one example, given the module's output and the example's
      other arrays: a scalar, or with sums of metrics as in `Model`.
    has_perplexity: See `Model`.

  Returns:
    The model. Its loss takes the keywords `key`, the module's random stream
    'dropout', and `dropout`, the value of a field of that name.

  Raises:
    ValueError: If the module has other state than weights, such as averages of
      a batch normalization.
  """
  from flax import linen

  one = jax.ShapeDtypeStruct((1, *jnp.shape(example)), jnp.result_type(example))
  if isinstance(module, linen.Module):
    init, apply = _of_linen(module, one)
  else:
    init, apply = _of_nnx(module)

  def run(params, inputs, key=None, dropout=0.0):
    if jnp.issubdtype(jnp.result_type(inputs), jnp.floating):
      inputs = jnp.asarray(inputs, jnp.result_type(*jax.tree.leaves(params)))
    return apply(params, jnp.asarray(inputs)[None], key, dropout)[0]

  def loss_of_example(params, inputs, *targets, key=None, dropout=0.0):
    return loss(run(params, inputs, key, dropout), *targets)

  return model_lib.Model(
    init, loss_of_example, logits=run, has_perplexity=has_perplexity
  )


def key_of(seed: int) -> jax.Array:
  """Returns the random key of a seed of 64 bits."""
  data = jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32)
  return jax.random.wrap_key_data(data, impl='threefry2x32')


def _of_linen(module: Any, one: jax.ShapeDtypeStruct):
  # Compiled: otherwise each operation of the network is compiled alone.
  @jax.jit
  def draw(key):
    return module.init(key, jnp.zeros(one.shape, one.dtype))

  _refuse(module, set(jax.eval_shape(draw, key_of(0))) - {'params'})

  def init(seed):
    return draw(key_of(seed))['params']

  def apply(params, batch, key, dropout):
    if not dropout:
      return module.apply({'params': params}, batch)
    if not hasattr(module, 'dropout'):
      raise ValueError(
        f'dropout must be 0 for {type(module).__name__}, which has no field of'
        f' that name. Found {dropout}.'
      )
    varied = module.clone(dropout=dropout)
    return varied.apply({'params': params}, batch, rngs={'dropout': key})

  return init, apply


def _of_nnx(make: Callable[[Any], Any]):
  from flax import nnx

  def split(key):
    return nnx.split(make(nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)

  graph, like, _, others = nnx.eval_shape(lambda: split(key_of(0)))
  _refuse(make, {type(v).__name__ for _, v in nnx.to_flat_state(others)})

  def init(seed):
    _, params, _, _ = split(key_of(seed))
    return nnx.to_pure_dict(params)

  def apply(params, batch, key, dropout):
    if dropout:
      raise ValueError(f'dropout must be 0 for nnx. Found {dropout}.')
    del key
    state = jax.tree.map(lambda leaf: leaf, like)
    nnx.replace_by_pure_dict(state, params)
    streams = split(key_of(0))[2]
    module = nnx.merge(graph, state, streams, others)
    module.eval()
    return module(batch)

  return init, apply


def _refuse(module: Any, states: set[str]) -> None:
  if states:
    raise ValueError(
      f'module must have no state but weights. Found {sorted(states)} in'
      f' {module}. Averages of a batch normalization mix examples, so that no'
      ' clip bounds what one of them changes: use group or layer'
      ' normalization.'
    )
