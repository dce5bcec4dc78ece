"""Epsilon of the rounds of a run, where it can be computed."""

from collections.abc import Sequence
import functools
import os
import pathlib
from typing import Optional

from pda_fed import privacy
from pda_fed.experiments import errors
from pda_fed.experiments import outputs


def _curve(plan: privacy.PrivacyPlan, rounds: Sequence[int]) -> list[float]:
  accountant = privacy.tightest_accountant(plan)
  return privacy.epsilon_curve(plan, rounds, accountant).tolist()


def spent(
  plan: privacy.PrivacyPlan, rounds: Sequence[int]
) -> Optional[dict[int, float]]:
  """Returns epsilon after each of some numbers of rounds.

  Args:
    plan: The plan.
    rounds: Numbers of rounds.

  Returns:
    By number of rounds; None where dp_accounting is not installed, as on a
    machine for JAX alone. `scripts/privacy --fill` adds it elsewhere.
  """
  try:
    return dict(zip(rounds, _curve(plan, rounds), strict=True))
  except ModuleNotFoundError:
    return None


def fill(path: os.PathLike) -> list[pathlib.Path]:
  """Adds epsilon to runs that were made where it could not be computed.

  Args:
    path: A run's folder, or one that has runs below it.

  Returns:
    The folders of the runs, each with epsilon in metrics.csv and result.json.

  Raises:
    OutputError: If there is no run.
    ModuleNotFoundError: Without dp_accounting.
  """
  # Seeds and methods of a comparison share plans.
  curve_of = functools.cache(_curve)
  folders = []
  for config in sorted(pathlib.Path(path).rglob(outputs.CONFIG)):
    folder = outputs.RunFolder(config.parent)
    plan = folder.read_plan()
    rows, result = folder.read_metrics(), folder.read_result()
    if not rows:  # It has not begun: there is nothing to add epsilon to.
      continue
    curve = curve_of(plan, tuple(row['round'] for row in rows))
    folder.write_metrics(
      [
        {**row, 'epsilon': value}
        for row, value in zip(rows, curve, strict=True)
      ]
    )
    if result is not None:
      result['epsilon'] = curve[-1]
      if result.get('audit'):
        result['audit']['proven'] = curve[-1]
      folder.write_result(result)
    folders.append(folder.path)
  if not folders:
    raise errors.OutputError(f'{path} must hold a run. Found none.')
  return folders
