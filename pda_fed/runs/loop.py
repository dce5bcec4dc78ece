"""The training loop of all methods, engines and tasks.

    for round in rounds: engine.run_rounds; every n rounds: evaluate, save

A run can be killed at any point and resumed with the same command. It resumes
from the newest intact checkpoint and produces the same rows as without the
kill: a round depends only on the seeds and its number, and checkpoints hold the
rows from which metrics.csv is written.
"""

import bisect
from collections.abc import Iterator
import contextlib
import dataclasses
import math
import pathlib
import time
from typing import Any, Optional
import warnings

import numpy as np
from pda_fed import audit
from pda_fed import errors as base_errors
from pda_fed.common import signals
from pda_fed.runs import checkpoints as checkpoints_lib
from pda_fed.runs import disclosure
from pda_fed.runs import epsilons
from pda_fed.runs import errors
from pda_fed.runs import guards
from pda_fed.runs import hosts as hosts_lib
from pda_fed.runs import outputs
from pda_fed.runs import overview
from pda_fed.runs import progress as progress_lib
from pda_fed.runs import resolving
from pda_fed.runs import tensorboard
from pda_fed.runs import warm_start
from pda_fed.runs.engines import base as engine_lib

# Prefix of the auditor's arrays in a checkpoint.
_AUDIT = 'audit/'
_AGAIN = 'The same command resumes the run.'
# Minimum number of rounds for a time estimate, which costs two rounds.
_LONG_RUN = 20


def evaluated_rounds(run: resolving.Run) -> list[int]:
  """Returns after which numbers of rounds the model is evaluated."""
  rounds = range(0, run.plan.rounds, run.rounds_per_evaluation)
  return [*rounds, run.plan.rounds]


def _norm(weights: list[np.ndarray]) -> float:
  squares = (np.square(w, dtype=np.float64).sum() for w in weights)
  return math.sqrt(sum(squares))


@dataclasses.dataclass
class _Record:
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

  def take_pending(self) -> dict[str, float]:
    """Returns the metrics of the rounds since the last row, and clears them.

    The values of alpha and the clip norm are the last ones; other metrics are
    averaged.
    """
    names = {name: None for metrics in self.pending for name in metrics}
    taken = {}
    for name in names:
      values = [m[name] for m in self.pending if name in m]
      last = name in engine_lib.LAST_VALUES
      taken[name] = values[-1] if last else sum(values) / len(values)
    self.pending = []
    return taken


