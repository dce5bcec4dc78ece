"""The output folder of a run.

    config.json      all settings, the seed, library versions, the data's hash
    metrics.csv      a row for each evaluated round
    result.json      the final test metrics and epsilon
    checkpoints/     see `checkpoints`
    tensorboard/     the same rows for TensorBoard

Checkpoints hold the rows, from which metrics.csv and the log are written.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import importlib.metadata
import pathlib
import platform
import shlex
import sys
from typing import Any, Optional

import pda_fed
from pda_fed import errors
from pda_fed import privacy
from pda_fed.common import files
from pda_fed.common import typed
from pda_fed.runs import disclosure
from pda_fed.runs import records
from pda_fed.runs import resolving

CONFIG = 'config.json'
_METRICS = 'metrics.csv'
_RESULT = 'result.json'
RUNNING = 'running.json'
DIVERGED = 'diverged.json'

_LIBRARIES = (
  *('dp-accounting', 'jax', 'numpy', 'scipy'),
  *('tensorflow', 'tensorflow-federated', 'tensorflow-privacy'),
)


def library_versions() -> dict[str, str]:
  """Returns the versions of pda_fed, Python and the main libraries."""
  python = platform.python_version()
  versions = {'pda_fed': pda_fed.__version__, 'python': python}
  for name in _LIBRARIES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return versions


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """A run's folder.

  Example:

  ```
  folder = train(run, 'out/pda')  # A RunFolder.
  folder.read_result()['test']['accuracy']
  ```

  Attributes:
    path: The folder.
  """

  path: pathlib.Path

  @property
  def checkpoints_path(self) -> pathlib.Path:
    return self.path / 'checkpoints'

  @property
  def tensorboard_path(self) -> pathlib.Path:
    return self.path / 'tensorboard'

  def is_new(self) -> bool:
    """Returns whether no round was run yet, so that settings may still change.

    The model is saved before the first round. Without a checkpoint, no round
    used the folder's settings or their noise.
    """
    names = ('checkpoints/*', _METRICS, _RESULT)
    return not any(path for name in names for path in self.path.glob(name))

  def is_finished(self) -> bool:
    """Returns whether the run has a result."""
    return (self.path / _RESULT).exists()

  def has_diverged(self) -> bool:
    """Returns whether the run ended because its model diverged."""
    return (self.path / DIVERGED).exists()

  def write_config(self, run: resolving.Run) -> None:
    """Writes config.json."""
    caveats = list(run.data.caveats)
    if run.spec.seed is None:  # The model may be meant for publication.
      caveats.append(disclosure.of_run())
    config = records.Recorded(
      format=records.FORMAT,
      version=records.VERSION,
      spec=run.spec,
      settings=run.settings(),
      noise=privacy.SeedStreams(run.spec.seed).statement(),
      libraries=library_versions(),
      command=shlex.join(sys.argv),
      data=run.data.about,
      caveats=caveats,
    )
    files.write_json(self.path / CONFIG, typed.as_json(config))

  def read_config(self) -> records.Recorded:
    """Returns the content of config.json.

    Raises:
      OutputError: If the file cannot be read, or belongs to no run, or to one
        of another version.
    """
    found = files.read_json(self.path / CONFIG)
    if not isinstance(found, dict) or found.get('format') != records.FORMAT:
      raise errors.OutputError(
        f'{self.path / CONFIG} does not belong to a run.'
      )
    if found.get('version') != records.VERSION:
      raise errors.OutputError(
        f'{self.path} holds a run of another version of pda_fed, with format'
        f' {found.get("version")!r:.20}. This one reads {records.VERSION}. Give'
        ' another folder, or use the version that config.json names.'
      )
    with self.naming(CONFIG):
      return typed.from_json(records.Recorded, found)

  def read(self, name: str, kind: Any) -> Any:
    """Returns the content of a JSON file as a dataclass; None without the file.

    Args:
      name: The file.
      kind: The dataclass.

    Raises:
      OutputError: If it is damaged.
    """
    if not (self.path / name).exists():
      return None
    found = files.read_json(self.path / name)
    with self.naming(name):
      return typed.from_json(kind, found)

  @contextlib.contextmanager
  def naming(self, name: str) -> Iterator[None]:
    """Turns TypeError and ValueError into an OutputError naming the file."""
    try:
      yield
    except (TypeError, ValueError) as e:
      what = str(e).rstrip('.')
      raise errors.OutputError(f'{self.path / name} is damaged: {what}.') from e

  def write_metrics(self, rows: Sequence[dict[str, Any]]) -> None:
    """Replaces metrics.csv."""
    content = records.format_csv(rows).encode()
    files.write_atomically(self.path / _METRICS, content)

  def read_metrics(self) -> list[dict[str, Optional[float]]]:
    """Returns the rows of metrics.csv; an empty list if it does not exist.

    Raises:
      OutputError: If it is damaged.
    """
    path = self.path / _METRICS
    with self.naming(_METRICS):
      return records.parse_csv(path.read_text('utf-8')) if path.exists() else []

  def write_result(self, result: dict[str, Any]) -> None:
    """Writes result.json, which marks the run as finished."""
    files.write_json(self.path / _RESULT, result)
    files.remove(self.path / RUNNING)

  def read_result(self) -> Optional[dict[str, Any]]:
    """Returns result.json, or None if the run is not finished.

    Raises:
      OutputError: If it is damaged.
    """
    if not self.is_finished():
      return None
    found = files.read_json(self.path / _RESULT)
    with self.naming(_RESULT):
      records.check_result(found)
    return found

  def read_finished(self) -> tuple[records.Recorded, list, dict[str, Any]]:
    """Returns config.json, the rows of metrics.csv and result.json of a run.

    Raises:
      OutputError: If the run is not finished, a file is damaged, or files
        contradict each other.
    """
    result = self.read_result()
    if result is None:
      raise errors.OutputError(
        f'{self.path} must hold a finished run. Found no result.json.'
      )
    config = self.read_config()
    with self.naming(_RESULT):
      records.check_fit(config, result)
    rows = self.read_metrics()
    if not rows or rows[-1]['round'] != result['rounds']:
      raise errors.OutputError(
        f'{self.path / _METRICS} must end with round {result["rounds"]}, as'
        f' {_RESULT} says. It does not.'
      )
    return config, rows, result
