"""The file chosen.json: how the settings of each method were chosen.

`scripts.compare --tune` writes this file, and `--chosen` reads it:

```
{"format": "pda_fed chosen settings",
 "command": "python -m scripts.compare ...",
 "select_by": "loss",
  "methods": {"warm": {"settings": {"server.learning_rate": 1},
                      "trials": 6, "value": 4.37}}}
```
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import shlex
from typing import Any, Optional

from pda_fed import methods as methods_lib
from pda_fed.common import files
from pda_fed.common import settings
from pda_fed.common import typed
from pda_fed.common import validate
from pda_fed.compare import grids
from pda_fed.compare import names
from pda_fed.runs import spec as spec_lib

_FORMAT = 'pda_fed chosen settings'


@dataclasses.dataclass(frozen=True)
class Choice:
  """The settings of a method.

  Attributes:
    settings: What was chosen, by the name of the setting.
    trials: Number of settings that were tried; 0 without a search.
    value: The best validation value; None without a search.
  """

  settings: Mapping[str, Any]
  trials: int = 0
  value: Optional[float] = None

  def __post_init__(self):
    for name in self.settings:
      settings.find(spec_lib.RunSpec, name)
    validate.integers(0, trials=self.trials)
    if self.trials and self.value is None:
      raise ValueError(
        f'value must be a number after {self.trials} trials. Found none.'
      )

  @property
  def flags(self) -> str:
    """What was chosen, as flags."""
    return shlex.join(grids.as_flags(self.settings))


@dataclasses.dataclass(frozen=True)
class Choices:
  """The settings of all methods of a comparison, and how they were chosen.

  Attributes:
    command: The command that ran the search.
    select_by: The validation metric that chose the settings.
    methods: Choices by method, as flags name it.
  """

  command: str
  select_by: str
  methods: Mapping[str, Choice]

  def __post_init__(self):
    validate.texts(command=self.command, select_by=self.select_by)
    if not self.methods:
      raise ValueError('methods must have at least one. Found none.')

  def write(self, path: os.PathLike | str) -> None:
    """Writes chosen.json."""
    content = {'format': _FORMAT, **dataclasses.asdict(self)}
    files.write_json(path, content)

  def lines(self) -> list[str]:
    """Returns a summary, and a warning if numbers of tries differ."""
    parts = []
    for method, choice in self.methods.items():
      chosen = choice.flags or 'nothing'
      trials = f'{choice.trials} trial{"" if choice.trials == 1 else "s"}'
      parts.append(f'{chosen} for {title_of(method)} ({trials})')
    name = names.metric_name(self.select_by, ['accuracy'])
    lines = [f'Settings were chosen by validation {name}: {"; ".join(parts)}.']
    numbers = [choice.trials for choice in self.methods.values()]
    if len(set(numbers)) > 1:
      lines.append(
        'Warning: methods had different numbers of trials, from'
        f' {min(numbers)} to {max(numbers)}. More trials find better settings.'
      )
    return lines


def title_of(method: str) -> str:
  """Returns a method's title, given its name or module."""
  return methods_lib.get(method).title


def read(
  path: os.PathLike | str, kind: type, file_format: str, what: str, **fields
) -> Any:
  """Reads a JSON file of a format as a dataclass.

  Args:
    path: The file.
    kind: The dataclass.
    file_format: What its field `format` must be.
    what: What the file must be, for messages.
    **fields: Fields that are not in the file.
  """
  content = files.read_json(path)
  try:
    if not isinstance(content, dict) or content.get('format') != file_format:
      raise ValueError(f"its 'format' must be {file_format!r}.")
    content = {n: v for n, v in content.items() if n != 'format'}
    return typed.from_json(kind, {**fields, **content})
  except (TypeError, ValueError) as e:
    raise ValueError(f'{os.fspath(path)} must be {what}: {e}') from e


def load(path: os.PathLike | str, compared: Sequence[str]) -> Choices:
  """Reads the choices for some methods, as flags name them, from chosen.json.

  Raises:
    OutputError: If the file cannot be read.
    ValueError: If the file is not a valid chosen.json, or lacks a method.
  """
  what = 'a chosen.json of compare --tune'
  found = read(path, Choices, _FORMAT, what)
  missing = [name for name in compared if name not in found.methods]
  if missing:
    raise ValueError(
      f'{os.fspath(path)} must be {what}: it must have all compared methods.'
      f' Found {", ".join(found.methods)}, but not {", ".join(missing)}.'
    )
  kept = {name: found.methods[name] for name in compared}
  return dataclasses.replace(found, methods=kept)