class Loop:
  """A run in progress."""

  def __init__(
    self,
    run: resolving.Run,
    folder: outputs.RunFolder,
    engine: engine_lib.Engine,
    stop: signals.StopSignals,
    progress: progress_lib.Progress,
  ):
    self._run = run
    self._folder = folder
    self._engine = engine
    self._stop = stop
    self._progress = progress
    self._checkpoints = checkpoints_lib.Checkpoints(
      folder.checkpoints_path, run.spec.execution.checkpoints_kept
    )
    self._evaluated = evaluated_rounds(run)
    self._epsilons = epsilons.spent(run.plan, self._evaluated)
    self._log = tensorboard.TensorBoardLog(folder.tensorboard_path)
    self._record = _Record()
    self._guard = guards.Guard(run)
    self._auditor = None
    if engine.canaries is not None:
      self._auditor = audit.Auditor(engine.canaries)
    self._state = None
    self._done = 0
    self._order: dict[str, Any] = {}

  def close(self) -> None:
    self._log.close()

  def run(self, warm_start_dir: pathlib.Path) -> dict[str, Any]:
    """Starts or resumes the run, and returns its result."""
    total = self._run.plan.rounds
    is_resumed = self._resume()
    if not is_resumed:
      self._state = self._engine.initialize()
    self._show_overview()
    if not is_resumed:
      self._start(warm_start_dir)
    self._order = self._engine.order_of_sums()
    if self._done < total:
      self._folder.check_order(self._order)
    self._folder.mark_running(self._done, self._next_save())
    with self._saved_if_the_engine_fails():
      self._show_time()
    self._progress.start(self._done, total)
    if self._lacks_row():
      self._evaluate()
      self._check_bounds()
      self._save()
    while self._done < total:
      self._stop_if_asked()
      with self._saved_if_the_engine_fails():
        self._train()
        self._note_order()
        is_evaluated = self._lacks_row()
        if is_evaluated:
          self._evaluate()
      if is_evaluated:
        self._check_bounds()  # Before the round is saved.
      if self._is_saved(self._done):
        self._save()
        self._folder.mark_running(self._done, self._next_save())
    self._stop_if_asked()
    return self._result(warm_start_dir)

  def _lacks_row(self) -> bool:
    """Returns whether the model should be evaluated now and was not yet."""
    rows = self._record.rows
    is_new = not rows or rows[-1]['round'] < self._done
    return is_new and self._done in self._evaluated

  @contextlib.contextmanager
  def _saved_if_the_engine_fails(self) -> Iterator[None]:
    """Saves completed rounds if the engine fails.

    A round is complete when the engine has returned it. Nothing is kept of a
    round that failed; when it is repeated, it is the same round.

    Yields:
      Nothing.

    Raises:
      EngineError: If the engine fails.
    """
    try:
      yield
    except base_errors.PdaFedError as e:
      if self._checkpoints.last_round() != self._done:
        self._save()
      if isinstance(e, base_errors.DivergenceError):
        self._folder.mark_diverged(self._done)
        raise  # A retry would diverge again.
      if isinstance(e, hosts_lib.HostError):
        # Only the hosts have seen the failed round, and they have the data and
        # the seeds anyway. A different number of devices may repeat it.
        self._folder.mark_stopped(self._done)
      raise errors.EngineError(
        f'{e} Saved after round {self._done}. {_AGAIN}'
      ) from e

  def _show_overview(self) -> None:
    """Shows the run's overview, and warnings about its settings."""
    run, plan = self._run, self._run.plan
    epsilon = None if self._epsilons is None else self._epsilons[plan.rounds]
    weights = self._engine.get_weights(self._state)
    num_weights = sum(int(w.size) for w in weights)
    data = run.data.about
    sizes = data.get('users') or data.get('examples')
    self._progress.overview(
      overview.describe(run, epsilon, sizes=sizes, num_weights=num_weights)
    )
    found = overview.cautions(plan, epsilon, num_weights)
    for caution in (*self._progress.cautions, *found):
      warnings.warn(caution, stacklevel=2)

  def _show_time(self) -> None:
    """Shows the estimated time, from a round that is run and discarded."""
    left = self._run.plan.rounds - self._done
    is_shared = getattr(self._engine, 'is_shared', False)
    if not self._progress.shows_time or is_shared or left < _LONG_RUN:
      return
    for _ in range(2):  # The first one compiles.
      started = time.monotonic()
      self._engine.run_rounds(self._state, self._done, 1)
      seconds = time.monotonic() - started
    self._progress.overview([overview.describe_time(seconds, left)])

  def _check_bounds(self) -> None:
    """Ends the run if the newest model is out of bounds."""
    try:
      self._guard.check(self._record.rows)
    except base_errors.DivergenceError as e:
      self._folder.mark_diverged(self._done)
      before = self._record.rows[:-1]
      good = before[-1]['round'] if before else -1
      path = self._checkpoints.newest_until(good)
      saved = f'The last good checkpoint: {path}.' if path else ''
      if path:
        # Later checkpoints were not evaluated, and exports use the newest one.
        self._checkpoints.remove_after(good)
      raise base_errors.DivergenceError(f'{e} {saved}'.strip()) from e

  def _start(self, warm_start_dir: pathlib.Path) -> None:
    state = self._state
    if self._run.method.warm_start:
      weights, self._record.warm_start = warm_start.load_or_pretrain(
        self._engine,
        self._run.pretraining_settings(),
        warm_start_dir,
        on_epoch=self._on_epoch,
        while_waiting=self._while_waiting,
      )
      state = self._engine.set_weights(state, weights)
    self._state = state
    if self._auditor:
      self._auditor.start(self._engine.get_weights(state))

  def _on_epoch(self, epoch: int, loss: float) -> None:
    self._progress.pretraining(epoch, loss)
    self._stop.raise_if_stopped(
      'stopped in pre-training. The same command starts it over.'
    )

  def _while_waiting(self) -> None:
    self._progress.waiting()
    self._stop.raise_if_stopped(f'stopped before the first round. {_AGAIN}')

  def _resume(self) -> bool:
    checkpoint = self._checkpoints.latest()
    if checkpoint is None:
      return False
    try:
      self._record = _Record(**checkpoint.record)
    except TypeError as e:
      raise errors.CheckpointError(
        f'The checkpoint of round {checkpoint.round_num} is from another'
        f' version of this program: {e}.'
      ) from e
    self._done = checkpoint.round_num
    arrays = dict(checkpoint.arrays)
    audited = {
      name.removeprefix(_AUDIT): arrays.pop(name)
      for name in checkpoint.arrays
      if name.startswith(_AUDIT)
    }
    self._state = self._engine.from_arrays(arrays, self._done)
    if self._auditor:
      self._auditor.from_arrays(audited)
    # Drops rows of rounds after the checkpoint; they will be written again.
    self._release(self._record.rows)
    return True

  def _is_saved(self, done: int) -> bool:
    if self._run.spec.execution.rounds_per_checkpoint is None:
      return done in self._evaluated
    is_last = done == self._run.plan.rounds
    return is_last or done % self._run.spec.execution.rounds_per_checkpoint == 0

  def _next_save(self) -> int:
    """Returns the next round that is saved, or the last round."""
    total = self._run.plan.rounds
    following = range(self._done + 1, total)
    return next(filter(self._is_saved, following), total)

  def _next_stop(self) -> int:
    """Returns the round up to which the engine runs without a break."""
    stop = self._done + 1
    most = self._done + self._run.rounds_per_dispatch
    while stop < most and not (stop in self._evaluated or self._is_saved(stop)):
      stop += 1
    return stop

  def _train(self) -> None:
    started = time.monotonic()
    stop = self._next_stop()
    self._state, metrics = self._engine.run_rounds(
      self._state, self._done, stop - self._done
    )
    waited = time.monotonic() - started
    for row in metrics:
      scores = row.pop(engine_lib.CANARY_SCORES, None)
      if scores is not None:
        self._auditor.add_round(scores)
    shares = [row.pop('seconds', None) for row in metrics]
    names = (name for row in metrics for name in row)
    disclosure.check_round(names, self._run.method)
    self._record.seconds += waited if None in shares else sum(shares)
    self._record.pending += metrics
    self._done = stop
    self._progress.rounds(
      self._done, {**metrics[-1], 'epsilon': self._epsilon_bound()}
    )

  def _note_order(self) -> None:
    """Records a new order of sums after the engine ran out of memory.

    Completed rounds had the old order. They are saved first, so that they are
    never repeated.
    """
    order = self._engine.order_of_sums()
    if order != self._order:
      self._save()
      self._order = order
      self._folder.write_order(order)

  def _epsilon_bound(self) -> Optional[float]:
    """Returns epsilon of the next evaluated round: at least what is spent."""
    if self._epsilons is None:
      return None
    place = bisect.bisect_left(self._evaluated, self._done)
    return self._epsilons[self._evaluated[place]]

  def _evaluate(self) -> None:
    weights = self._engine.get_weights(self._state)
    metrics = self._engine.evaluate(
      weights, 'validation', self._run.spec.evaluation.max_validation_users
    )
    row = {
      'round': self._done,
      **self._record.take_pending(),
      **metrics,
      'weights_norm': _norm(weights),
      'seconds': self._record.seconds,
    }
    self._record.rows.append(row)
    self._release([row])
    self._progress.evaluated(self._with_epsilon(row))

  def _with_epsilon(self, row: dict[str, Any]) -> dict[str, Any]:
    known = self._epsilons
    return {**row, 'epsilon': known and known[row['round']]}

  def _release(self, new_rows: list[dict[str, Any]]) -> None:
    rows = self._record.rows
    self._folder.write_metrics([self._with_epsilon(row) for row in rows])
    self._log.write([self._with_epsilon(row) for row in new_rows])

  def _save(self) -> None:
    arrays = self._engine.to_arrays(self._state)
    if self._auditor:
      audited = self._auditor.to_arrays()
      arrays |= {f'{_AUDIT}{name}': a for name, a in audited.items()}
    rows = self._record.rows
    self._checkpoints.save(
      self._done,
      arrays,
      dataclasses.asdict(self._record),
      good_round=rows[-1]['round'] if rows else None,
    )

  def _stop_if_asked(self) -> None:
    if self._stop.signum is None:
      return
    if self._checkpoints.last_round() != self._done:
      self._save()
    if self._done < self._run.plan.rounds:
      self._folder.mark_stopped(self._done)
    self._stop.raise_if_stopped(f'saved after round {self._done}. {_AGAIN}')

  def _tested(self, weights: list[np.ndarray]) -> dict[str, float]:
    most = self._run.spec.evaluation.max_test_users
    return self._engine.evaluate(weights, 'test', most)

  def _result(self, warm_start_dir: pathlib.Path) -> dict[str, Any]:
    run, plan = self._run, self._run.plan
    test, start = None, self._record.warm_start
    if run.spec.evaluation.final_test:
      test = self._tested(self._engine.get_weights(self._state))
      # The warm start's own metrics: private rounds can make a model worse.
      weights = start and warm_start.find(
        run.pretraining_settings(), warm_start_dir, start
      )
      if weights:
        start = {**start, 'test': self._tested(weights)}
    last = self._record.rows[-1]
    epsilon = None if self._epsilons is None else self._epsilons[plan.rounds]
    report = None
    if self._auditor:
      weights = self._engine.get_weights(self._state)
      report = self._auditor.report(weights, epsilon).as_dict()
    return {
      'method': run.method.name,
      'dataset': run.data.name,
      'engine': run.engine,
      'rounds': plan.rounds,
      'epsilon': epsilon,
      'delta': plan.delta,
      'noise_multiplier': plan.noise_multiplier,
      'seed': run.spec.seed,
      'test': test,
      'validation': {
        n: last[n] for n in test or disclosure.evaluated(last) if n in last
      },
      'seconds_per_round': self._record.seconds / plan.rounds,
      'warm_start': start,
      'audit': report,
    }
