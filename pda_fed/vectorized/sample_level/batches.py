"""What steps of sample-level training read: examples, and batches of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import privacy
from pda_fed.vectorized import canaries as canaries_lib

# A batch is padded to its mean and this many standard deviations: larger ones
# are so rare that the program for them is compiled when they come.
_ROOM_STDDEVS = 4.5
_ROOM_MULTIPLE = 8


class ExampleArrays(NamedTuple):
  """Examples on the device.

  Example: see `SampleTrainer`.

  Attributes:
    inputs: [examples, ...], as they are stored.
    targets: [examples, ...].
  """

  inputs: jax.Array
  targets: jax.Array

  def take(self, rows: jax.Array) -> 'ExampleArrays':
    """Returns some examples."""
    return ExampleArrays(self.inputs[rows], self.targets[rows])


class TrainingArrays(NamedTuple):
  """What steps read.

  Example: see `SampleTrainer`.

  Attributes:
    private: Private examples.
    public: Public ones; None for DP-SGD.
  """

  private: ExampleArrays
  public: Optional[ExampleArrays] = None


class StepInputs(NamedTuple):
  """A step's batches, or with one more leading axis those of several steps.

  Example: see `SampleTrainer`.

  Attributes:
    round_num: The step.
    rows: Of private examples, [room].
    present: Which rows are examples; the others are padding.
    learning_rate: Of SGD.
    epoch: t of schedules: whole epochs done before the step.
    public_rows: Of public examples, [public batch]; None for DP-SGD.
    schedules: Values of the method's schedules, by field.
    canaries: The canaries of an audit; None without one.
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
  """Returns how many rows a batch is padded to.

  Args:
    expected_batch: The mean of a batch's size.
    largest: The size of the largest batch that must fit: no example of a batch
      may be left out.
    multiple: Of microbatches; the room is a multiple of it.
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
    plan: Draws them, whatever size they have.
    rounds: Numbers of rounds.
    seed: Of the sampling.
    microbatch_size: See `SampleLevelSettings`.

  Returns:
    Rows, int32 [rounds, room], and which of them are examples.
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


class Share(NamedTuple):
  """The part of a step's batch that a device computes.

  Attributes:
    start: The place of its first row in the batch.
    rows: As in `StepInputs`.
    present: As in `StepInputs`.
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
  """Returns a device's part of a batch: as many rows as the others have.

  Args:
    inputs: The inputs of one step.
    place: The device's, from 0.
    num_devices: They may be more than the rows; the last ones get padding.
    microbatch_size: See `SampleLevelSettings`; parts are multiples of it.
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
