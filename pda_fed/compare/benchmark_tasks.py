"""Tasks of the benchmark: data, privacy and a search grid for each method.

A task is a JSON file, named after the task:

```
{"format": "pda_fed benchmark task",
 "title": "CIFAR-10",
 "epsilon": 2,
 "binary": "train_sample_level",
 "data_dir": "",
 "flags": ["--flagfile=scripts/presets/cifar10_base.flags"],
 "search_flags": ["--validation_examples=4800"],
 "select_by": "loss",
 "metrics": ["accuracy", "loss"],
 "rates": ["learning_rate=0.3,1,3"],
 "grids": {"warm": ["learning_rate=0.1,0.2,0.3,0.5,0.7,1,1.5,2,3"],
           "pda": ["learning_rate=0.3,1,3", "alpha_K=50,125,500"]}}
```

All grids of a task must have the same number of cells, because methods that try
more settings find better ones.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import os
import pathlib
from typing import Any, Optional

from pda_fed.common import files
from pda_fed.common import validate
from pda_fed.compare import sweeping

_FORMAT = 'pda_fed benchmark task'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A benchmark task: compares methods, each with its best settings.

  Example:

    >>> task = Task(
    ...   name='digits', title='digits', epsilon=1.0,
    ...   binary='train_sample_level', data_dir=None, flags=(),
    ...   search_flags=(), select_by='loss', metrics=('accuracy', 'loss'),
    ...   rates=('learning_rate=0.3,1',),
    ...   grids={'pda': ('learning_rate=0.3,1', 'alpha_K=5,50')})
    >>> task.tries
    4
    >>> task.with_method('semi_dp', ['semi_dp_weight=0.5,0.9']).grids['semi_dp']
    ('learning_rate=0.3,1', 'semi_dp_weight=0.5,0.9')

  Attributes:
    name: The name of the task's file and of its results.
    title: The title in tables, without epsilon.
    epsilon: The maximum epsilon of a final run.
    binary: The training binary.
    data_dir: The data folder, relative to the benchmark's; None if the data
      need no files.
    flags: The flags of all runs.
    search_flags: Additional flags of the runs of searches.
    select_by: The validation metric that chooses settings.
    metrics: The test metrics to show.
    rates: Axes to add to a method's own axes if it has no grid here.
    grids: Axes by method, in the format of `--tune` of scripts.compare.
  """

  name: str
  title: str
  epsilon: float
  binary: str
  data_dir: Optional[str]
  flags: tuple[str, ...]
  search_flags: tuple[str, ...]
  select_by: str
  metrics: tuple[str, ...]
  rates: tuple[str, ...]
  grids: Mapping[str, tuple[str, ...]]

  def __post_init__(self):
    validate.positive(epsilon=self.epsilon)
    sweeping.parse_grid(self.rates, 'rates')
    if not self.grids:
      raise ValueError('grids must have at least one method. Found none.')
    counts = {method: _count(axes) for method, axes in self.grids.items()}
    if len(set(counts.values())) > 1:
      found = ', '.join(f'{count} for {m}' for m, count in counts.items())
      raise ValueError(
        f'All methods of {self.name} must have the same number of tries. Found'
        f' {found}.'
      )

  @property
  def tries(self) -> int:
    """The number of settings that each method tries."""
    return _count(next(iter(self.grids.values())))

  def with_method(self, method: str, axes: Sequence[str]) -> 'Task':
    """Returns the task with a grid for one more method.

    Args:
      method: The method's name or module.
      axes: Axes in the format FLAG=VALUE,VALUE,... Axes of `rates` are added
        for flags that have none here.

    Raises:
      ValueError: If an axis is malformed, or the number of cells differs from
        that of other grids.
    """
    own = sweeping.parse_grid(axes, 'tune')
    rates = [r for r in self.rates if r.partition('=')[0] not in own]
    return dataclasses.replace(
      self, grids={**self.grids, method: (*rates, *axes)}
    )

  def only(self, methods: Sequence[str]) -> 'Task':
    """Returns the task with the grids of the given methods only."""
    return dataclasses.replace(self, grids={m: self.grids[m] for m in methods})

  def asked_for(self, methods: Sequence[str], axes: Sequence[str]) -> 'Task':
    """Returns the task with the given methods only; one may be new.

    Args:
      methods: Names or modules of methods; an empty list for all methods that
        have a grid.
      axes: Axes of the method that has no grid; see `with_method`.

    Raises:
      ValueError: If several methods have no grid, or axes are given but every
        method has a grid.
    """
    new = [method for method in methods if method not in self.grids]
    if len(new) > 1:
      raise ValueError(
        f'methods must have at most one without a grid in {self.name}. Found'
        f' {", ".join(new)}: add one at a time.'
      )
    if axes and not new:
      raise ValueError(
        f'tune must be given with a method without a grid in {self.name}, which'
        f' has grids for {", ".join(self.grids)}.'
      )
    task = self.with_method(new[0], axes) if new else self
    return task.only(methods or list(self.grids))

  def joined_with(self, before: 'Task') -> 'Task':
    """Returns the task with the methods of an earlier call added in front.

    Args:
      before: The task of the earlier call.

    Raises:
      ValueError: If the tasks differ, or a method has a different grid.
    """
    grids = {**before.grids, **self.grids}
    joined = dataclasses.replace(self, grids=grids)
    if joined.only(list(before.grids)) != before:
      raise ValueError(f'{self.name} or one of its grids has changed.')
    return joined

  def write(self, path: os.PathLike | str) -> None:
    """Writes the file that `load` reads."""
    fields = dataclasses.asdict(self)
    del fields['name']
    files.write_json(path, {'format': _FORMAT, **fields})


