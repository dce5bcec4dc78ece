"""Flags and progress of the binaries that start training binaries."""

from collections.abc import Sequence
import importlib.util
import os
import pathlib
import re
import shlex
import sys
import time
from typing import Any, Optional

from absl import flags
from pda_fed.common import files
from pda_fed.compare import jobs
from pda_fed.compare import metrics
from pda_fed.compare import slots
from pda_fed.runs import config as config_lib
from pda_fed.runs import errors
from pda_fed.runs import outputs
from pda_fed.runs.engines import base as engine_lib
from scripts.lib import cli
from scripts.lib import trust_flags

try:
  import tqdm
except ImportError:  # Optional: print lines instead of a bar.
  tqdm = None

BINARY = flags.DEFINE_string(
  'binary',
  'train_stackoverflow',
  'Training binary to run: a name in scripts/, or a module.',
)
OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'Folder of the runs and results. Runs in it are resumed.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  0,
  'Number of runs at a time. 0 means one per GPU if the runs use'
  ' JAX on GPUs, and one per core otherwise. Larger numbers make runs share'
  ' GPUs or cores.',
  lower_bound=0,
)
_PRINT_RUNS = flags.DEFINE_bool(
  'print_runs',
  False,
  'Print the flags of the unfinished runs, one run per line, and exit. Train'
  ' them on a cluster, one line per job, or in one process with'
  ' --runs_file of train_sample_level. Then repeat this command without'
  ' --print_runs: it reads the finished runs.',
)
flags.adopt_module_key_flags(trust_flags)
# Default engines by binary. All other binaries use JAX.
_ENGINES = {'scripts.train_stackoverflow': 'tff'}


def module() -> str:
  """Returns the training binary's module, for `python -m`.

  Raises:
    UntrustedCodeError: If only a file names the module, without --trust_code.
    ValueError: If there is no such module.
  """
  # Before find_spec, which imports the packages that hold the module.
  trust_flags.check_words([f'--{BINARY.name}={BINARY.value}'])
  name = BINARY.value if '.' in BINARY.value else f'scripts.{BINARY.value}'
  try:
    is_there = importlib.util.find_spec(name) is not None
  except ModuleNotFoundError:
    is_there = False
  if not is_there:
    raise ValueError(
      'binary must be a training binary in scripts/, such as'
      f' train_stackoverflow, or a module. Found {BINARY.value!r}.'
    )
  return name


def check_metrics(names: Sequence[str], source: str = 'metrics') -> None:
  """Raises early if a binary in scripts/ does not report a metric.

  Args:
    names: Names of metrics. Binaries outside scripts/ are not checked.
    source: Name of the flag that names the metrics.

  Raises:
    ValueError: If a metric is unknown.
  """
  if names and module().startswith('scripts.'):
    metrics.check(engine_lib.METRICS, names, source)


def _hint(flag: str) -> str:
  """Returns a hint if an unknown flag belongs to the training binary."""
  folder = pathlib.Path(__file__).parents[1]
  paths = [*folder.glob('train_*.py'), *folder.glob('lib/*_flags.py')]
  names = {flag, flag.removeprefix('no')}
  patterns = [re.compile(rf"DEFINE_\w+\(\s*'{re.escape(n)}'") for n in names]
  if any(p.search(path.read_text()) for path in paths for p in patterns):
    return f'. --{flag} is a flag of the training binary: put it after --'
  return ''


cli.OF_UNKNOWN_FLAG.append(_hint)


def output_dir() -> pathlib.Path:
  """Returns --output_dir, which must be given."""
  if OUTPUT_DIR.value is None:
    raise ValueError('--output_dir must be given.')
  return pathlib.Path(OUTPUT_DIR.value)


def command_line() -> str:
  """Returns the command that started this program."""
  name = pathlib.Path(sys.argv[0]).stem
  return shlex.join([*cli.program(name), *sys.argv[1:]])


def say(text: str) -> None:
  """Prints to stderr, above a progress bar if there is one."""
  if tqdm is None:
    print(text, file=sys.stderr, flush=True)
  else:
    tqdm.tqdm.write(text, file=sys.stderr)


_SECONDS_OF_SILENCE = 60
# Width of the terminal if it is unknown.
_COLUMNS = 80
# Without a height, tqdm shows no bar on a terminal that reports 0.
_ROWS = 20


def _columns() -> int:
  """Returns the width of the terminal, with a default if unknown."""
  try:
    found = os.get_terminal_size(sys.stderr.fileno()).columns
  except (OSError, ValueError):
    found = 0
  return found if found > 0 else _COLUMNS


class _Progress:
  """A bar on a terminal; otherwise a line for each run that has ended.

  Without a bar, it also prints a line every minute.
  """

  def __init__(self, total: int):
    self._bar = None
    if tqdm is not None and sys.stderr.isatty():
      self._bar = tqdm.tqdm(
        total=total,
        unit=' runs',
        leave=False,
        ncols=_columns(),
        nrows=_ROWS,
      )
    self._total = total
    self._told = 0
    self._spoke = time.monotonic()

  def __call__(self, running, ended) -> None:
    for job in ended[self._told :]:
      self._told += 1
      say(f'[{self._told}/{self._total}] {job.name}: {_newest(job.folder)}')
      self._spoke = time.monotonic()
    is_due = time.monotonic() - self._spoke > _SECONDS_OF_SILENCE
    if self._bar is None and not (is_due and running):
      return
    parts = [f'{job.name}: {_newest(job.folder)}' for job in running]
    if self._bar is None:
      self._spoke = time.monotonic()
      say('  '.join(parts))
    else:
      self._bar.ncols = _columns()
      self._bar.set_postfix_str('  '.join(parts), refresh=False)
      self._bar.update(len(ended) - self._bar.n)
      self._bar.refresh()

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()


