"""The door between the loop and what computes: engines and their states.

An engine knows a task, its data and a way to compute rounds; the loop knows
none of these. Both engines of the federated experiments (TFF, JAX) and those
of the sample-level ones go through this door, so that there is one loop, one
checkpoint and one comparison for all.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Protocol

import numpy as np
from pda_fed import audit
from pda_fed import privacy
from pda_fed.experiments import config as config_lib
from pda_fed.experiments import errors

# Opaque to the loop.
State = Any
# Called with the number of epochs and the loss on held-out public data.
EpochFn = Callable[[int, float], None]

# Training metrics of a round of which a row of metrics.csv shows the last
# value; of all others it shows the mean since the row before.
LAST_VALUES = ('alpha', 'clip_norm')

# Among the metrics of a round, what an audit reads: see `audit.Auditor`.
CANARY_SCORES = 'canary_scores'

# What evaluations of this project's engines give, all or some of it.
METRICS = ('loss', 'accuracy', 'accuracy_with_oov', 'perplexity')

# Names of a checkpoint's arrays that all engines of a task share. What only one
# engine has is named `<engine>/...`.
WEIGHTS = 'weights'
MOMENTUM = 'momentum'
SQUARES = 'squares'
CLIP_NORM = 'clip_norm'
METHOD = 'method'
# Of TFF's tree: its generator and its noise, which are as secret as a seed.
SECRET = 'tff/aggregator'


class Engine(Protocol):
  """Computes rounds, evaluations and warm starts of one run.

  Everything random depends on the run's seeds and the round alone: a round
  that is run again, after a resume, is the same round.

  Example:

  ```
  with open_engine(config, seeds) as engine:
    state = engine.initialize()
  ```

  Attributes:
    name: 'tff', 'jax'.
    canaries: Those of a run that is audited, else None. Metrics of a round then
      have their scores, `CANARY_SCORES`.
  """

  name: str
  canaries: Optional[audit.Canaries]

  def order_of_sums(self) -> dict[str, Any]:
    """Returns what the order of floating-point sums depends on.

    A round that is run again with another order would have the same noise on a
    sum that differs in its last digits: the difference has no noise.

    Returns:
      JSON values by name; those that are settings have the names of flags.
    """

  def initialize(self) -> State:
    """Returns the state before round 0, with random weights by the seed."""

  def run_rounds(
    self, state: State, first_round: int, num_rounds: int
  ) -> tuple[State, list[dict[str, float]]]:
    """Runs rounds `first_round` to `first_round + num_rounds - 1`.

    Args:
      state: After `first_round` rounds.
      first_round: From 0.
      num_rounds: At least 1.

    Returns:
      The new state, and for each round its metrics: `train_loss`, `alpha`,
      `clients`, `diverged_clients`, `clip_norm`, `private_norm`, `public_norm`,
      `mixed_norm`, `cosine`, `public_loss`; those that an engine or method does
      not have are left out. What is not computed from the noised mean and
      public data (the loss, numbers of clients) is for the simulation: epsilon
      does not cover it.
      `seconds` is there if rounds were computed together with those of other
      runs: what this one took of the time. Else the loop takes it all.
    """

  def evaluate(
    self,
    weights: list[np.ndarray],
    group: str,
    max_users: Optional[int] = None,
  ) -> dict[str, float]:
    """Returns the model's metrics on held-out data.

    Args:
      weights: As `get_weights` gives them.
      group: 'validation' or 'test'.
      max_users: The most users (or examples) taken, always the same ones; None
        takes all.

    Returns:
      `loss` and what the task has: `accuracy`, `perplexity`, ...
    """

  def pretrain(
    self, on_epoch: Optional[EpochFn] = None
  ) -> tuple[list[np.ndarray], dict[str, float]]:
    """Trains on the public data alone; the loop keeps the result by settings.

    Args:
      on_epoch: May raise, to stop.

    Returns:
      The weights, and figures of the training such as `epochs`.
    """

  def get_weights(self, state: State) -> list[np.ndarray]:
    """Returns the model's weights as float32, in the Keras model's order."""

  def set_weights(self, state: State, weights: list[np.ndarray]) -> State:
    """Returns the state with other weights."""

  def to_arrays(self, state: State) -> dict[str, np.ndarray]:
    """Returns what a checkpoint keeps.

    Args:
      state: Any state.

    Returns:
      `weights/0`, `weights/1`, ...; `momentum/0`, ... (the server optimizer's,
      none for SGD without momentum); `squares/0`, ... (of Adam and Yogi);
      `method/0`, ... (what the method remembers);
      `clip_norm`; and what only this engine has under
      `<engine>/`. Never a seed.
    """

  def from_arrays(
    self, arrays: Mapping[str, np.ndarray], round_num: int
  ) -> State:
    """Returns the state that `to_arrays` was given.

    Args:
      arrays: Of a checkpoint.
      round_num: How many rounds were done.

    Raises:
      CheckpointError: If they are not of this model, or of an engine whose
        state this one cannot go on with.
    """


def make_canaries(
  config: config_lib.RunConfig,
  seeds: privacy.SeedStreams,
  shapes: Sequence[tuple[int, ...]],
) -> Optional[audit.Canaries]:
  """Returns the canaries that take part in a run, or None.

  Args:
    config: The run's settings.
    seeds: The run's seeds.
    shapes: The shapes of the model's arrays.

  Raises:
    ValueError: If they are too many for the model.
  """
  if config.audit is None:
    return None
  count = config.audit.canaries or audit.usual_count(shapes)
  canaries = audit.Canaries(shapes, config.plan, seed=seeds.audit, count=count)
  # Made for a copy, too: settings that do not fit are found before it.
  return None if config.audit.copy else canaries


def as_numbers(found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the metrics of a round as numbers; scores stay an array."""
  return {
    name: np.asarray(value) if name == CANARY_SCORES else float(value)
    for name, value in found.items()
  }


def check_fit(
  expected: Mapping[str, np.ndarray],
  found: Mapping[str, np.ndarray],
  engine: str,
  *,
  any_shape: Optional[str] = None,
) -> None:
  """Checks that a checkpoint is of this model, mechanism and optimizer.

  Args:
    expected: What `to_arrays` gives for a new state.
    found: A checkpoint's arrays.
    engine: The engine's name.
    any_shape: Names that begin with this are not checked for shapes.

  Raises:
    CheckpointError: If names or shapes differ.
  """
  strange = {n for n in expected if n not in found}
  strange |= {n for n in found if '/' in n and n not in expected}
  if strange:
    raise errors.CheckpointError(
      'The checkpoint is of another engine, mechanism or optimizer, whose state'
      f' {engine} cannot go on with: {", ".join(sorted(strange)[:3])} ...'
    )
  for name, array in expected.items():
    shape = np.shape(found[name])
    is_free = any_shape is not None and name.startswith(any_shape)
    if not is_free and array.shape != shape:
      raise errors.CheckpointError(
        f'{name} of the checkpoint must have the shape {array.shape}, as the'
        f' model. Found {shape}.'
      )


def numbered(prefix: str, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
  """Returns `{prefix/0: ..., prefix/1: ...}`."""
  return {f'{prefix}/{i}': np.asarray(a) for i, a in enumerate(arrays)}


def from_numbered(
  prefix: str, arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
  """Returns the arrays that `numbered` named, in their order."""
  count = sum(name.startswith(f'{prefix}/') for name in arrays)
  return [arrays[f'{prefix}/{i}'] for i in range(count)]
