"""Runs commands of a page in one process: TensorFlow is imported once.

Each line of stdin has the words of a command after the interpreter.
"""

import importlib
import runpy
import shlex
import sys

from absl import flags
from absl.testing import flagsaver


def _run(words: list[str]) -> None:
  sys.argv = words
  if words[0] != '-m':
    runpy.run_path(words[0], run_name='__main__')
    return
  module = importlib.import_module(words[1])
  sys.argv = words[1:]
  with flagsaver.flagsaver():
    from scripts.lib import cli

    for prepare in cli.BEFORE_PARSING:
      prepare(cli.expanded(sys.argv[1:]))
    flags.FLAGS(sys.argv)
    module.main()


if __name__ == '__main__':
  sys.path.insert(0, '')
  for line in sys.stdin:
    print('RUNS', line, end='', flush=True)
    _run(shlex.split(line))
