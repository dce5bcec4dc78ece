"""--trust_code, and which Python modules the user has named himself.

A module that the user types on the command line is his own choice. One that
only a file names (a flag file, a chosen.json, a task) needs --trust_code. This
flag counts only where it is typed: a file cannot vouch for itself.
"""

from collections.abc import Iterator, Sequence
import itertools
import shlex
import sys
from typing import Optional

from absl import flags
from pda_fed import errors
from pda_fed import methods
from pda_fed.common import trust
from scripts.lib import cli

_TRUST_CODE = flags.DEFINE_bool(
  'trust_code',
  False,
  'Import the Python modules that files name: flag files, chosen.json, tasks,'
  ' models. Importing a module runs its code, so read it first. Modules that'
  ' are named on the command line need no such flag. Must itself be given on'
  ' the command line, not in a flag file.',
)
_TYPED = tuple(
  f'{dashes}{_TRUST_CODE.name}{value}'
  for dashes in ('-', '--')
  for value in ('', '=true', '=True', '=1')
)
# Values of --model that are no modules.
MODELS = ('cnn', 'linear', 'lstm')


def trusts() -> bool:
  """Returns whether --trust_code stands on this program's command line."""
  return any(word in _TYPED for word in sys.argv[1:])


def _flags_in(words: Sequence[str]) -> Iterator[tuple[str, str]]:
  """Yields the name and the value of each flag."""
  for word, following in itertools.zip_longest(words, words[1:], fillvalue=''):
    if word.startswith('-'):
      name, equals, value = word.lstrip('-').partition('=')
      yield name, value if equals else following


def _split(text: str) -> list[str]:
  try:
    return shlex.split(text)
  except ValueError:  # The program will refuse it.
    return text.split()


def _may_be_imported(flag: str, name: str) -> bool:
  """Returns whether a flag's value is a module, and none of ours."""
  if flag == 'binary':  # Without a dot, it is in scripts/.
    return '.' in name and not name.startswith('scripts.')
  known = MODELS if flag == 'model' else methods.names()
  return name not in known and trust.is_name(name)


def modules_in(words: Sequence[str]) -> set[str]:
  """Returns the modules that a command line names.

  Args:
    words: The words of a command line, also those after `--`.
  """
  found = set()
  for flag, value in _flags_in(words):
    if flag in ('grid', 'tune'):  # [METHOD:]FLAG=VALUE,...
      before, _, values = value.partition('=')
      flag, value = before.rpartition(':')[2].strip().lstrip('-'), values
    if flag in ('method_flags', 'tune_flags'):  # [METHOD:]FLAGS
      found |= modules_in(_split(value))
      found |= modules_in(_split(value.partition(':')[2]))
    elif flag in ('binary', 'method', 'methods', 'model'):
      names = {name.strip() for name in (value, *value.split(','))}
      found |= {n for n in names if _may_be_imported(flag, n)}
  return found


def is_trusted(module: str) -> bool:
  """Returns whether the user has typed a module's name, or --trust_code."""
  return trusts() or module in modules_in(sys.argv[1:])


def _source_of(module: str) -> str:
  """Returns the flag file that names a module."""
  for name, path in _flags_in(sys.argv[1:]):
    if name == 'flagfile':
      if module in modules_in(cli.expanded([f'--flagfile={path}'])):
        return path
  return 'A file'


def check(module: str, source: Optional[str] = None) -> None:
  """Raises unless a module may be imported.

  Args:
    module: Full name of the module.
    source: The file that names it; None for a flag, which may stand in a flag
      file.

  Raises:
    UntrustedCodeError: If only a file names the module, without --trust_code.
  """
  if not is_trusted(module):
    trust.check(module, source or _source_of(module), False)


def check_words(words: Sequence[str], source: Optional[str] = None) -> None:
  """Raises if flags that come from a file name a module that is not trusted.

  A program calls this before it starts another one with these flags: what the
  other finds on its command line, it takes for the user's words.

  Args:
    words: Flags.
    source: The file that has them; None for a flag file.

  Raises:
    UntrustedCodeError: If only a file names a module, without --trust_code.
  """
  for module in sorted(modules_in(words)):
    check(module, source)
  if not trusts() and any(n == _TRUST_CODE.name for n, _ in _flags_in(words)):
    raise errors.UntrustedCodeError(
      f'{source or "A flag file"} must not have --trust_code. Give it on the'
      ' command line, if you trust the modules that the file names.'
    )


def for_run(*words: str) -> tuple[str, ...]:
  """Returns the flags of a run, with --trust_code if it was given here.

  Args:
    *words: Flags of a training binary.

  Raises:
    UntrustedCodeError: See `check_words`.
  """
  check_words(words)
  before = sys.argv[1 : sys.argv.index('--')] if '--' in sys.argv else sys.argv
  passed = (
    [f'--{_TRUST_CODE.name}'] if any(word in _TYPED for word in before) else []
  )
  return (*passed, *words)
