"""Stores each trial in a file, so that a simulation can be resumed."""

import csv
import dataclasses
import json
import os
import pathlib
from typing import Optional

from pda_fed import errors
from pda_fed.common import files
from pda_fed.common import seal
from pda_fed.linear_regression import simulation
from pda_fed.linear_regression import summary as summary_lib

# Attributes that affect which trials exist, but not their results.
_EXTENDABLE = ('dimensions', 'num_trials', 'num_condition_numbers')


class TrialStore:
  """A folder with the finished trials of one simulation.

  Example:

    >>> import tempfile
    >>> config = simulation.SimulationConfig(dimensions=(200,), num_trials=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   print(TrialStore(folder, config).load(200, 0))  # Not there yet.
    None
  """

  def __init__(
    self, folder: os.PathLike | str, config: simulation.SimulationConfig
  ):
    """Opens the folder, or creates it.

    Args:
      folder: The folder of the trials.
      config: The settings. They may have more dimensions and trials than the
        folder.

    Raises:
      OutputError: If the folder's trials have other settings, or its settings
        are damaged.
    """
    self._folder = pathlib.Path(folder)
    self._trials = self._folder / 'trials'
    self._trials.mkdir(parents=True, exist_ok=True)
    settings = json.loads(json.dumps(dataclasses.asdict(config)))
    path = self._folder / 'config.json'
    # Ignore settings without trials, which a failed run may leave.
    if path.exists() and any(self._trials.glob('p*.json')):
      found = _read(path)
      different = [
        f'{name}: {found.get(name)!r} there, {value!r} now'
        for name, value in settings.items()
        if name not in _EXTENDABLE and found.get(name) != value
      ]
      if different:
        raise errors.OutputError(
          f'{self._folder} contains trials of another simulation'
          f' ({"; ".join(different)}). Use another output folder.'
        )
    text = json.dumps(settings, indent=2)
    files.write_atomically(path, f'{text}\n'.encode())

  def load(self, p: int, trial: int) -> Optional[simulation.Trial]:
    """Returns a finished trial, or None.

    Args:
      p: The number of coefficients.
      trial: Index of the trial, from 0.

    Raises:
      OutputError: If the trial's file is damaged.
    """
    path = self._path(p, trial)
    if not path.exists():
      return None
    try:
      fields = seal.unseal(_read(path))
      outcomes = (simulation.Outcome(**o) for o in fields.pop('outcomes'))
      return simulation.Trial(**fields, outcomes=tuple(outcomes))
    except (KeyError, TypeError, ValueError) as e:
      raise errors.OutputError(
        f'{path} is damaged: {e!r}. Remove it to run the trial again.'
      ) from e

  def save(self, trial: simulation.Trial) -> None:
    """Writes a trial atomically."""
    text = json.dumps(seal.seal(dataclasses.asdict(trial)))
    path = self._path(trial.p, trial.trial)
    files.write_atomically(path, f'{text}\n'.encode())

  def write_tables(self, summaries: list[summary_lib.Summary]) -> None:
    """Writes summary.csv: the best setting of each method and p."""
    rows = []
    for summary in summaries:
      row = dataclasses.asdict(summary)
      best = row.pop('best')
      del row['losses']
      names = 'regularization', 'learning_rate', 'clip_norm', 'epochs'
      rows.append({**row, **{name: best[name] for name in names}})
    path = self._folder / 'summary.csv'
    with path.open('w', newline='') as file:
      writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)

  def _path(self, p: int, trial: int) -> pathlib.Path:
    return self._trials / f'p{p:05d}_trial{trial:03d}.json'


def _read(path: pathlib.Path) -> dict:
  """Reads JSON, in which numbers may be NaN."""
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(found, dict):
      raise ValueError(f'expected a JSON object, found {found!r:.80}')
  except (OSError, RecursionError, ValueError) as e:
    raise errors.OutputError(
      f'{path} is damaged: {e}. Use another output folder, or remove it.'
    ) from e
  return found
