"""Tasks of the benchmark: data, privacy and a grid of tries for each method.

A task is a file of JSON, of the name of the task:

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

All grids of a task must have the same number of cells: methods that may try
more settings find better ones.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import os
import pathlib
from typing import Any, Optional

from pda_fed.analysis import sweeping
from pda_fed.common import files
from pda_fed.common import validate

_FORMAT = 'pda_fed benchmark task'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A task: methods are compared on it, each with what its own search found.

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
    name: The name of its file and of its results.
    title: What tables call it, without epsilon.
    epsilon: What its final runs cost at most.
    binary: The training binary.
    data_dir: Relative to that of the benchmark; None for data without files.
    flags: The flags of all runs.
    search_flags: Flags that only the runs of the search have.
    select_by: The metric of validation data that chooses settings.
    metrics: Those of the test that are shown.
    rates: Axes for methods that have no grid here, beside their own axes.
    grids: Axes by method, as `--tune` of scripts.compare takes them.
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
    """How many settings each method tries."""
    return _count(next(iter(self.grids.values())))

  def with_method(self, method: str, axes: Sequence[str]) -> 'Task':
    """Returns the task with a grid for one more method.

    Args:
      method: Its name or module.
      axes: As FLAG=VALUE,VALUE,...; those of `rates` are added where these have
        none for the flag.

    Raises:
      ValueError: If an axis is none, or the grid has not as many cells as
        others.
    """
    own = sweeping.parse_grid(axes, 'tune')
    rates = [r for r in self.rates if r.partition('=')[0] not in own]
    return dataclasses.replace(
      self, grids={**self.grids, method: (*rates, *axes)}
    )

  def only(self, methods: Sequence[str]) -> 'Task':
    """Returns the task with the grids of some of its methods."""
    return dataclasses.replace(self, grids={m: self.grids[m] for m in methods})

  def asked_for(self, methods: Sequence[str], axes: Sequence[str]) -> 'Task':
    """Returns the task with some methods alone, of which one may be new.

    Args:
      methods: Names or modules; none for all that have a grid.
      axes: The axes of the method that has no grid; see `with_method`.

    Raises:
      ValueError: If several have no grid, or axes come without such a method.
    """
    new = [method for method in methods if method not in self.grids]
    if len(new) > 1:
      raise ValueError(
        f'methods must have at most one that {self.name} has no grid for. Found'
        f' {", ".join(new)}: add one after the other.'
      )
    if axes and not new:
      raise ValueError(
        f'tune must come with a method that {self.name} has no grid for. It has'
        f' grids for {", ".join(self.grids)}.'
      )
    task = self.with_method(new[0], axes) if new else self
    return task.only(methods or list(self.grids))

  def joined_with(self, before: 'Task') -> 'Task':
    """Returns the task with the methods of an earlier call, which come first.

    Args:
      before: What was run.

    Raises:
      ValueError: If it is another task, or a method has another grid.
    """
    grids = {**before.grids, **self.grids}
    joined = dataclasses.replace(self, grids=grids)
    if joined.only(list(before.grids)) != before:
      raise ValueError(f'{self.name} or a grid of it was another one before.')
    return joined

  def write(self, path: os.PathLike) -> None:
    """Writes the file that `load` reads."""
    fields = dataclasses.asdict(self)
    del fields['name']
    files.write_json(path, {'format': _FORMAT, **fields})


def _count(axes: Sequence[str]) -> int:
  return math.prod(map(len, sweeping.parse_grid(axes, 'grids').values()))


def axes_by_task(
  texts: Sequence[str], names: Sequence[str]
) -> dict[str, list[str]]:
  """Returns which axes are for which task.

  Example:

    >>> axes_by_task(['weight=1,2', 'b:rate=3'], ['a', 'b'])
    {'a': ['weight=1,2'], 'b': ['weight=1,2', 'rate=3']}

  Args:
    texts: As FLAG=VALUE,... for all tasks, or TASK:FLAG=VALUE,...
    names: The names of the tasks.

  Raises:
    ValueError: If a task is not known.
  """
  found: dict[str, list[str]] = {name: [] for name in names}
  for text in texts:
    task, colon, axis = text.partition(':')
    if not colon or '=' in task:  # A value may have a colon, too.
      for axes in found.values():
        axes.append(text)
    elif task in found:
      found[task].append(axis)
    else:
      raise ValueError(
        f'tune must be FLAG=VALUE,... or begin with one of {", ".join(names)}'
        f' and a colon. Found {text!r}.'
      )
  return found


def load(path: os.PathLike) -> Task:
  """Reads a task.

  Args:
    path: Its file, NAME.json.

  Raises:
    OutputError: If the file cannot be read.
    ValueError: If it is no task, or methods have different numbers of tries.
  """
  content = files.read_json(path)
  try:
    return _parse(pathlib.Path(path).stem, content)
  except ValueError as e:
    raise ValueError(
      f'{os.fspath(path)} must be a task of the benchmark: {e}'
    ) from e


def _parse(name: str, content: Any) -> Task:
  if not isinstance(content, dict) or content.get('format') != _FORMAT:
    raise ValueError(f"its 'format' must be {_FORMAT!r}.")
  fields = {f.name for f in dataclasses.fields(Task)} - {'name'}
  if set(content) != {'format', *fields}:
    raise ValueError(
      f'it must have format, {", ".join(sorted(fields))}. Found'
      f' {", ".join(sorted(content))}.'
    )
  epsilon, grids = content['epsilon'], content['grids']
  data_dir = content['data_dir']
  if data_dir is not None and not isinstance(data_dir, str):
    raise ValueError(f'data_dir must be text or null. Found {data_dir!r}.')
  if type(epsilon) not in (int, float):
    raise ValueError(f'epsilon must be a number. Found {epsilon!r}.')
  if not isinstance(grids, dict):
    raise ValueError(f'grids must be an object. Found {grids!r}.')
  lists = ('flags', 'search_flags', 'metrics', 'rates')
  return Task(
    name=name,
    epsilon=epsilon,
    data_dir=data_dir,
    **{n: _text(n, content[n]) for n in ('title', 'binary', 'select_by')},
    **{n: _texts(n, content[n]) for n in lists},
    grids={method: _texts(method, axes) for method, axes in grids.items()},
  )


def _text(name: str, value: Any) -> str:
  if not isinstance(value, str) or not value:
    raise ValueError(f'{name} must be text. Found {value!r}.')
  return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
  if not isinstance(value, list):
    raise ValueError(f'{name} must be a list of texts. Found {value!r}.')
  return tuple(_text(name, text) for text in value)
