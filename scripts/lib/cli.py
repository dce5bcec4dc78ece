"""Functions of all binaries: quiet start, flags, one-line errors.

Import this before anything that imports TensorFlow:

    from scripts.lib import cli  # First: it silences TensorFlow.

    # isort: split

    def main(): ...

    if __name__ == '__main__':
      cli.run(main)
"""

from collections.abc import Callable, Sequence
import contextlib
import functools
import importlib.util
import logging
import os
import pathlib
import shlex
import sys
import traceback
from typing import NoReturn
import warnings

from absl import app
from absl import flags
from absl import logging as absl_logging
from pda_fed import errors

# Errors that the user can fix. Any other exception is a bug and keeps its
# traceback.
USER_ERRORS = (errors.PdaFedError, ValueError, OSError)

# Called with the command line, with flag files expanded, before flags are
# parsed.
BEFORE_PARSING: list[Callable[[Sequence[str]], None]] = []

# The folder that has `scripts`: the root of a clone, or in a wheel `_programs`.
_ROOT = pathlib.Path(__file__).parents[2]

DEBUG = flags.DEFINE_bool(
  'debug', False, 'Show the traceback of an error, not just one line.'
)


def quiet_tensorflow() -> None:
  """Silences the messages of TensorFlow and JAX at startup.

  TensorFlow reads the variable when it is imported, so this runs when this
  module is imported. A value that the user has set is kept.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  logging.getLogger('tensorflow').setLevel(logging.ERROR)
  logging.getLogger('jax').setLevel(logging.ERROR)


quiet_tensorflow()


def say_error(message: str) -> None:
  """Prints an error as one line."""
  print(f'error: {" ".join(message.split())}', file=sys.stderr, flush=True)


def exit_code_of(error: BaseException) -> int:
  """Returns the exit code for an error of the user.

  Args:
    error: One of `USER_ERRORS`.
  """
  paths = (FileNotFoundError, FileExistsError)
  default = 2 if isinstance(error, (ValueError, *paths)) else 3
  return getattr(error, 'exit_code', default)


def explain(error: BaseException) -> int:
  """Prints an error, as one line if the user can fix it.

  Args:
    error: Any error, or Ctrl-C.

  Returns:
    The exit code.
  """
  is_known = isinstance(error, USER_ERRORS)
  code = exit_code_of(error) if is_known else 1
  if isinstance(error, KeyboardInterrupt):
    print('interrupted', file=sys.stderr)
    return 130
  if isinstance(error, errors.StoppedError):
    print(error, file=sys.stderr)
  elif is_known and not DEBUG.value:
    say_error(str(error))
  else:
    traceback.print_exception(error)
  return code


def fail(message: str, exit_code: int = 2) -> NoReturn:
  """Prints an error as one line and exits."""
  say_error(message)
  sys.exit(exit_code)


def _show_warning(message, category, filename, lineno, file=None, line=None):
  del category, filename, lineno, file, line
  bars = sys.modules.get('tqdm')
  if bars is None:
    print(f'warning: {message}', file=sys.stderr)
  else:  # Above a progress bar, if there is one.
    bars.tqdm.write(f'warning: {message}', file=sys.stderr)


def program(name: str) -> list[str]:
  """Returns the words of a shell that start a program of ours."""
  if _ROOT.name == '_programs':
    return ['pda-fed', name]
  return ['python', '-m', f'scripts.{name}']


def command_line() -> str:
  """Returns the command that started this program."""
  name = pathlib.Path(sys.argv[0]).stem
  return shlex.join([*program(name), *sys.argv[1:]])


def shipped(path: str) -> str:
  """Returns where a file is that is named by its path in a clone.

  Args:
    path: Any path. One that begins with scripts/ or data_prep/ and is not in
      the working directory is looked for beside the installed code.
  """
  package = path.partition('/')[0]
  if package in ('data_prep', 'scripts') and not os.path.exists(path):
    origin = importlib.util.find_spec(package).origin
    found = pathlib.Path(origin).parents[1] / path
    return str(found) if found.exists() else path
  return path


def presets() -> list[str]:
  """Returns the names of the flag files in scripts/presets."""
  folder = _ROOT / 'scripts/presets'
  return sorted(path.name for path in folder.glob('*.flags'))


def expanded(arguments: Sequence[str]) -> list[str]:
  """Returns arguments with their flag files expanded.

  Presets, which --flagfile=scripts/presets/NAME.flags names, are found from any
  working directory. Its own files of such names come first.

  Args:
    arguments: Command line of a program.

  Raises:
    ValueError: If a flag file cannot be opened or is not text. In the first
      case the message lists the presets.
  """
  found: list[str] = []
  read = functools.partial(flags.FLAGS.read_flags_from_files, force_gnu=False)
  try:
    for i, argument in enumerate(arguments):
      if argument == '--':
        return [*read(found), *arguments[i:]]
      name, _, path = argument.partition('=')
      if name.lstrip('-') == 'flagfile' and shipped(path) != path:
        with contextlib.chdir(_ROOT):  # Presets name others by such paths.
          found += read([argument])
      else:
        found.append(argument)
    return read(found)
  except flags.CantOpenFlagFileError as e:
    known = ', '.join(presets())
    raise ValueError(f'{e}. Presets in scripts/presets: {known}') from e
  except flags.Error as e:
    raise ValueError(f'{" ".join(arguments)}: {e}') from e
  except ValueError as e:
    given = [argument for argument in arguments if 'flagfile' in argument]
    raise ValueError(
      f'{" ".join(given)}: a flag file must be UTF-8 text: {e}.'
    ) from e


def read_command_lines(path: pathlib.Path) -> list[list[str]]:
  """Reads command lines, one per line, split as a shell would.

  Args:
    path: A UTF-8 file. Comments and empty lines are skipped.

  Raises:
    ValueError: If the file is not text, or a quote is not closed.
  """
  try:
    lines = path.read_text(encoding='utf-8').splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
  except ValueError as e:
    raise ValueError(f'{path} must have one command per line: {e}.') from e
  return [line for line in found if line]


def _parse_flags(argv: Sequence[str]) -> list[str]:
  # Bazel starts programs in its own folder and passes the user's. Change to it
  # before the flags are parsed: --flagfile is relative to it.
  os.chdir(os.environ.get('BUILD_WORKING_DIRECTORY', '.'))
  try:
    arguments = expanded(argv[1:])
    for prepare in BEFORE_PARSING:
      prepare(arguments)
    return flags.FLAGS([argv[0], *arguments])
  except USER_ERRORS as e:
    fail(str(e), exit_code_of(e))
  except flags.Error as e:
    fail(f'{e} (--help lists the flags)')


def run(main: Callable[[], None]) -> NoReturn:
  """Parses the flags, runs `main`, and ends the program.

  Args:
    main: The program. If it raises a ValueError, an OSError or a
      `PdaFedError`, one line is printed (with --debug, the traceback). The exit
      code is 2 for a ValueError or a wrong path, 3 for any other OSError, a
      `PdaFedError`'s own code, and 130 for Ctrl-C.
  """

  def guarded(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      fail(f'unexpected argument {argv[1]!r} (--help lists the flags)')
    # TFF logs a lot, and dp_accounting a line for each order that it skips.
    absl_logging.set_verbosity(absl_logging.ERROR)
    warnings.showwarning = _show_warning
    try:
      main()
      sys.stdout.flush()
    except BrokenPipeError:
      # The reader, such as `head`, has closed the pipe. Python would report
      # this again when it flushes at exit.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      sys.exit(141)
    except (KeyboardInterrupt, *USER_ERRORS) as e:
      sys.exit(explain(e))

  # Not app.run: after it, importing TensorFlow would run TensorFlow's absl hook
  # before TensorFlow is set up, and its control flow would stay that of version
  # 1. Engines are imported when they are chosen.
  app.define_help_flags()
  absl_logging.use_absl_handler()
  guarded(_parse_flags(sys.argv))
  sys.exit(0)
