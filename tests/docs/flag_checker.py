"""Parses command lines with a binary's flags, without running it.

Started as a program of its own by `commands_test`: absl's flags are one table
for a whole process. Reads {"module": ..., "commands": [[...], ...]} and writes
{"errors": [...], "flags": [...]}.
"""

import importlib
import json
import sys

from absl import app
from absl import flags
from scripts.lib import cli


def main():
  asked = json.load(sys.stdin)
  importlib.import_module(asked['module'])
  app.define_help_flags()
  known = flags.FLAGS
  errors = []
  for arguments in asked['commands']:
    try:
      for prepare in cli.BEFORE_PARSING:
        prepare(cli.expanded(arguments))
      known(['program', *arguments])
    except flags.Error as e:
      errors.append(f'{" ".join(arguments)}: {e}')
    known.unparse_flags()
  json.dump({'errors': errors, 'flags': sorted(known)}, sys.stdout)


main()
