"""Evaluates the model, and writes the rows of metrics.csv."""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
from pda_fed.runs import disclosure
from pda_fed.runs import loop as loop_lib
from pda_fed.runs.engines import base as engine_lib


def _norm(weights: engine_lib.Weights) -> float:
  squares = (np.square(w, dtype=np.float64).sum() for w in weights.values())
  return math.sqrt(sum(squares))


def _summary(pending: Sequence[dict[str, float]]) -> dict[str, float]:
  """Returns the metrics of rounds since the last row.

  The values of alpha and the clip norm are the last ones; other metrics are
  averaged.
  """
  names = {name: None for metrics in pending for name in metrics}
  found = {}
  for name in names:
    values = [m[name] for m in pending if name in m]
    last = name in engine_lib.LAST_VALUES
    found[name] = values[-1] if last else sum(values) / len(values)
  return found


def tested(
  loop: loop_lib.Loop, weights: engine_lib.Weights
) -> dict[str, float]:
  """Returns the test metrics of weights."""
  most = loop.run.spec.evaluation.max_test_users
  return loop.engine.evaluate(weights, 'test', most)


class Evaluation(loop_lib.Callback):
  """Adds a row to metrics.csv every few rounds; tests the final model."""

  def start(self, loop) -> None:
    if loop.is_resumed:
      # Drops rows of rounds after the checkpoint; they will be written again.
      self._release(loop, loop.record.rows)

  def must_stop(self, loop, done: int) -> bool:
    return done in loop.evaluated

  def rounds(self, loop, metrics) -> None:
    names = (name for row in metrics for name in row)
    disclosure.check_round(names, loop.run.method)
    loop.record.pending += metrics

  def step(self, loop) -> None:
    record = loop.record
    is_new = not record.rows or record.rows[-1]['round'] < loop.done
    if not is_new or loop.done not in loop.evaluated:
      return
    weights, most = loop.weights, loop.run.spec.evaluation.max_validation_users
    with loop.engine_may_fail():
      metrics = loop.engine.evaluate(weights, 'validation', most)
    row = {
      'round': loop.done,
      **_summary(record.pending),
      **metrics,
      'weights_norm': _norm(weights),
      'seconds': record.seconds,
    }
    record.pending = []
    record.rows.append(row)
    self._release(loop, [row])

  def _release(self, loop, new_rows: Sequence[dict[str, Any]]) -> None:
    def shown(rows):
      known = loop.epsilons
      return [{**row, 'epsilon': known and known[row['round']]} for row in rows]

    loop.folder.write_metrics(shown(loop.record.rows))
    loop.tell('rows', shown(new_rows))

  def result(self, loop) -> dict[str, Any]:
    test = None
    if loop.run.spec.evaluation.final_test:
      test = tested(loop, loop.weights)
    last = loop.record.rows[-1]
    names = test or disclosure.evaluated(last)
    return {
      'test': test,
      'validation': {name: last[name] for name in names if name in last},
    }
