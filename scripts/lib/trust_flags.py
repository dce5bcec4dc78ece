"""--trust_code: whether modules that files name are imported.

A module that the user types on the command line is his own choice. One that
only a file names (a flag file, a config, a chosen.json, a task, a run) needs
--trust_code. This flag counts only where it is typed: a file cannot vouch for
itself.
"""

from collections.abc import Collection
import sys

from absl import flags

_TRUST_CODE = flags.DEFINE_bool(
  'trust_code',
  False,
  'Import the Python modules that files name: flag files, --config, --chosen,'
  ' tasks, models. Importing a module runs its code, so read it first. Modules'
  ' that are named on the command line need no such flag. It must itself be'
  ' given on the command line, not in a flag file.',
)
_TYPED = tuple(
  f'{dashes}{_TRUST_CODE.name}{value}'
  for dashes in ('-', '--')
  for value in ('', '=true', '=True', '=1')
)


def trusts(modules: Collection[str] = ()) -> bool:
  """Returns whether --trust_code is typed, or else each of some modules.

  Args:
    modules: Full names of modules; without any, only --trust_code counts.
  """
  words = sys.argv[1:]
  if any(word in _TYPED for word in words):
    return True
  names = [_names_in(word) for word in words]
  return bool(modules) and all(any(m in of for of in names) for m in modules)


def _names_in(word: str) -> set[str]:
  """Returns the names in a word of the command line: --methods=a,b.c:x=1."""
  for sign in '=,:':
    word = word.replace(sign, ' ')
  return set(word.split())
