"""Warns at the first signs of divergence, then ends the run.

What ends a run, the validation loss and the weights, depends only on released
models and on users that do not take part in training. Warnings also use metrics
of private clients, which epsilon does not cover, like metrics.csv.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any
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


def _signs(run: resolving.Run, row: Mapping[str, Any]) -> dict[str, str]:
  """Returns first signs of divergence, and what helps, by kind."""

  def has(*names: str) -> bool:
    return all(row.get(name) is not None for name in names)

  found = {}
  if has('diverged_clients', 'clients') and row['clients']:
    share = row['diverged_clients'] / row['clients']
    if share > _MANY_DIVERGED:
      found['clients'] = (
        f'{share:.0%} of the clients diverge in local training, and their'
        ' updates are useless. Lower --client.learning_rate (now'
        f' {run.spec.client.learning_rate:g}), or set --client.gradient_clip.'
      )
  # Not `>`: a comparison with NaN is false.
  if has('public_norm', 'private_norm') and row['private_norm']:
    ratio = row['public_norm'] / row['private_norm']
    if not ratio <= _LONG_PUBLIC_UPDATE:
      found['public'] = (
        f'the public update has {ratio:.3g} times the norm of the private'
        ' update and dominates it. --public.clip_norm=private bounds it.'
      )
  trains_locally = run.spec.public.update == 'local_training'
  if trains_locally and has('public_loss', 'train_loss'):
    public, private = row['public_loss'], row['train_loss']
    is_high = not public <= _HIGH_PUBLIC_LOSS * max(private, 1.0)
    if is_high and not math.isnan(private):
      found['public users'] = (
        f'the loss of public users is {public:.4g} in local training, and that'
        f' of private clients {private:.4g}. Public users diverge, and the'
        ' public update is useless. Lower --client.learning_rate, set'
        ' --client.gradient_clip, or use --public.update=gradient.'
      )
  return found


class Guard(loop_lib.Callback):
  """Watches the rows of a run; gives each kind of warning once."""

  def __init__(self, run: resolving.Run):
    self._run = run
    self._checked = 0
    self._warned: set[str] = set()

  def restore(self, loop, arrays) -> None:
    self._checked = len(loop.record.rows)

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

  def check(self, rows: Sequence[Mapping[str, Any]]) -> None:
    """Compares the newest row with the first.

    Args:
      rows: At least one row of metrics.csv, the newest last.

    Raises:
      DivergenceError: If the validation loss or the weights are out of bounds.
    """
    first, row = rows[0], rows[-1]
    signs = _signs(self._run, row)
    cause = ' '.join(signs.values()) or self._usual_cause()
    for name, title, growth in (
      ('loss', 'the validation loss', _MOST_LOSS_GROWTH),
      ('weights_norm', 'the norm of the weights', _MOST_WEIGHTS_GROWTH),
    ):
      start, value = first.get(name), row.get(name)
      if value is None or start is None:
        continue
      # Not `>`: a comparison with NaN is false.
      if not value <= growth * max(start, 1.0):
        raise errors.DivergenceError(
          f'Round {row["round"]}: {title} is {value:.4g}, up from {start:.4g}'
          f' at the start. Probably: {cause}'
        )
    loss, start = row.get('loss'), first.get('loss')
    if loss is not None and start is not None:
      is_last = row['round'] == self._run.plan.rounds
      if loss > start * (1.0 if is_last else _FIRST_SIGN):
        end = ' at the end of the run' if is_last else ''
        signs[f'loss{end}'] = (
          f'the validation loss{end} is {loss:.4g}, above {start:.4g} at the'
          f' start. Probably: {cause}'
        )
    for kind, sign in signs.items():
      if kind not in self._warned:
        warnings.warn(f'Round {row["round"]}: {sign}', stacklevel=3)
    self._warned.update(signs)

  def _usual_cause(self) -> str:
    plan, server = self._run.plan, self._run.spec.server
    return (
      f'server.learning_rate={server.learning_rate:g} is too high for this'
      f' noise (sigma {plan.noise_multiplier:g}, cohorts of'
      f' {plan.expected_cohort:g}).'
    )
