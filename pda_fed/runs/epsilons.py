"""Epsilon of a run's rounds, if dp_accounting is installed."""

from collections.abc import Sequence
import functools
import os
import pathlib
from typing import Optional

from pda_fed import privacy
from pda_fed.runs import errors
from pda_fed.runs import outputs


def _curve(plan: privacy.PrivacyPlan, rounds: Sequence[int]) -> list[float]:
  return plan.epsilon_curve(rounds).tolist()


def spent(
  plan: privacy.PrivacyPlan, rounds: Sequence[int]
) -> Optional[dict[int, float]]:
  """Returns epsilon after each of the given numbers of rounds.

  Args:
    plan: The privacy plan.
    rounds: Numbers of rounds.

  Returns:
    Epsilon by number of rounds. None if dp_accounting is not installed;
    `scripts/privacy --fill` can then add epsilon later, on another machine.
  """
  try:
    return dict(zip(rounds, _curve(plan, rounds), strict=True))
  except ModuleNotFoundError:
    return None


def fill(path: os.PathLike | str) -> list[pathlib.Path]:
  """Adds epsilon to runs that were made without dp_accounting.

  Args:
    path: A run's folder, or a folder with runs below it.

  Returns:
    The folders of the runs, each with epsilon in metrics.csv and result.json.

  Raises:
    OutputError: If there is no run.
    ModuleNotFoundError: If dp_accounting is not installed.
  """
  # Runs of a comparison share plans across seeds and methods.
  curve_of = functools.cache(_curve)
  folders = []
  for config in sorted(pathlib.Path(path).rglob(outputs.CONFIG)):
    folder = outputs.RunFolder(config.parent)
    plan = folder.read_config().plan
    rows, result = folder.read_metrics(), folder.read_result()
    if not rows:  # The run has not started.
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
