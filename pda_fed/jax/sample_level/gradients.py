"""Gradients of a step: clipped private sums and the public update."""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed import clipping as clipping_lib
from pda_fed.jax import aggregation
from pda_fed.jax import clipping
from pda_fed.jax import devices as devices_lib
from pda_fed.jax import server_round as server_lib
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.jax.sample_level import settings as settings_lib
from pda_fed.models import batches as model_batches
from pda_fed.models import model as model_lib


class ExampleStats(NamedTuple):
  """Sums over the examples of a batch, for metrics.

  Attributes:
    loss: The mean loss of each example's targets.
    squared_norm: Squared norms of gradients, rounded up.
  """

  loss: jax.Array
  squared_norm: jax.Array


class Gradients:
  """Computes the gradients of a model's steps."""

  def __init__(
    self,
    model: model_lib.Model,
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
  ) -> batches_lib.ExampleArrays:
    """Returns a batch as model inputs, augmented if a key is given.

    Args:
      examples: A batch.
      key: The random key of the augmentation.
    """
    if self._standardization is None:
      return examples
    inputs = self._standardization.apply(examples.inputs)
    if key is not None:
      inputs = augmentation.flip_and_crop(inputs, key)
    return examples._replace(inputs=inputs)

  def _loss(self, params, inputs, targets):
    """Returns the loss of one prepared example, and its mean over targets."""
    cast = model_batches.cast(params, self._dtype)
    value, sums = model_batches.loss_of_one(self._model, cast, inputs, targets)
    total, weight = sums['loss']
    return value, total.astype(jnp.float32) / jnp.maximum(weight, 1)

  def _loss_of_stored(self, params, inputs, targets, key):
    """Like `_loss`, but also standardizes, and augments if there is a key."""
    if self._standardization is not None:
      inputs = self._standardization.apply(inputs)
      if key is not None:
        key = jax.random.wrap_key_data(key, impl='threefry2x32')
        inputs = augmentation.flip_and_crop_one(inputs, key)
    return self._loss(params, inputs, targets)

  def _sums_of(
    self,
    params,
    examples,
    share: batches_lib.Share,
    key,
    clip_norm,
    before_clip=None,
  ) -> tuple[aggregation.ClippedSum, ExampleStats]:
    """Sums over a batch, or a device's part."""
    copies = self._settings.augmentation_multiplicity
    keys = None
    if self._settings.augmentation == 'all':
      places = share.start * copies + jnp.arange(len(share.rows) * copies)
      own = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, places)
      keys = jax.random.key_data(own)
    return self._clipped_sum(
      self._loss_of_stored,
      params,
      (*examples.take(jnp.repeat(share.rows, copies)), keys),
      share.present,
      clip_norm,
      before_clip,
      copies=copies,
      microbatch_size=self._settings.microbatch_size,
    )

  def _clipped_sum(
    self,
    loss,
    params,
    batch: tuple,
    mask,
    clip_norm,
    before_clip=None,
    **options,
  ) -> tuple[aggregation.ClippedSum, ExampleStats]:
    structure = jax.tree.structure(params)

    def changed(gradient):
      return structure.unflatten(before_clip(server_lib.leaves_of(gradient)))

    sums, info = clipping_lib.clipped_grad(
      loss,
      clip_norm,
      has_aux=True,
      before_clip=None if before_clip is None else changed,
      **options,
    )(params, *batch, mask=mask)
    counts = (mask != 0) & jnp.isfinite(info.norms)
    means = info.aux.reshape(len(counts), -1).mean(axis=1)
    return aggregation.ClippedSum(
      sums, info.count, info.clipped, info.non_finite
    ), ExampleStats(
      jnp.where(counts, means, 0).sum(),
      jnp.where(counts, jnp.square(info.norms), 0).sum(),
    )

  def private_sums(
    self,
    params: Any,
    examples: batches_lib.ExampleArrays,
    inputs: batches_lib.StepInputs,
    key: jax.Array,
    clip_norm: jax.Array,
    before_clip: Optional[Callable[[Any], Any]] = None,
    num_devices: int = 1,
  ) -> tuple[aggregation.ClippedSum, ExampleStats]:
    """Returns clipped sums over the private batch of a step.

    Args:
      params: The weights.
      examples: Private examples.
      inputs: The step's inputs.
      key: The random key of the augmentation.
      clip_norm: S, to which the noise is in proportion: that of the state.
      before_clip: How the method changes a gradient before it is clipped.
      num_devices: Number of devices that share the rows. If there are several,
        each calls this and gets the sums; see `devices.run_on_each`.
    """
    options = key, clip_norm, before_clip
    if num_devices == 1:
      share = batches_lib.Share(0, inputs.rows, inputs.present)
      return self._sums_of(params, examples, share, *options)
    share = batches_lib.share_of(
      inputs,
      jax.lax.axis_index(devices_lib.AXIS),
      num_devices,
      self._settings.microbatch_size,
    )
    sums = self._sums_of(params, examples, share, *options)
    return devices_lib.ordered_sum(sums, num_devices)

  def public_update(
    self, params: Any, batch: batches_lib.ExampleArrays
  ) -> tuple[Any, jax.Array]:
    """Returns the gradient of a public batch and its loss.

    Args:
      params: The weights.
      batch: The batch, as returned by `prepare`.
    """
    settings = self._settings
    is_clipped = settings.method.public == 'clipped_update'
    if is_clipped or settings.public_update == 'clipped':
      count = len(batch.targets)
      everyone = jnp.ones(count, bool)
      sums, stats = self._clipped_sum(
        self._loss, params, batch, everyone, settings.plan.clip_norm
      )
      update = jax.tree.map(lambda total: total / count, sums.total)
      loss = stats.loss / count
    else:

      def mean_loss(params):
        losses, means = jax.vmap(self._loss, in_axes=(None, 0, 0))(
          params, *batch
        )
        return losses.mean(), means.mean()

      update, loss = jax.grad(mean_loss, has_aux=True)(params)
    if settings.public_clip_norm is not None:
      update = clipping.clip_one(update, settings.public_clip_norm)
    return update, loss
