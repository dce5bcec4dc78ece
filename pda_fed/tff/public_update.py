"""PDA-DPMD's public update: grad Psi(theta_t), scaled like private updates.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), equation (3) and section 5.1: each round samples
public users and trains on them in the same way as on private users. The mean of
their model deltas serves as the gradient of the public loss.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Literal, NamedTuple, Optional, Union

import numpy as np
from pda_fed.common import validate
from pda_fed.tff import aggregators
from pda_fed.tff import local_training
import tensorflow as tf
import tensorflow_federated as tff

Mode = Literal['local_training', 'gradient']


class PublicResult(NamedTuple):
  """A public update and its loss.

  Attributes:
    update: The update, with the structure of the trainable weights.
    loss: The mean training loss of the public batches.
  """

  update: tuple[tf.Tensor, ...]
  loss: tf.Tensor


@dataclasses.dataclass(frozen=True)
class PublicData:
  """The examples of all public users.

  Example:

    >>> users = [(np.zeros([n, 20]), np.ones([n, 20])) for n in (3, 1)]
    >>> data = PublicData.from_users(users)
    >>> data.num_users, data.num_examples
    (2, 4)

  Attributes:
    examples: A structure of arrays with one row per example, user after user.
    offsets: Index of the first row of each user, and the total number of rows.
  """

  examples: Any
  offsets: np.ndarray

  @classmethod
  def from_users(cls, users: Sequence[Any]) -> 'PublicData':
    """Joins the examples of users.

    Args:
      users: For each user, a structure of arrays with one row per example, such
        as `(tokens, next_tokens)`.

    Raises:
      TypeError: If a user is not a structure of arrays (but a dataset, for
        example).
      ValueError: If there are no users, if a user has no examples or arrays of
        different lengths, or if users differ in structure.
    """
    if not len(users):
      raise ValueError('public_data must have at least one user. Found none.')
    for index, user in enumerate(users):
      _check_user(index, user, users[0])
    sizes = [len(tf.nest.flatten(user)[0]) for user in users]
    if min(sizes) == 0:
      raise ValueError(
        'public_data must have at least one example for each user. Found none'
        f' for user {sizes.index(0)}.'
      )
    examples = tf.nest.map_structure(lambda *a: np.concatenate(a), *users)
    return cls(examples, np.concatenate([[0], np.cumsum(sizes)]))

  @property
  def num_users(self) -> int:
    return len(self.offsets) - 1

  @property
  def num_examples(self) -> int:
    return int(self.offsets[-1])


def _check_user(index: int, user: Any, first: Any) -> None:
  """Raises if a public user's arrays cannot be joined with the first user's."""
  for array in tf.nest.flatten(user):
    if isinstance(array, tf.data.Dataset) or not np.ndim(array):
      raise TypeError(
        'public_data must be a list with a structure of arrays for each user,'
        ' such as (features, labels), with one row per example. Found'
        f' {type(array).__name__} in user {index}.'
      )
  sizes = [len(array) for array in tf.nest.flatten(user)]
  if len(set(sizes)) > 1:
    raise ValueError(
      "public_data must have equal row counts in a user's arrays. Found"
      f' {sizes} in user {index}.'
    )
  layouts = []
  for each in (user, first):
    layouts.append(tf.nest.map_structure(lambda a: np.shape(a)[1:], each))
  if layouts[0] != layouts[1]:
    raise ValueError(
      'public_data must have the same structure and row shapes for each user.'
      f' Found {layouts[1]} for user 0 and {layouts[0]} for user {index}.'
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicUpdate:
  """How a public update is computed.

  Example:

  ```
  update = PublicUpdate(
      data=PublicData.from_users(public_users),
      model_fn=model_fn,
      optimizer=tff.learning.optimizers.build_sgdm(0.5),
      users_per_round=10)
  ```

  Attributes:
    data: The public users.
    model_fn: Returns a new model.
    optimizer: The clients' optimizer.
    batch_size: Batch size of local training.
    users_per_round: Number of public users sampled in a round.
    mode: 'local_training' is the mean delta of the sampled users after their
      local training. 'gradient' is one optimizer step on one batch of
      `users_per_round * batch_size` examples from all users; with SGD, this is
      the learning rate times a stochastic gradient.
    clip_norm: The bound on the norm of the public update: a number, 'private'
      for the clipping norm of private updates, or None for no bound. Privacy
      does not need it, but it limits the effect of public users whose training
      diverges.
    gradient_clip: See `local_training.build_local_training`.
    seed: Sampling seed, combined with the round.
  """

  data: PublicData
  model_fn: local_training.ModelFn
  optimizer: tff.learning.optimizers.Optimizer
  batch_size: int = 16
  users_per_round: int = 10
  mode: Mode = 'local_training'
  clip_norm: Union[float, str, None] = 'private'
  gradient_clip: Optional[float] = None
  seed: int = 0

  def __post_init__(self):
    validate.integers(
      1, batch_size=self.batch_size, users_per_round=self.users_per_round
    )
    validate.one_of(('local_training', 'gradient'), public_update=self.mode)
    validate.integers(0, seed=self.seed)
    validate.positive_or(('private', None), public_clip_norm=self.clip_norm)
    if self.users_per_round > self.data.num_users:
      raise ValueError(
        f'public_users_per_round must be at most {self.data.num_users}, the'
        f' number of public users. Found {self.users_per_round}.'
      )
    with tf.Graph().as_default():
      spec = local_training.call_model_fn(self.model_fn).input_spec
    _check_examples(self.data.examples, spec)

  def build(self, *, clips_users: bool = False) -> Callable[..., PublicResult]:
    """Builds the public update; call it while tracing a computation.

    Args:
      clips_users: Whether each public user's update is clipped like those of
        private users.

    Returns:
      A function of weights, round and the clipping norm of private updates.
    """
    train = local_training.build_local_training(
      self.model_fn, self.optimizer, gradient_clip=self.gradient_clip
    )
    examples = tf.nest.map_structure(tf.constant, self.data.examples)
    offsets = tf.constant(self.data.offsets, tf.int32)

    def dataset(rows: tf.Tensor, batch_size: int) -> tf.data.Dataset:
      chosen = tf.nest.map_structure(lambda a: tf.gather(a, rows), examples)
      return tf.data.Dataset.from_tensor_slices(chosen).batch(batch_size)

    def clipped(update, clip_norm):
      if not clips_users:
        return update
      return aggregators.clip_update(update, clip_norm)

    @tf.function
    def compute(weights, round_num, clip_norm) -> PublicResult:
      seed = tf.stack(
        [tf.constant(self.seed, tf.int64), tf.cast(round_num, tf.int64)]
      )
      if self.mode == 'gradient':
        size = self.users_per_round * self.batch_size
        rows = tf.random.stateless_uniform(
          [size], seed, 0, self.data.num_examples, tf.int32
        )
        result = train(weights, dataset(rows, size))
        update = clipped(result.update, clip_norm)
        loss = _mean_loss(result.metrics)
      else:
        order = tf.argsort(
          tf.random.stateless_uniform([self.data.num_users], seed)
        )
        total = [tf.zeros_like(w) for w in weights.trainable]
        loss = tf.constant(0.0)
        for i in tf.range(self.users_per_round):
          user = order[i]
          rows = tf.range(offsets[user], offsets[user + 1])
          result = train(weights, dataset(rows, self.batch_size))
          one = clipped(result.update, clip_norm)
          total = [t + u for t, u in zip(total, one, strict=True)]
          loss += _mean_loss(result.metrics)
        count = float(self.users_per_round)
        update, loss = tuple(t / count for t in total), loss / count
      if self.clip_norm is not None:
        bound = clip_norm if self.clip_norm == 'private' else self.clip_norm
        update = aggregators.clip_update(update, bound)
      return PublicResult(tuple(update), loss)

    return compute


def _mean_loss(metrics) -> tf.Tensor:
  """Returns the model's loss, which TFF keeps as a sum and a weight."""
  total, weight = metrics['loss']
  return tf.math.divide_no_nan(total, weight)


def _check_examples(examples, spec) -> None:
  """Raises if batches of `examples` do not fit the model's input."""
  try:
    tf.nest.assert_same_structure(examples, spec)
  except (TypeError, ValueError) as e:
    raise ValueError(
      f"public_data must have the structure of the model's input, {spec}."
      f' Found {tf.nest.map_structure(np.shape, examples)}.'
    ) from e
  for array, leaf in zip(
    tf.nest.flatten(examples), tf.nest.flatten(spec), strict=True
  ):
    found = tf.TensorSpec([None, *np.shape(array)[1:]], np.asarray(array).dtype)
    if not leaf.shape.is_compatible_with(found.shape) or (
      leaf.dtype != found.dtype
    ):
      raise ValueError(
        f"public_data must fit the model's input, {leaf}. Found {found}."
      )
