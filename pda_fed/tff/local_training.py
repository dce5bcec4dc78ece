"""Local training of one user, private or public.

The private update of federated PDA-DPMD is a user's model delta. The public
update has the same unit; both come from this loop.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

from pda_fed.common import divergence
import tensorflow as tf
import tensorflow_federated as tff

ModelFn = Callable[[], tff.learning.models.VariableModel]
LocalTraining = Callable[
  [tff.learning.models.ModelWeights, tf.data.Dataset], 'LocalResult'
]


class LocalResult(NamedTuple):
  """Result of a user's training.

  Attributes:
    update: Weights before training minus weights after: the direction that a
      server optimizer descends. Zero if its norm is not finite and
      `zero_non_finite` is set.
    metrics: Unfinalized sums of the model's metrics over the user's data, each
      batch at the weights before its step.
    is_finite: 1 if the norm of the update was finite, else 0.
    has_diverged: 1 if the training diverged, else 0; see `common.divergence`.
  """

  update: tuple[tf.Tensor, ...]
  metrics: dict
  is_finite: tf.Tensor
  has_diverged: tf.Tensor


def _dense(gradient: Union[tf.Tensor, tf.IndexedSlices, None], weight):
  """Makes a gradient dense; it may be slices (embeddings) or None (unused)."""
  if gradient is None:
    return tf.zeros_like(weight)
  # Slices lose their shape, and TFF's optimizers compare shapes.
  return tf.ensure_shape(tf.convert_to_tensor(gradient), weight.shape)


def step(
  model: tff.learning.models.VariableModel,
  variables: tff.learning.models.ModelWeights,
  optimizer: tff.learning.optimizers.Optimizer,
  state: Any,
  batch: Any,
  *,
  gradient_clip: Optional[float] = None,
) -> tuple[Any, tff.learning.models.BatchOutput]:
  """Takes an optimizer step on a batch.

  Args:
    model: The model.
    variables: The model's variables, which are updated in place.
    optimizer: A TFF optimizer.
    state: The optimizer's state.
    batch: A batch in the model's input format.
    gradient_clip: An optional bound on the norm of the gradient.

  Returns:
    The optimizer's new state, and the model's output before the step.
  """
  trainable = tuple(variables.trainable)
  with tf.GradientTape() as tape:
    output = model.forward_pass(batch, training=True)
  gradients = tape.gradient(output.loss, trainable)
  gradients = tuple(
    _dense(g, w) for g, w in zip(gradients, trainable, strict=True)
  )
  if gradient_clip is not None:
    gradients, _ = tf.clip_by_global_norm(gradients, gradient_clip)
  state, stepped = optimizer.next(state, trainable, tuple(gradients))
  tf.nest.map_structure(lambda v, w: v.assign(w), trainable, tuple(stepped))
  return state, output


def call_model_fn(model_fn: ModelFn) -> tff.learning.models.VariableModel:
  """Calls `model_fn` and checks that TFF can train the model.

  Args:
    model_fn: Returns a new model.

  Returns:
    The model.

  Raises:
    TypeError: If `model_fn` is itself a model, or does not return a TFF model
      (but a Keras model, for example).
  """
  models = (tf.keras.Model, tff.learning.models.VariableModel)
  if isinstance(model_fn, models) or not callable(model_fn):
    raise TypeError(
      'model_fn must be a function without arguments that returns a new model'
      ' (tff.learning.models.model_from_functional converts a functional'
      f' model). Found {type(model_fn).__name__}.'
    )
  model = model_fn()
  if not isinstance(model, tff.learning.models.VariableModel):
    raise TypeError(
      'model_fn must return a tff.learning.models.VariableModel'
      ' (tff.learning.models.from_keras_model converts a Keras model). Found'
      f' {type(model).__name__}.'
    )
  return model


def create_model(model_fn: ModelFn) -> tff.learning.models.VariableModel:
  """Creates a model whose weights are zero until they are assigned.

  TFF's runtime initializes a computation's variables in every call, that is,
  for every client. Orthogonal or random initial weights, which are never used,
  would cost more than a batch.

  Args:
    model_fn: Returns a new model.

  Returns:
    A new model, whose weights must be assigned before training. A model with
    trainable variables besides its weights keeps its own initial values.
  """
  zeroed = []

  def create_zeroed(next_creator, **kwargs):
    if not kwargs.get('trainable') or kwargs.get('shape') is None:
      return next_creator(**kwargs)
    shape, dtype = tf.TensorShape(kwargs['shape']), kwargs['dtype']
    if not shape.is_fully_defined() or dtype is None:
      return next_creator(**kwargs)
    kwargs['initial_value'] = lambda: tf.zeros(shape, dtype)
    zeroed.append(next_creator(**kwargs))
    return zeroed[-1]

  with tf.variable_creator_scope(create_zeroed):
    model = model_fn()
  weights = tf.nest.flatten(tff.learning.models.ModelWeights.from_model(model))
  if {id(v) for v in zeroed} <= {id(v) for v in weights}:
    return model
  return model_fn()  # Other variables need their initial values.


def build_local_training(
  model_fn: ModelFn,
  optimizer: tff.learning.optimizers.Optimizer,
  *,
  zero_non_finite: bool = True,
  gradient_clip: Optional[float] = None,
  clip_norm: float = 0.0,
) -> LocalTraining:
  """Builds the loop over a user's batches; call it while tracing a computation.

  Args:
    model_fn: Returns a new model.
    optimizer: Takes a step for each batch.
    zero_non_finite: Whether a non-finite update is replaced by zeros.
    gradient_clip: An optional bound on the norm of each batch's gradient.
    clip_norm: The clipping norm of private updates. Here it is used only to
      detect divergence.

  Returns:
    A function of initial weights and a dataset.
  """
  with tf.init_scope():
    model = create_model(model_fn)
  variables = tff.learning.models.ModelWeights.from_model(model)

  @tf.function
  def train(initial_weights, dataset) -> LocalResult:
    tf.nest.map_structure(lambda v, w: v.assign(w), variables, initial_weights)
    model.reset_metrics()
    trainable = tuple(variables.trainable)
    state = optimizer.initialize(
      tf.nest.map_structure(
        lambda v: tf.TensorSpec(v.shape, v.dtype), trainable
      )
    )
    first_loss = total = count = tf.constant(0.0)
    # Iterators are several times faster than Dataset.reduce.
    for batch in iter(dataset):
      state, output = step(
        model,
        variables,
        optimizer,
        state,
        batch,
        gradient_clip=gradient_clip,
      )
      loss = tf.cast(output.loss, tf.float32)
      size = tf.cast(output.num_examples, tf.float32)
      first_loss = tf.where(count > 0, first_loss, loss)
      total, count = total + loss * size, count + size
    update = [
      before - after
      for before, after in zip(
        initial_weights.trainable, trainable, strict=True
      )
    ]
    norm = tf.linalg.global_norm(update)
    finite = tf.math.is_finite(norm)
    diverged = divergence.has_diverged(
      first_loss,
      tf.math.divide_no_nan(total, count),
      norm,
      tf.linalg.global_norm(list(initial_weights.trainable)),
      clip_norm,
    )
    if zero_non_finite:
      update = tf.cond(
        finite, lambda: update, lambda: [tf.zeros_like(leaf) for leaf in update]
      )
    return LocalResult(
      tuple(update),
      model.report_local_unfinalized_metrics(),
      tf.cast(finite, tf.int32),
      tf.cast(diverged, tf.int32),
    )

  return train


def num_weights(weights_type: tff.Type) -> int:
  """Returns the number of trainable parameters of a model.

  Args:
    weights_type: The type of the model's `ModelWeights`.
  """
  specs = tff.types.type_to_tf_tensor_specs(weights_type.trainable)
  return sum(spec.shape.num_elements() for spec in tf.nest.flatten(specs))
