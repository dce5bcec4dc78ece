"""Tasks of the benchmark: data, privacy and a search grid for each method.

A task is a JSON file, named after the task:

```
{"format": "pda_fed benchmark task",
 "title": "CIFAR-10",
 "epsilon": 2,
 "data_dir": "",
 "settings": {"dataset": "cifar10", "noise_multiplier": 1.675},
 "search_settings": {"validation_examples": 4800},
 "select_by": "loss",
 "metrics": ["accuracy", "loss"],
 "rates": {"server.learning_rate": [0.3, 1, 3]},
 "grids": {"warm": {"server.learning_rate": [0.1, 0.2, 0.3, 0.5, 0.7, 1]},
           "pda": {"server.learning_rate": [0.3, 1, 3],
                   "method.alpha_K": [50, 500]}}}
```

All grids of a task must have the same number of cells, because methods that
try more settings find better ones.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any, Optional

from pda_fed.common import validate
from pda_fed.compare import choices
from pda_fed.compare import grids as grids_lib
from pda_fed.runs import spec as spec_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A benchmark task: compares methods, each with its best settings.

  Attributes:
    name: The name of the task's file and of its results.
    title: The title in tables, without epsilon.
    epsilon: The maximum epsilon of a final run.
    data_dir: The data folder, relative to the benchmark's; None if the data
      need no files.
    settings: The settings of all runs, by name.
    search_settings: Additional settings of the runs of searches.
    select_by: The validation metric that chooses settings.
    metrics: The test metrics to show.
    rates: Axes to add to a method's own axes if it has no grid here.
    grids: The grid of each method.
  """

  name: str
  title: str
  epsilon: float
  data_dir: Optional[str]
  settings: Mapping[str, Any]
  search_settings: Mapping[str, Any]
  select_by: str
  metrics: tuple[str, ...]
  rates: Mapping[str, list[Any]]
  grids: Mapping[str, Mapping[str, list[Any]]]

  def __post_init__(self):
    validate.positive(epsilon=self.epsilon)
    validate.texts(title=self.title, select_by=self.select_by)
    grids_lib.check(self.rates, 'rates')
    self.spec(None).with_values(self.search_settings)  # Raises if invalid.
    if not self.grids:
      raise ValueError('grids must have at least one method. Found none.')
    for grid in self.grids.values():
      grids_lib.check(grid, 'grids')
    counts = {m: len(grids_lib.cells(grid)) for m, grid in self.grids.items()}
    if len(set(counts.values())) > 1:
      found = ', '.join(f'{count} for {m}' for m, count in counts.items())
      raise ValueError(
        f'All methods of {self.name} must have the same number of trials. Found'
        f' {found}.'
      )

  @property
  def trials(self) -> int:
    """The number of settings that each method tries."""
    return len(grids_lib.cells(next(iter(self.grids.values()))))

  def spec(self, method: Optional[str]) -> spec_lib.RunSpec:
    """Returns the spec of a method's runs, without the data's folder."""
    values = dict(self.settings)
    dataset = values.pop('dataset', None)
    if method is not None:
      values['method'] = method
    return spec_lib.RunSpec.for_data(dataset).with_values(values)

  def asked_for(self, methods: Sequence[str], grid: grids_lib.Grid) -> 'Task':
    """Returns the task with the given methods only; one may be new.

    Args:
      methods: Names or modules of methods; an empty list for all methods that
        have a grid.
      grid: Axes of the method that has no grid. Those of `rates` are added for
        settings that have none here.

    Raises:
      ValueError: If several methods have no grid, a grid is given but every
        method has one, or it has another number of cells.
    """
    new = [method for method in methods if method not in self.grids]
    if len(new) > 1:
      raise ValueError(
        f'methods must have at most one without a grid in {self.name}. Found'
        f' {", ".join(new)}: add one at a time.'
      )
    if grid and not new:
      raise ValueError(
        f'tune must be given with a method without a grid in {self.name}, which'
        f' has grids for {", ".join(self.grids)}.'
      )
    rates = {n: v for n, v in self.rates.items() if n not in grid}
    own = {n: list(v) for n, v in {**rates, **grid}.items()}
    found = {**self.grids, **dict.fromkeys(new, own)}
    task = dataclasses.replace(self, grids=found)  # Checks the new one.
    kept = {m: found[m] for m in methods or self.grids}
    return dataclasses.replace(task, grids=kept)


def load(path: os.PathLike | str) -> Task:
  """Reads a task from a file NAME.json.

  Raises:
    OutputError: If the file cannot be read.
    ValueError: If the file is not a valid task, or methods have different
      numbers of tries.
  """
  name = pathlib.Path(path).stem
  what = 'pda_fed benchmark task', 'a benchmark task'
  return choices.read(path, Task, *what, name=name)