def _newest(folder: pathlib.Path) -> str:
  """Returns a run's newest round and metric."""
  rows = outputs.RunFolder(folder).read_metrics()
  if not rows:
    return 'starts'
  last = rows[-1]
  text = f'round {last["round"]}'
  if last.get('loss') is not None:
    text += f', loss {last["loss"]:.3f}'
  elif last.get('accuracy') is not None:
    text += f', accuracy {last["accuracy"]:.1%}'
  return text


def is_finished(job: jobs.Job) -> bool:
  """Returns whether a run has ended and was tested, if it should be."""
  result = outputs.RunFolder(job.folder).read_result()
  if result is None:
    return False
  given = cli.expanded(job.arguments)
  wishes = [a for a in given if name_of(a) in ('final_test', 'nofinal_test')]
  untested = ('--nofinal_test', '--final_test=false', '--final_test=False')
  is_tested = not wishes or wishes[-1] not in untested
  return result['test'] is not None or not is_tested


def is_printing() -> bool:
  """Returns whether --print_runs is given."""
  return _PRINT_RUNS.value


def end_if_printing() -> None:
  """Exits if --print_runs is given."""
  if _PRINT_RUNS.value:
    sys.exit(0)


def _last(arguments: Sequence[str], name: str) -> Optional[str]:
  """Returns the last value of a flag in arguments; None without it."""
  found = None
  for i, word in enumerate(arguments):
    flag, equals, value = word.partition('=')
    if flag in (f'--{name}', f'-{name}'):
      found = value if equals else ''.join(arguments[i + 1 : i + 2])
  return found


def gpus_for(some_jobs: Sequence[jobs.Job]) -> tuple[str, ...]:
  """Returns the GPUs for jobs: none if no job uses JAX on a GPU."""

  def may_use(job: jobs.Job) -> bool:
    given = cli.expanded(job.arguments)
    engine = _last(given, 'engine') or _ENGINES.get(job.module, 'jax')
    return engine == 'jax' and _last(given, 'platform') != 'cpu'

  return slots.gpus() if any(map(may_use, some_jobs)) else ()


def refuse_distributed(arguments: Sequence[str]) -> None:
  """Raises ValueError if arguments have --distributed."""
  for word in cli.expanded(arguments):
    if name_of(word) == 'distributed':
      raise ValueError(
        f'{word} must not be given here: each run is computed on one host. To'
        ' train runs on several hosts, give --print_runs. To distribute one run'
        ' over hosts, start the training binary itself.'
      )


def run(
  all_jobs: list[jobs.Job], log_dir: pathlib.Path, on_change=None
) -> list[jobs.Failure]:
  """Runs jobs, shows progress, and prints those that failed.

  Args:
    all_jobs: The jobs.
    log_dir: Folder of the jobs' logs.
    on_change: Called in addition to the progress; see `jobs.run_jobs`.

  Returns:
    The jobs that failed.
  """
  if _PRINT_RUNS.value:
    for job in all_jobs:
      if not is_finished(job):
        print(shlex.join(job.arguments))
  end_if_printing()
  progress = _Progress(len(all_jobs))

  def changed(running, ended) -> None:
    progress(running, ended)
    if on_change is not None:
      on_change(running, ended)

  try:
    failures = jobs.run_jobs(
      all_jobs,
      log_dir,
      num_processes=_NUM_PROCESSES.value,
      gpus=gpus_for(all_jobs),
      on_change=changed,
    )
  finally:
    progress.close()
  for failure in failures:
    print(
      f'{failure.job.name} failed with exit code {failure.exit_code}'
      f' ({failure.log}):\n{failure.last_lines}',
      file=sys.stderr,
    )
  return failures


def refuse_others(
  path: pathlib.Path, content: dict[str, Any], results: str
) -> None:
  """Records a folder's settings; raises if it has results of other ones.

  Args:
    path: File of the settings, in the folder.
    content: The settings, as JSON values.
    results: Glob pattern of results. If no file matches, the settings are
      overwritten.

  Raises:
    OutputError: If the settings differ. The message lists how.
  """
  if path.exists() and any(path.parent.glob(results)):
    lines = config_lib.differences(files.read_json(path), content)
    if lines:
      raise errors.OutputError(
        f'{path.parent} holds results of other flags: {"; ".join(lines)}. Give'
        ' the same flags, or another --output_dir.'
      )
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(path, content)


def split(name: str, text: str) -> list[str]:
  """Splits flags as a shell does.

  Args:
    name: Name of the flag that holds the text.
    text: Flags, separated by spaces.

  Raises:
    ValueError: If a quote is not closed.
  """
  try:
    return shlex.split(text)
  except ValueError as e:
    raise ValueError(f'{name} must be flags. Found {text!r}: {e}.') from e


def name_of(argument: str) -> str:
  """Returns the name of the flag that an argument sets."""
  return argument.lstrip('-').partition('=')[0]


def refuse(
  arguments: Sequence[str], reserved: dict[str, str], where: str = 'after --'
) -> None:
  """Raises ValueError if arguments set flags that the program sets.

  Args:
    arguments: Command line of the training binary.
    reserved: For each reserved flag, what sets it.
    where: Where the arguments were given.
  """
  for argument in arguments:
    name = name_of(argument)
    if name in reserved:
      raise ValueError(
        f'--{name} must not be given {where}: {reserved[name]} sets it.'
      )