def _count(axes: Sequence[str]) -> int:
  return math.prod(map(len, sweeping.parse_grid(axes, 'grids').values()))


def axes_by_task(
  texts: Sequence[str], names: Sequence[str]
) -> dict[str, list[str]]:
  """Returns the axes of each task.

  Example:

    >>> axes_by_task(['weight=1,2', 'b:rate=3'], ['a', 'b'])
    {'a': ['weight=1,2'], 'b': ['weight=1,2', 'rate=3']}

  Args:
    texts: Axes: FLAG=VALUE,... for all tasks, or TASK:FLAG=VALUE,... for one.
    names: The names of the tasks.

  Raises:
    ValueError: If a task is unknown.
  """
  found: dict[str, list[str]] = {name: [] for name in names}
  for text in texts:
    task, colon, axis = text.partition(':')
    if not colon or '=' in task:  # The colon may be part of a value.
      for axes in found.values():
        axes.append(text)
    elif task in found:
      found[task].append(axis)
    else:
      raise ValueError(
        f'tune must be FLAG=VALUE,... or TASK:FLAG=VALUE,... with one of the'
        f' tasks {", ".join(names)}. Found {text!r}.'
      )
  return found


def load(path: os.PathLike | str) -> Task:
  """Reads a task.

  Args:
    path: The task's file, NAME.json.

  Raises:
    OutputError: If the file cannot be read.
    ValueError: If the file is not a valid task, or methods have different
      numbers of tries.
  """
  content = files.read_json(path)
  try:
    return _parse(pathlib.Path(path).stem, content)
  except ValueError as e:
    raise ValueError(f'{os.fspath(path)} must be a benchmark task: {e}') from e


def _parse(name: str, content: Any) -> Task:
  if not isinstance(content, dict) or content.get('format') != _FORMAT:
    raise ValueError(f"its 'format' must be {_FORMAT!r}.")
  fields = {f.name for f in dataclasses.fields(Task)} - {'name'}
  if set(content) != {'format', *fields}:
    raise ValueError(
      f'its keys must be format, {", ".join(sorted(fields))}. Found'
      f' {", ".join(sorted(content))}.'
    )
  epsilon, grids = content['epsilon'], content['grids']
  data_dir = content['data_dir']
  if data_dir is not None and not isinstance(data_dir, str):
    raise ValueError(f'data_dir must be a string or null. Found {data_dir!r}.')
  if type(epsilon) not in (int, float):
    raise ValueError(f'epsilon must be a number. Found {epsilon!r}.')
  if not isinstance(grids, dict):
    raise ValueError(f'grids must be an object. Found {grids!r}.')
  lists = ('flags', 'search_flags', 'metrics', 'rates')
  texts: dict[str, Any] = {
    **{n: _text(n, content[n]) for n in ('title', 'binary', 'select_by')},
    **{n: _texts(n, content[n]) for n in lists},
  }
  return Task(
    name=name,
    epsilon=epsilon,
    data_dir=data_dir,
    **texts,
    grids={method: _texts(method, axes) for method, axes in grids.items()},
  )


def _text(name: str, value: Any) -> str:
  if not isinstance(value, str) or not value:
    raise ValueError(f'{name} must be a non-empty string. Found {value!r}.')
  return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
  if not isinstance(value, list):
    raise ValueError(f'{name} must be a list of strings. Found {value!r}.')
  return tuple(_text(name, text) for text in value)
