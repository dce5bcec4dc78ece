"""Gradients of a step: clipped private sums and the public update."""

from collections.abc import Callable
from typing import Any, Optional

import jax
import jax.numpy as jnp
from pda_fed.jax import aggregation
from pda_fed.jax import clipping
from pda_fed.jax import devices as devices_lib
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.jax.sample_level import per_example
from pda_fed.jax.sample_level import settings as settings_lib
from pda_fed.models import jax_layers


class Gradients:
  """Computes the gradients of a model's steps."""

  def __init__(
    self,
    model: jax_layers.Model,
    settings: settings_lib.SampleLevelSettings,
    standardization: Optional[augmentation.Standardization] = None,
  ):
    """Initializes the object; nothing is computed yet.

    Args:
      model: The model.
      settings: The settings of the run.
      standardization: How images or tables are standardized; None for tokens.
    """
    self._model = model
    self._settings = settings
    self._standardization = standardization
    self._dtype = jnp.dtype(settings.compute_dtype)

  def prepare(
    self,
    examples: batches_lib.ExampleArrays,
    key: Optional[jax.Array] = None,
    start: int = 0,
    copies: int = 1,
  ) -> batches_lib.ExampleArrays:
    """Returns examples as model inputs, augmented if a key is given.

    Args:
      examples: A batch, or a part of it.
      key: The random key of the augmentation.
      start: The index of the first example in the batch.
      copies: Number of copies of each example. Copies of an example are
        adjacent.
    """
    if copies > 1:
      examples = batches_lib.ExampleArrays(
        *(jnp.repeat(array, copies, axis=0) for array in examples)
      )
    if self._standardization is None:
      return examples
    inputs = self._standardization.apply(examples.inputs)
    if key is not None:
      inputs = augmentation.flip_and_crop(inputs, key, start * copies)
    return examples._replace(inputs=inputs)

  def _clipped_sum(
    self,
    params,
    examples: batches_lib.ExampleArrays,
    present,
    before_clip: Optional[Callable[[Any], Any]] = None,
    copies: int = 1,
  ):
    clip_norm = self._settings.plan.clip_norm
    arguments = (self._model, params, *examples, present, clip_norm)
    options: dict[str, Any] = {'compute_dtype': self._dtype, 'copies': copies}
    if before_clip is None and self._model.layers:
      return per_example.clipped_sum(*arguments, **options)
    return per_example.clipped_sum_of_changed(
      *arguments, before_clip=before_clip, **options
    )

  def _sums_of(
    self,
    params,
    examples: batches_lib.ExampleArrays,
    share: batches_lib.Share,
    key,
    before_clip=None,
  ):
    """Sums over a batch, or a device's part, microbatch by microbatch."""
    if self._settings.augmentation != 'all':
      key = None
    copies = self._settings.augmentation_multiplicity
    first, rows, present = share
    size = self._settings.microbatch_size or len(rows)

    def sums_at(start, rows, present):
      batch = self.prepare(examples.take(rows), key, start, copies)
      return self._clipped_sum(params, batch, present, before_clip, copies)

    if size >= len(rows):
      return sums_at(first, rows, present)

    def body(sums, micro):
      return jax.tree_util.tree_map(jnp.add, sums, sums_at(*micro)), None

    micros = (
      first + jnp.arange(0, len(rows), size),
      rows.reshape(-1, size),
      present.reshape(-1, size),
    )
    shapes = jax.eval_shape(sums_at, first, rows[:size], present[:size])
    zeros = jax.tree_util.tree_map(
      lambda s: jnp.zeros(s.shape, s.dtype), shapes
    )
    return jax.lax.scan(body, zeros, micros)[0]

  def private_sums(
    self,
    params: jax_layers.Params,
    examples: batches_lib.ExampleArrays,
    inputs: batches_lib.StepInputs,
    key: jax.Array,
    before_clip: Optional[Callable[[Any], Any]] = None,
    num_devices: int = 1,
  ) -> tuple[aggregation.ClippedSum, per_example.ExampleStats]:
    """Returns clipped sums over the private batch of a step.

    Args:
      params: The weights.
      examples: Private examples.
      inputs: The step's inputs.
      key: The random key of the augmentation.
      before_clip: How the method changes a gradient before it is clipped.
      num_devices: Number of devices that share the rows. If there are several,
        each calls this and gets the sums; see `devices.run_on_each`.
    """
    options = key, before_clip
    if num_devices == 1:
      share = batches_lib.Share(0, inputs.rows, inputs.present)
      return self._sums_of(params, examples, share, *options)
    axis = devices_lib.EXAMPLES
    share = batches_lib.share_of(
      inputs,
      jax.lax.axis_index(axis),
      num_devices,
      self._settings.microbatch_size,
    )
    sums = self._sums_of(params, examples, share, *options)
    return devices_lib.ordered_sum(sums, num_devices, axis)

  def public_update(
    self, params: jax_layers.Params, batch: batches_lib.ExampleArrays
  ) -> tuple[jax_layers.Params, jax.Array]:
    """Returns the gradient of a public batch and its loss.

    Args:
      params: The weights.
      batch: The batch, as returned by `prepare`.
    """
    settings = self._settings
    is_clipped = settings.method.public == 'clipped_update'
    if is_clipped or settings.public_update == 'clipped':
      everyone = jnp.ones(len(batch.targets), bool)
      sums, stats = self._clipped_sum(params, batch, everyone)
      count = len(batch.targets)
      update = tuple(total / count for total in sums.total)
      loss = stats.loss / count
    else:

      def mean_loss(params):
        cast = tuple(w.astype(self._dtype) for w in params)
        trace = self._model.run(cast, *batch)
        return trace.losses.mean(), trace.token_losses.mean()

      update, loss = jax.grad(mean_loss, has_aux=True)(params)
    if settings.public_clip_norm is not None:
      update = clipping.clip_one(update, settings.public_clip_norm)
    return update, loss
