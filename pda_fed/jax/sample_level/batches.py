"""Inputs of sample-level training: examples, and batches of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import privacy
from pda_fed.jax import canaries as canaries_lib
from pda_fed.jax.sample_level import settings as settings_lib

# A batch is padded to the mean size plus this many standard deviations. Larger
# batches are so rare that a program is compiled for them when they occur.
_ROOM_STDDEVS = 4.5
_ROOM_MULTIPLE = 8


class ExampleArrays(NamedTuple):
  """Examples on the device.

  Example: see `SampleTrainer`.

  Attributes:
    inputs: [examples, ...], in their stored format.
    targets: [examples, ...].
  """

  inputs: jax.Array
  targets: jax.Array

  def take(self, rows: jax.Array) -> 'ExampleArrays':
    """Returns some examples."""
    return ExampleArrays(self.inputs[rows], self.targets[rows])


def check_lengths(name: str, examples: ExampleArrays) -> None:
  """Raises ValueError unless each input has its target."""
  if len(examples.inputs) != len(examples.targets):
    raise ValueError(
      f'{name} must have as many inputs as targets. Found'
      f' {len(examples.inputs)} and {len(examples.targets)}.'
    )


class TrainingArrays(NamedTuple):
  """Data of training steps.

  Example: see `SampleTrainer`.

  Attributes:
    private: Private examples.
    public: Public examples; None for DP-SGD.
  """

  private: ExampleArrays
  public: Optional[ExampleArrays] = None


class StepInputs(NamedTuple):
  """The batches of a step, or of several steps with a leading axis.

  Example: see `SampleTrainer`.

  Attributes:
    round_num: Index of the step.
    rows: Indices of private examples, [room].
    present: True for examples and False for padding, [room].
    learning_rate: The factor of the optimizer's steps: with `optax.sgd(1.0)`,
      the learning rate.
    epoch: Number of whole epochs completed before the step; t of the schedules.
    public_rows: Indices of public examples, [public batch]; None for DP-SGD.
    schedules: Values of the method's schedules, by field name.
    canaries: The canaries of an audit; None without an audit.
  """

  round_num: np.ndarray
  rows: np.ndarray
  present: np.ndarray
  learning_rate: np.ndarray
  epoch: np.ndarray
  public_rows: Optional[np.ndarray] = None
  schedules: Mapping[str, np.ndarray] = {}
  canaries: Optional[canaries_lib.CanaryInputs] = None


def batch_room(expected_batch: float, largest: int, multiple: int = 1) -> int:
  """Returns the number of rows that a batch is padded to.

  Args:
    expected_batch: The expected batch size.
    largest: The size of the largest batch. It must fit: no example of a batch
      may be dropped.
    multiple: The result is a multiple of this, the microbatch size.
  """
  usual = expected_batch + _ROOM_STDDEVS * expected_batch**0.5
  unit = multiple if multiple > 1 else _ROOM_MULTIPLE
  return int(-(-max(usual, largest) // unit) * unit)


def draw_batches(
  plan: privacy.PrivacyPlan,
  rounds: Sequence[int],
  seed: int,
  microbatch_size: Optional[int] = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the batches of some rounds, padded to one size.

  Example:

    >>> plan = privacy.PrivacyPlan(
    ...   population=1000, expected_cohort=10, rounds=3, delta=1e-4,
    ...   noise_multiplier=1.0, clip_norm=1.0, unit='example',
    ... )
    >>> rows, present = draw_batches(plan, range(3), seed=0)
    >>> sizes = [len(plan.cohort(t, seed=0)) for t in range(3)]
    >>> present.sum(axis=1).tolist() == sizes
    True

  Args:
    plan: The privacy plan, which samples the batches.
    rounds: Indices of the rounds.
    seed: Sampling seed.
    microbatch_size: See `SampleLevelSettings`.

  Returns:
    Rows, int32 [rounds, room], and a mask that is False for padding.
  """
  cohorts = [plan.cohort(t, seed) for t in rounds]
  room = batch_room(
    plan.expected_cohort, max(map(len, cohorts)), microbatch_size or 1
  )
  rows = np.zeros((len(cohorts), room), np.int32)
  present = np.zeros(rows.shape, bool)
  for i, cohort in enumerate(cohorts):
    rows[i, : len(cohort)] = cohort
    present[i, : len(cohort)] = True
  return rows, present


def inputs_of_step(
  settings: settings_lib.SampleLevelSettings, round_num: int, rows: np.ndarray
) -> StepInputs:
  """Returns the inputs of one step, without public examples.

  Args:
    settings: The settings of the run.
    round_num: The index of the step.
    rows: The private examples of its batch.
  """
  plan = settings.plan
  room = batch_room(
    plan.expected_cohort, len(rows), settings.microbatch_size or 1
  )
  epoch = int(round_num * plan.sampling_rate)
  schedules = settings.method.schedules_at(epoch)
  return StepInputs(
    round_num=np.asarray(round_num, np.int32),
    rows=np.pad(rows, (0, room - len(rows))).astype(np.int32),
    present=np.arange(room) < len(rows),
    learning_rate=np.ones((), np.float32),
    epoch=np.asarray(epoch, np.int32),
    schedules={n: np.asarray(v, np.float32) for n, v in schedules.items()},
  )


class Share(NamedTuple):
  """The part of a step's batch that a device computes.

  Attributes:
    start: The index of its first row in the batch.
    rows: See `StepInputs`.
    present: See `StepInputs`.
  """

  start: jax.Array
  rows: jax.Array
  present: jax.Array


def share_of(
  inputs: StepInputs,
  place: jax.Array,
  num_devices: int,
  microbatch_size: Optional[int] = None,
) -> Share:
  """Returns a device's part of a batch; all parts have the same size.

  Args:
    inputs: The inputs of one step.
    place: The index of the device, from 0.
    num_devices: Number of devices. If there are more devices than rows, the
      last ones get padding.
    microbatch_size: See `SampleLevelSettings`. Parts are multiples of it.
  """
  room = len(inputs.rows)
  size = -(-room // num_devices)
  unit = min(microbatch_size or size, size)
  size = -(-size // unit) * unit
  margin = (0, num_devices * size - room)
  start = place * size

  def own(rows):
    return jax.lax.dynamic_slice_in_dim(jnp.pad(rows, margin), start, size)

  return Share(start, own(inputs.rows), own(inputs.present))
