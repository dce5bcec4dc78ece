"""Writes what the documentation takes from the code.

    python tools/write_api.py

These are docs/api.md, public names with their first sentence and file, and the
table of docs/sharp_edges.md. `make docs` does this. A test fails if a page is
out of date.
"""

import importlib
import inspect
import os
import pathlib
import sys
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = _ROOT / 'docs/api.md'
SHARP_EDGES = _ROOT / 'docs/sharp_edges.md'
_START = '<!-- Written by `make docs`. -->\n'
_END = '<!-- The end of what `make docs` writes. -->\n'

# The project's public packages, in reading order.
PACKAGES = (
  'pda_fed.privacy',
  'pda_fed.audit',
  'pda_fed.schedules',
  'pda_fed.methods',
  'pda_fed.tff',
  'pda_fed.tff.runtime',
  'pda_fed.models',
  'pda_fed.jax',
  'pda_fed.linear_regression',
  'pda_fed.runs',
  'pda_fed.errors',
  'data_prep',
  'data_prep.sources',
  'data_prep.sample_level',
)
_INTRODUCTION = """\
# Public names

Written from the docstrings by `make docs`. `help(NAME)` in Python has the rest:
arguments, results, errors, and an example that the tests run.
"""


def public_names(package: str) -> dict[str, Any]:
  """Returns the public names of a package or module, and their values.

  Args:
    package: Full name of the package or module.
  """
  module = importlib.import_module(package)
  of_module = [
    name
    for name, value in vars(module).items()
    if name[0] != '_' and getattr(value, '__module__', None) == package
  ]
  names = getattr(module, '__all__', of_module)
  return {name: getattr(module, name) for name in names}


def _row(name: str, value: Any) -> str:
  if not callable(value):
    return f'| `{name}` | a constant | |'
  plain = inspect.unwrap(value)
  path = pathlib.Path(inspect.getsourcefile(plain)).resolve()
  path = path.relative_to(_ROOT).as_posix()
  summary = inspect.getdoc(plain).splitlines()[0].replace('|', r'\|')
  return f'| `{name}` | {summary} | [{path}](../{path}) |'


def render() -> str:
  """Returns the page's text."""
  parts = [_INTRODUCTION]
  for package in PACKAGES:
    module = importlib.import_module(package)
    parts += [f'## {package}\n', module.__doc__.splitlines()[0], '']
    parts += ['| name | what | where |', '|---|---|---|']
    parts += [_row(n, v) for n, v in sorted(public_names(package).items())]
    parts.append('')
  return '\n'.join(parts)


def with_table(text: str) -> str:
  """Returns a page with the table of what is shown without noise.

  Args:
    text: The page, with an older table.
  """
  from pda_fed.runs import disclosure

  before, _, rest = text.partition(_START)
  after = rest.partition(_END)[2]
  return f'{before}{_START}\n{disclosure.as_markdown()}\n{_END}{after}'


def main() -> None:
  """Writes the pages."""
  PAGE.write_text(render())
  SHARP_EDGES.write_text(with_table(SHARP_EDGES.read_text()))
  for page in (PAGE, SHARP_EDGES):
    print(f'{page.relative_to(_ROOT)} written')


if __name__ == '__main__':
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  sys.path.insert(0, str(_ROOT))
  main()
