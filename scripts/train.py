r"""Trains a model with differential privacy, for users or for examples.

    python -m scripts.train --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags --method=pda \
        --output_dir=out/pda

trains on the users of a store that prepare_users wrote: text, images or tables.
With --dataset, single examples are protected instead of users:

    python -m scripts.train --dataset=digits --method=pda --seed=0 \
        --output_dir=out/digits

The defaults of rounds, cohort, batch size, noise and alpha are the paper's; the
learning rates and the clip norm are values of its grids, since the paper does
not say which values were best. Every setting is a flag, and a field of the JSON
file that --config reads. To resume a run that was stopped by Ctrl-C or a crash,
give the same command again. The program writes config.json, metrics.csv,
result.json, checkpoints/ and tensorboard/ to --output_dir.

--runs_file trains many runs in one process, which share data and compiled
programs; each line of the file has the flags of a run.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Sequence
import contextlib
import pathlib
import shlex
import sys
from typing import Optional

from absl import flags
from absl.testing import flagsaver
from pda_fed import errors
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.runs import resuming
from scripts.lib import host_flags
from scripts.lib import results
from scripts.lib import spec_flags

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'Folder of the run: a new one, or that of a run to resume.',
)
_WARM_START_DIR = flags.DEFINE_string(
  'warm_start_dir',
  None,
  'Folder of pre-trained models. Default: warm_start beside --output_dir.',
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  'Check the flags, the data and --output_dir, print the plan of the run and'
  ' its epsilon, and exit without writing anything.',
)
_RUNS_FILE = flags.DEFINE_string(
  'runs_file',
  None,
  'File of runs, one per line. The flags of a line are added to those of the'
  ' command line.',
)
_SIDE_BY_SIDE = flags.DEFINE_integer(
  'side_by_side',
  1,
  'Maximum number of runs of --runs_file to compute at once, if they have a'
  ' --dataset and differ only in seeds, learning rates, alpha or noise. For'
  ' small models on a GPU.',
  lower_bound=1,
)
flags.adopt_module_key_flags(host_flags)
spec_flags.define()
flags.adopt_module_key_flags(spec_flags)


def _output_dir() -> pathlib.Path:
  if not _OUTPUT_DIR.value:
    raise ValueError('--output_dir must be given.')
  return pathlib.Path(_OUTPUT_DIR.value)


def _resolve(words: Optional[Sequence[str]] = None) -> runs_lib.Run:
  """Returns the run of the flags, which fits its data and its folder."""
  spec = spec_flags.spec(words=words)
  run = runs_lib.resolve(spec, trust_code=spec_flags.trusts(spec))
  # Before anything is printed.
  resuming.check(runs_lib.RunFolder(_output_dir()), run)
  return run


def _cautions(run: runs_lib.Run) -> list[str]:
  """Returns a warning if nobody has set the noise."""
  if spec_flags.chooses(('noise_multiplier', 'target_epsilon')):
    return []
  return [
    'noise_multiplier was not given: using the default,'
    f' {run.plan.noise_multiplier:g}. Give --noise_multiplier or'
    ' --target_epsilon.'
  ]


def _train(
  run: runs_lib.Run, open_engine=None, new_seeds=privacy.SeedStreams
) -> runs_lib.RunFolder:
  return runs_lib.train(
    run,
    _output_dir(),
    open_engine=open_engine or runs_lib.open_engine,
    warm_start_dir=_WARM_START_DIR.value,
    callbacks=[runs_lib.Progress(_cautions(run))],
    new_seeds=new_seeds,
  )


def _run_one() -> None:
  _output_dir()
  run = _resolve()
  host_flags.check()
  if _DRY_RUN.value:
    results.show_plan(run, cautions=_cautions(run))
  elif host_flags.DISTRIBUTED.value:
    host_flags.compute(
      run,
      runs_lib.open_engine,
      lambda *on_hosts: results.show(_train(run, *on_hosts)),
    )
  else:
    results.show(_train(run))


def _read_run(path: pathlib.Path, line: Sequence[str]):
  """Returns the run and the folder of a line."""
  with flagsaver.flagsaver():
    try:
      rest = flags.FLAGS([sys.argv[0], *cli.expanded(line)])[1:]
      if rest:
        raise ValueError(f'unexpected argument {rest[0]!r}')
      return _resolve([*sys.argv[1:], *line]), _output_dir().resolve()
    except (flags.Error, ValueError) as e:
      raise ValueError(f'{path}, {shlex.join(line)}: {e}') from e


def _run_many(path: pathlib.Path) -> None:
  """Makes the runs of a file, one after another or side by side."""
  # It imports JAX.
  from pda_fed.runs.engines import side_by_side

  lines = cli.read_command_lines(path)
  for line in lines:  # Before flagsaver, which would remove them.
    spec_flags.define_choices(cli.expanded(line))
  found = [_read_run(path, line) for line in lines]
  folders = [folder for _, folder in found]
  for folder in folders:
    if folders.count(folder) > 1:
      raise ValueError(
        f'{path} must name each --output_dir once. Found {folder} more than'
        ' once.'
      )
  # The other runs are finished, or resume from a checkpoint on their own.
  new = [run for run, folder in found if runs_lib.RunFolder(folder).is_new()]
  together = side_by_side.open_engines(new, _SIDE_BY_SIDE.value)
  exit_codes = []
  for i, (line, (run, folder)) in enumerate(zip(lines, found, strict=True)):
    print(f'[{i + 1}/{len(found)}] {folder}', file=sys.stderr, flush=True)
    is_new = any(run is other for other in new)
    with flagsaver.flagsaver(), contextlib.ExitStack() as stack:
      flags.FLAGS([sys.argv[0], *cli.expanded(line)])
      stack.enter_context(_said(folder, exit_codes))
      _train(run, together if is_new else None)
  if exit_codes:
    code = exit_codes[0] if len(set(exit_codes)) == 1 else 1
    cli.fail(f'{len(exit_codes)} of {len(found)} runs failed.', exit_code=code)


@contextlib.contextmanager
def _said(folder: pathlib.Path, exit_codes: list[int]):
  """Prints an error of a run, so that the other runs go on."""
  try:
    yield
  except errors.StoppedError:
    raise
  except errors.PdaFedError as e:
    exit_codes.append(e.exit_code)
    cli.say_error(f'{folder}: {e}')


def main() -> None:
  """Runs with the flags' settings."""
  if _RUNS_FILE.value is None:
    _run_one()
    return
  for flag in (_DRY_RUN, host_flags.DISTRIBUTED):
    if flag.value:
      raise ValueError(f'--{flag.name} must not be given with --runs_file.')
  _run_many(pathlib.Path(_RUNS_FILE.value))


if __name__ == '__main__':
  cli.run(main)
