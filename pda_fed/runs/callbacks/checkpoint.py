"""Saves and restores a run, and marks in its folder what it has run."""

import dataclasses
from typing import Any

from pda_fed import errors
from pda_fed.runs import checkpoints
from pda_fed.runs import hosts
from pda_fed.runs import loop as loop_lib
from pda_fed.runs import resuming


class Checkpoint(loop_lib.Callback):
  """Saves the run at evaluations, or every few rounds."""

  def __init__(self, saved: checkpoints.Checkpoints):
    self._saved = saved
    self._order: dict[str, Any] = {}
    # Rounds and rows that are saved, and rounds that are marked as running.
    self._last = (-1, 0)
    self._marked = 0

  def opened(self, loop) -> None:
    checkpoint = self._saved.latest()
    if checkpoint is None:
      loop.state = loop.engine.initialize()
      return
    loop.record = loop_lib.Record(**checkpoint.record)
    loop.done, loop.is_resumed = checkpoint.round_num, True
    arrays = dict(checkpoint.arrays)
    loop.tell('restore', arrays)
    loop.state = loop.engine.from_arrays(arrays, loop.done)
    self._last = loop.done, len(loop.record.rows)

  def start(self, loop) -> None:
    self._order = loop.engine.order_of_sums()
    if loop.done < loop.run.plan.rounds:
      resuming.check_order(loop.folder, self._order)
    self._mark(loop)

  def _mark(self, loop) -> None:
    total = loop.run.plan.rounds
    following = range(loop.done + 1, total)
    until = next((r for r in following if self.must_stop(loop, r)), total)
    resuming.mark_running(loop.folder, loop.done, until)
    self._marked = loop.done

  def must_stop(self, loop, done: int) -> bool:
    every = loop.run.spec.execution.rounds_per_checkpoint
    if every is None:
      return done in loop.evaluated
    return done == loop.run.plan.rounds or done % every == 0

  def rounds(self, loop, metrics) -> None:
    """Records a new order of sums after the engine ran out of memory.

    Completed rounds had the old order. They are saved first, so that they are
    never repeated.
    """
    order = loop.engine.order_of_sums()
    if order != self._order:
      self._save(loop)
      self._order = order
      resuming.write_order(loop.folder, order)

  def step(self, loop) -> None:
    is_new = self._last != (loop.done, len(loop.record.rows))
    if is_new and self.must_stop(loop, loop.done):
      self._save(loop)
    if self._last[0] == loop.done > self._marked:
      self._mark(loop)

  def _save(self, loop) -> None:
    rows = loop.record.rows
    self._saved.save(
      loop.done,
      loop.arrays(),
      dataclasses.asdict(loop.record),
      good_round=rows[-1]['round'] if rows else None,
    )
    self._last = loop.done, len(rows)

  def failed(self, loop, error: errors.PdaFedError) -> None:
    if self._saved.last_round() != loop.done:
      self._save(loop)
    if isinstance(error, errors.DivergenceError):
      resuming.mark_diverged(loop.folder, loop.done)
      return  # A retry would diverge again.
    if isinstance(error, hosts.HostError):
      # Only the hosts have seen the failed round, and they have the data and
      # the seeds anyway. A different number of devices may repeat it.
      resuming.mark_stopped(loop.folder, loop.done)
    raise errors.EngineError(
      f'{error} Saved after round {loop.done}. {loop_lib.AGAIN}'
    ) from error

  def stopped(self, loop) -> None:
    if self._saved.last_round() != loop.done:
      self._save(loop)
    if loop.done < loop.run.plan.rounds:
      resuming.mark_stopped(loop.folder, loop.done)
