"""The interface between the training loop and engines.

An engine knows a task, its data and how to compute rounds; the loop knows none
of these. The federated engines (TFF, JAX) and the sample-level engine share
this interface, and therefore the loop, checkpoints and comparisons.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Protocol

import numpy as np
from pda_fed import audit
from pda_fed import errors
from pda_fed import privacy
from pda_fed.runs import resolving

# The engine's state; opaque to the loop.
State = Any
# The model's weights by name, such as 'dense_1/kernel'.
Weights = Mapping[str, np.ndarray]
# Called with the number of epochs and the loss on held-out public data.
EpochFn = Callable[[int, float], None]

# Metrics of which a row of metrics.csv shows the last round's value. For all
# other training metrics it shows the mean since the previous row.
LAST_VALUES = ('alpha', 'clip_norm')

# The metric of a round that an audit reads; see `audit.Auditor`.
CANARY_SCORES = 'canary_scores'

# Metrics that evaluations may return.
METRICS = ('loss', 'accuracy', 'accuracy_with_oov', 'perplexity')

# Names of a checkpoint's arrays that all engines of a task share. Arrays of a
# single engine are named `<engine>/...`.
WEIGHTS = 'weights'
OPTIMIZER = 'optimizer'
CLIP_NORM = 'clip_norm'
METHOD = 'method'
# The state of TFF's tree aggregation: its generator and its noise, which are as
# secret as a seed.
SECRET = 'tff/aggregator'


class Engine(Protocol):
  """Computes rounds, evaluations and warm starts of one run.

  Everything random depends only on the run's seeds and the round: a round that
  is repeated after a resume is the same round.

  Example:

  ```
  with open_engine(run, seeds) as engine:
    state = engine.initialize()
  ```

  Attributes:
    name: The engine's name: 'tff' or 'jax'.
    canaries: The canaries of an audited run, otherwise None. With canaries, the
      metrics of a round include their scores as `CANARY_SCORES`.
  """

  name: str
  canaries: Optional[audit.Canaries]

  def order_of_sums(self) -> dict[str, Any]:
    """Returns the values that determine the order of floating-point sums.

    A round repeated in a different order would add the same noise to a sum with
    different last digits: the difference between the two has no noise.

    Returns:
      JSON values by name. Settings are named like their flags.
    """

  def initialize(self) -> State:
    """Returns the state before round 0, with random weights from the seed."""

  def run_rounds(
    self, state: State, first_round: int, num_rounds: int
  ) -> tuple[State, list[dict[str, Any]]]:
    """Runs rounds `first_round` to `first_round + num_rounds - 1`.

    Args:
      state: The state after `first_round` rounds.
      first_round: The number of the first round, from 0.
      num_rounds: The number of rounds, at least 1.

    Returns:
      The new state, and the metrics of each round: `train_loss`, `alpha`,
      `clients`, `diverged_clients`, `clip_norm`, `private_norm`, `public_norm`,
      `mixed_norm`, `cosine`, `public_loss`. Metrics that the engine or method
      does not have are left out. Metrics that are not computed from the noised
      mean and public data (the loss, numbers of clients) are for simulations
      only: epsilon does not cover them.
      If rounds of several runs were computed together, `seconds` is this run's
      share of the time; otherwise the loop measures the time.
    """

  def evaluate(
    self,
    weights: Weights,
    group: str,
    max_users: Optional[int] = None,
  ) -> dict[str, float]:
    """Returns the model's metrics on held-out data.

    Args:
      weights: Weights from `get_weights`.
      group: 'validation' or 'test'.
      max_users: The maximum number of users (or examples). They are always the
        same ones. None takes all.

    Returns:
      `loss` and the task's other metrics: `accuracy`, `perplexity`, ...
    """

  def pretrain(
    self, on_epoch: Optional[EpochFn] = None
  ) -> tuple[Weights, dict[str, float]]:
    """Trains on public data only; the loop caches the result.

    Args:
      on_epoch: Called after each epoch; may raise to stop.

    Returns:
      The weights, and figures of the training such as `epochs`.
    """

  def get_weights(self, state: State) -> Weights:
    """Returns the model's weights as float32, in the order of their names."""

  def set_weights(self, state: State, weights: Weights) -> State:
    """Returns the state with the given weights."""

  def to_arrays(self, state: State) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint.

    Args:
      state: Any state.

    Returns:
      `weights/dense_1/kernel`, ...; `optimizer/0`, ... (the state of the server
      optimizer; none for SGD without momentum); `method/0`, ... (the method's
      memory); `clip_norm`; and this engine's own arrays under `<engine>/`.
      Never a seed.
    """

  def from_arrays(
    self, arrays: Mapping[str, np.ndarray], round_num: int
  ) -> State:
    """Returns the state that `to_arrays` was given.

    Args:
      arrays: The arrays of a checkpoint.
      round_num: The number of rounds done.

    Raises:
      CheckpointError: If the arrays belong to another model, or to an engine
        whose state this engine cannot use.
    """


def make_canaries(
  run: resolving.Run,
  seeds: privacy.SeedStreams,
  shapes: Iterable[tuple[int, ...]],
) -> Optional[audit.Canaries]:
  """Returns the canaries of a run, or None.

  Args:
    run: The run.
    seeds: The run's seeds.
    shapes: The shapes of the model's arrays.

  Raises:
    ValueError: If there are too many canaries for the model.
  """
  if run.spec.audit.audit is None:
    return None
  shapes = list(shapes)
  count = run.spec.audit.audit_canaries or audit.usual_count(shapes)
  canaries = audit.Canaries(shapes, run.plan, seed=seeds.audit, count=count)
  # Also built if only a copy is audited, to find invalid settings early.
  return None if run.spec.audit.audit == 'copy' else canaries


def as_numbers(found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the metrics of a round as floats; scores remain an array."""
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
  """Checks that a checkpoint fits the model, mechanism and optimizer.

  Args:
    expected: The result of `to_arrays` for a new state.
    found: A checkpoint's arrays.
    engine: The engine's name.
    any_shape: The shapes of names with this prefix are not checked.

  Raises:
    CheckpointError: If names or shapes differ.
  """
  strange = {n for n in expected if n not in found}
  strange |= {n for n in found if '/' in n and n not in expected}
  if strange:
    raise errors.CheckpointError(
      'The checkpoint is from another engine, mechanism or optimizer, and'
      f' {engine} cannot use its state: {", ".join(sorted(strange)[:3])} ...'
    )
  for name, array in expected.items():
    shape = np.shape(found[name])
    is_free = any_shape is not None and name.startswith(any_shape)
    if not is_free and array.shape != shape:
      raise errors.CheckpointError(
        f'{name} of the checkpoint must have the shape {array.shape}, like the'
        f' model. Found {shape}.'
      )


def prefixed(prefix: str, weights: Weights) -> dict[str, np.ndarray]:
  """Returns `{prefix/dense_1/kernel: ..., ...}`."""
  return {f'{prefix}/{n}': np.asarray(w) for n, w in weights.items()}


def from_prefixed(prefix: str, arrays: Weights) -> dict[str, np.ndarray]:
  """Returns the weights that `prefixed` named."""
  return {
    name.removeprefix(f'{prefix}/'): array
    for name, array in arrays.items()
    if name.startswith(f'{prefix}/')
  }


def numbered(prefix: str, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
  """Returns `{prefix/0: ..., prefix/1: ...}`."""
  return {f'{prefix}/{i}': np.asarray(a) for i, a in enumerate(arrays)}


def from_numbered(
  prefix: str, arrays: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
  """Returns the arrays that `numbered` named, in their order."""
  count = sum(name.startswith(f'{prefix}/') for name in arrays)
  return [arrays[f'{prefix}/{i}'] for i in range(count)]
