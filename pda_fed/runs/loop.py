"""The training loop of all methods, engines and tasks.

    while rounds are left: engine.run_rounds; callbacks evaluate, save, watch

A run can be killed at any point and resumed with the same command. It resumes
from the newest intact checkpoint and produces the same rows as without the
kill: a round depends only on the seeds and its number, and checkpoints hold the
rows from which metrics.csv is written.
"""

import bisect
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import time
from typing import Any, Optional

import numpy as np
from pda_fed import errors
from pda_fed.common import signals
from pda_fed.runs import outputs
from pda_fed.runs import overview
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib

AGAIN = 'The same command resumes the run.'


@dataclasses.dataclass
class Record:
  """The loop's part of a checkpoint, as JSON values.

  Attributes:
    rows: The rows of metrics.csv, without epsilon.
    pending: Metrics of the rounds since the last row.
    seconds: Training time in seconds, without evaluations.
    warm_start: Figures of the pre-training.
  """

  rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  pending: list[dict[str, float]] = dataclasses.field(default_factory=list)
  seconds: float = 0.0
  warm_start: Optional[dict[str, float]] = None


class Callback:
  """One concern of a loop beside its rounds; this one does nothing.

  Callbacks are called in the order in which `training` lists them.
  """

  def restore(self, loop: 'Loop', arrays: dict[str, np.ndarray]) -> None:
    """Takes its arrays out of those of a checkpoint, when a run resumes."""

  def opened(self, loop: 'Loop') -> None:
    """Called when a new run has initial weights, or an old one is restored."""

  def pretraining(self, loop: 'Loop', epoch: int, loss: float) -> None:
    """Called after each epoch of a warm start, with its held-out loss."""

  def waiting(self, loop: 'Loop') -> None:
    """Called while another process trains the same warm start."""

  def start(self, loop: 'Loop') -> None:
    """Called before the first round of this process."""

  def must_stop(self, loop: 'Loop', done: int) -> bool:
    """Returns whether the engine must return after this number of rounds."""
    return False

  def rounds(self, loop: 'Loop', metrics: list[dict[str, Any]]) -> None:
    """Called with the metrics of new rounds; `loop.done` counts them."""

  def step(self, loop: 'Loop') -> None:
    """Called before the first round, and when all know of new rounds."""

  def rows(self, loop: 'Loop', rows: Sequence[dict[str, Any]]) -> None:
    """Called with new rows of metrics.csv."""

  def failed(self, loop: 'Loop', error: errors.PdaFedError) -> None:
    """Called if the engine failed; nothing is kept of the failed round."""

  def stopped(self, loop: 'Loop') -> None:
    """Called if a signal has stopped the run."""

  def arrays(self, loop: 'Loop') -> dict[str, np.ndarray]:
    """Returns arrays for a checkpoint; see `restore`."""
    return {}

  def result(self, loop: 'Loop') -> dict[str, Any]:
    """Returns fields of result.json."""
    return {}

  def close(self) -> None:
    """Called at the end, also after an error."""


class Loop:
  """A run in progress.

  Attributes:
    run: The run.
    folder: Its folder.
    engine: Its engine.
    state: The engine's state.
    done: The number of rounds done.
    record: What a checkpoint holds beside arrays.
    evaluated: The numbers of rounds after which the model is evaluated.
    epsilons: Epsilon after each of them; None without dp_accounting.
    is_resumed: Whether the run goes on from a checkpoint.
    raise_if_stopped: Raises StoppedError with a message if a signal has come.
  """

  def __init__(
    self,
    run: resolving.Run,
    folder: outputs.RunFolder,
    engine: engine_lib.Engine,
    stop: signals.StopSignals,
    callbacks: Sequence[Callback],
  ):
    self.run = run
    self.folder = folder
    self.engine = engine
    self.state: Any = None
    self.done = 0
    self.record = Record()
    total = run.plan.rounds
    self.evaluated = [*range(0, total, run.rounds_per_evaluation), total]
    self.epsilons = overview.spent(run.plan, self.evaluated)
    self.is_resumed = False
    self.raise_if_stopped = stop.raise_if_stopped
    self._stop = stop
    self._callbacks = callbacks

  def execute(self) -> dict[str, Any]:
    """Starts or resumes the run, and returns its result."""
    plan, run = self.run.plan, self.run
    for name in ('opened', 'start', 'step'):
      self.tell(name)
    while self.done < plan.rounds:
      self._stop_if_asked()
      metrics = self._train()
      self.tell('rounds', metrics)
      self.tell('step')
    self._stop_if_asked()
    result = {
      'method': run.method.name,
      'dataset': run.data.name,
      'engine': run.engine,
      'rounds': plan.rounds,
      'epsilon': self.epsilon,
      'delta': plan.delta,
      'noise_multiplier': plan.noise_multiplier,
      'seed': run.spec.seed,
      'seconds_per_round': self.record.seconds / plan.rounds,
      'warm_start': None,
      'audit': None,
    }
    for callback in self._callbacks:
      result |= callback.result(self)
    return result

  def tell(self, name: str, *arguments: Any) -> None:
    """Calls a method of all callbacks.

    Args:
      name: The method.
      *arguments: Its arguments after the loop.
    """
    for callback in self._callbacks:
      getattr(callback, name)(self, *arguments)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint."""
    found = self.engine.to_arrays(self.state)
    for callback in self._callbacks:
      found |= callback.arrays(self)
    return found

  @property
  def weights(self) -> engine_lib.Weights:
    """The model's weights."""
    return self.engine.get_weights(self.state)

  @property
  def epsilon(self) -> Optional[float]:
    """Epsilon of the whole run; None without dp_accounting."""
    return self.epsilon_at(self.run.plan.rounds)

  def epsilon_at(self, done: int) -> Optional[float]:
    """Returns epsilon of the next evaluated round: at least what is spent."""
    if self.epsilons is None:
      return None
    place = bisect.bisect_left(self.evaluated, done)
    return self.epsilons[self.evaluated[place]]

  @contextlib.contextmanager
  def engine_may_fail(self) -> Iterator[None]:
    """Tells callbacks if the engine fails.

    A round is complete when the engine has returned it. Nothing is kept of a
    round that failed; when it is repeated, it is the same round.

    Yields:
      Nothing.
    """
    try:
      yield
    except errors.PdaFedError as e:
      self.tell('failed', e)
      raise

  def _train(self) -> list[dict[str, Any]]:
    """Runs rounds until a callback needs the loop; returns their metrics."""
    stop = self.done + 1
    most = self.done + self.run.rounds_per_dispatch
    while stop < most and not any(
      c.must_stop(self, stop) for c in self._callbacks
    ):
      stop += 1
    started = time.monotonic()
    with self.engine_may_fail():
      self.state, metrics = self.engine.run_rounds(
        self.state, self.done, stop - self.done
      )
    waited = time.monotonic() - started
    # Engines that compute several runs together know this run's share.
    shares = [row.pop('seconds', None) for row in metrics]
    self.record.seconds += waited if None in shares else sum(shares)
    self.done = stop
    return metrics

  def _stop_if_asked(self) -> None:
    if self._stop.signum is not None:
      self.tell('stopped')
      self.raise_if_stopped(f'saved after round {self.done}. {AGAIN}')
