"""The command pda-fed, and `python -m pda_fed`: one name for all programs.

    pda-fed compare --help

is `python -m scripts.compare --help`, and works outside a clone, too.
"""

import pathlib
import runpy
import sys
from typing import NoReturn

# The program of `scripts`, and what it does.
COMMANDS = {
  'prepare': ('prepare_users', 'Prepare the data of users.'),
  'train': ('train', 'Train a model with privacy of users or examples.'),
  'compare': ('compare', 'Compare methods: table, verdict, figures, page.'),
  'benchmark': ('benchmark', 'Compare methods on the tasks of the benchmark.'),
  'privacy': ('privacy', 'Epsilon from noise, noise from epsilon.'),
  'predict': ('predict', 'Next words, or classes, by a trained model.'),
  'export': ('export', 'Write a trained model for Keras, numpy or TFF.'),
}
_USAGE = 'pda-fed COMMAND [--flags]; pda-fed COMMAND --help lists the flags.'
# Folder of the package `scripts` in a wheel: setup.py puts it there.
_INSTALLED = pathlib.Path(__file__).parent / '_programs'


def _help() -> str:
  width = max(map(len, COMMANDS))
  lines = [f'  {name:{width}}  {what}' for name, (_, what) in COMMANDS.items()]
  return '\n'.join([_USAGE, '', *lines])


def _fail(message: str) -> NoReturn:
  print(f'error: {message}', file=sys.stderr)
  sys.exit(2)


def main() -> None:
  """Runs the program that the command line names."""
  command, *arguments = sys.argv[1:] or ['--help']
  if command in ('-h', '--help', '--helpfull', 'help'):
    print(_help())
    return
  if command not in COMMANDS:
    _fail(f'command must be one of {", ".join(COMMANDS)}. Found {command!r}.')
  program, _ = COMMANDS[command]
  root = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]
  # Like `python -m`, search the working directory: it may have the user's
  # methods.
  sys.path[:0] = [str(root), str(pathlib.Path.cwd())]
  sys.argv[1:] = arguments
  try:
    runpy.run_module(f'scripts.{program}', run_name='__main__', alter_sys=True)
  except ModuleNotFoundError as e:
    package = (e.name or '').partition('.')[0]
    if package in ('', 'data_prep', 'pda_fed', 'scripts'):
      raise
    _fail(f"{command} needs {package}; pip install 'pda_fed[jax]' brings it.")


if __name__ == '__main__':
  main()
