"""Warns at the first signs of divergence, then ends the run.

What ends a run, the validation loss and the weights, depends only on released
models and on users that do not take part in training. Warnings also use metrics
of private clients, which epsilon does not cover, like metrics.csv.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any, Optional
import warnings

from pda_fed import errors
from pda_fed.runs import checkpoints
from pda_fed.runs import loop as loop_lib
from pda_fed.runs import resolving
from pda_fed.runs import resuming

# The run ends if the validation loss exceeds its first value, or 1, by this
# factor.
_MOST_LOSS_GROWTH = 10.0
# The same for the norm of the weights.
_MOST_WEIGHTS_GROWTH = 1000.0
# A loss above its first value by this factor causes a warning.
_FIRST_SIGN = 1.1
# Thresholds of warnings: the fraction of clients that diverge, the ratio of the
# public users' loss in local training to the private clients', and the ratio of
# the public update's norm to the private one's.
_MANY_DIVERGED = 0.05
_HIGH_PUBLIC_LOSS = 2.0
_LONG_PUBLIC_UPDATE = 10.0


def _value(row: Mapping[str, Any], name: str) -> Optional[float]:
  found = row.get(name)
  return None if found is None else float(found)


def _diverged_share(row: Mapping[str, Any]) -> float:
  diverged, clients = _value(row, 'diverged_clients'), _value(row, 'clients')
  return diverged / clients if diverged and clients else 0.0


def _have_public_users_diverged(
  run: resolving.Run, row: Mapping[str, Any]
) -> bool:
  public, private = _value(row, 'public_loss'), _value(row, 'train_loss')
  trains_locally = run.spec.public.update == 'local_training'
  if not trains_locally or public is None or private is None:
    return False
  if math.isnan(private):
    return False
  # Not `>`: a comparison with NaN is false.
  return not public <= _HIGH_PUBLIC_LOSS * max(private, 1.0)


def _public_over_private(row: Mapping[str, Any]) -> float:
  public, private = _value(row, 'public_norm'), _value(row, 'private_norm')
  if not public or not private:
    return 0.0
  return math.inf if math.isnan(public) else public / private


def likely_cause(run: resolving.Run, row: Mapping[str, Any]) -> str:
  """Returns a sentence that explains why a model probably got worse.

  Args:
    run: The run.
    row: A row of metrics.csv, with means over the rounds since the last row.
  """
  share = _diverged_share(row)
  if share > _MANY_DIVERGED:
    return (
      'Probably client.learning_rate='
      f'{run.spec.client.learning_rate:g} is too high:'
      f' {share:.0%} of the clients diverged in local training. Lower it, or'
      ' set --client.gradient_clip.'
    )
  ratio = _public_over_private(row)
  if ratio > _LONG_PUBLIC_UPDATE:
    return (
      f'Probably the public update is too large: {ratio:.3g} times the norm of'
      ' the private update. --public.clip_norm=private bounds it.'
    )
  return (
    f'Probably server.learning_rate={run.spec.server.learning_rate:g} is too'
    f' high for this noise (sigma {run.plan.noise_multiplier:g}, cohorts of'
    f' {run.plan.expected_cohort:g}).'
  )


class Guard(loop_lib.Callback):
  """Watches the rows of a run; gives each kind of warning once."""

  def __init__(self, run: resolving.Run):
    self._run = run
    self._checked = 0
    self._warned: set[str] = set()

  def step(self, loop) -> None:
    rows = loop.record.rows
    if len(rows) <= self._checked:
      return
    self._checked = len(rows)
    try:
      self.check(rows)
    except errors.DivergenceError as e:
      resuming.mark_diverged(loop.folder, loop.done)
      good = rows[-2]['round'] if len(rows) > 1 else -1
      saved = checkpoints.Checkpoints(loop.folder.checkpoints_path)
      path = saved.newest_until(good)
      where = f'The last good checkpoint: {path}.' if path else ''
      if path:
        # Later checkpoints were not evaluated, and exports use the newest one.
        saved.remove_after(good)
      raise errors.DivergenceError(f'{e} {where}'.strip()) from e

  def restore(self, loop, arrays) -> None:
    self._checked = len(loop.record.rows)

  def _warn(self, kind: str, message: str) -> None:
    if kind not in self._warned:
      self._warned.add(kind)
      warnings.warn(message, stacklevel=3)

  def check(self, rows: Sequence[Mapping[str, Any]]) -> None:
    """Compares the newest row with the first.

    Args:
      rows: At least one row of metrics.csv, the newest last.

    Raises:
      DivergenceError: If the validation loss or the weights are out of bounds.
    """
    first, row = rows[0], rows[-1]
    for name, title, growth in (
      ('loss', 'the validation loss', _MOST_LOSS_GROWTH),
      ('weights_norm', 'the norm of the weights', _MOST_WEIGHTS_GROWTH),
    ):
      start, value = _value(first, name), _value(row, name)
      if value is None or start is None:
        continue
      # Not `>`: a comparison with NaN is false.
      if not value <= growth * max(start, 1.0):
        raise errors.DivergenceError(
          f'Round {row["round"]}: {title} is {value:.4g}, up from {start:.4g}'
          f' at the start. {likely_cause(self._run, row)}'
        )
    self._warn_of_signs(first, row)

  def _warn_of_signs(
    self, first: Mapping[str, Any], row: Mapping[str, Any]
  ) -> None:
    share, ratio = _diverged_share(row), _public_over_private(row)
    if _have_public_users_diverged(self._run, row):
      self._warn(
        'public users',
        f'Round {row["round"]}: the loss of public users is'
        f' {row["public_loss"]:.4g} in local training, and that of private'
        f' clients {row["train_loss"]:.4g}. Public users diverge, and the'
        ' public update is useless. Lower --client.learning_rate, set'
        ' --client.gradient_clip, or use --public.update=gradient.',
      )
    if share > _MANY_DIVERGED:
      self._warn(
        'clients',
        f'Round {row["round"]}: {share:.0%} of the clients diverge in local'
        ' training, and their updates are useless. Lower'
        ' --client.learning_rate, or set --client.gradient_clip.',
      )
    if ratio > _LONG_PUBLIC_UPDATE:
      self._warn(
        'public',
        f'Round {row["round"]}: the public update has {ratio:.3g} times the'
        ' norm of the private update and dominates it.'
        ' --public.clip_norm=private bounds it.',
      )
    loss, start = _value(row, 'loss'), _value(first, 'loss')
    if loss is None or start is None:
      return
    is_last = row['round'] == self._run.plan.rounds
    if loss > start * (1.0 if is_last else _FIRST_SIGN):
      end = ' at the end of the run' if is_last else ''
      self._warn(
        f'loss{end}',
        f'Round {row["round"]}: the validation loss{end} is {loss:.4g}, above'
        f' {start:.4g} at the start. {likely_cause(self._run, row)}',
      )
