"""Writes recorded results into the tables of the documentation.

    python tools/write_tables.py

A table stands between two comments, the first of which names it:

    <!-- table: NAME -->

    | ... |

    <!-- end of table -->

Cells that come from results/ are written; the others, such as the paper's
numbers, stay as the page has them. `make docs` does this. A test fails if a
page is out of date.
"""

from collections.abc import Mapping, Sequence
import os
import pathlib
import re
import sys
from typing import Optional

if __name__ == '__main__':
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tools import tables

_ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [
  _ROOT / path
  for path in ('README.md', 'docs/benchmark.md', 'docs/reproduction.md')
]
_TABLE = re.compile(
  r'(?<=<!-- table: )([^>]+)( -->\n\n)(.*?)(?=\n<!-- end of table -->\n)', re.S
)


def with_cells(
  table: str, cells: Mapping[tuple[str, ...], Sequence[Optional[str]]]
) -> str:
  """Returns a table with new cells.

  Args:
    table: The table. A row whose first cell is *in italics* begins a group.
    cells: Cells of rows, by the cells that a row begins with, after the name of
      its group if it has one. None keeps what the table has.

  Raises:
    ValueError: If the beginning of a row is not that of exactly one row, or a
      row has another number of cells.
  """
  lines, left, group = table.splitlines(), dict(cells), []
  for place, line in enumerate(lines):
    old = [cell.strip() for cell in line.split('|')[1:-1]]
    if re.fullmatch(r'\*[^*].*\*', old[0]):
      group = [old[0]]
    row = [*group, *old]
    for key in [key for key in left if tuple(row[: len(key)]) == key]:
      rest, new = row[len(key) :], left.pop(key)
      if len(rest) != len(new):
        raise ValueError(
          f'The row {key} must have {len(new)} more cells. Found {len(rest)}.'
        )
      kept = [a if b is None else b for a, b in zip(rest, new, strict=True)]
      shown = [f' {c} |' if c else ' |' for c in [*row[: len(key)], *kept]]
      lines[place] = '|' + ''.join(shown[len(group) :])
  if left:
    raise ValueError(f'The table must have the rows {sorted(left)}.')
  return '\n'.join(lines) + '\n'


def with_tables(text: str) -> str:
  """Returns a page with its tables up to date.

  Args:
    text: The page.

  Raises:
    ValueError: If a table is not one of `tables.TABLES`, lacks a row, or does
      not stand between its two comments and two empty lines.
  """

  def write(found: re.Match) -> str:
    name, between, table = found.groups()
    if name not in tables.TABLES:
      raise ValueError(f'Tables are {sorted(tables.TABLES)}. Found {name!r}.')
    return f'{name}{between}{with_cells(table, tables.TABLES[name]())}'

  written, num = _TABLE.subn(write, text)
  if num != text.count('<!-- table: '):
    raise ValueError(
      'A table must stand between "<!-- table: NAME -->", an empty line, an'
      f' empty line and "<!-- end of table -->". Found {num} such tables and'
      f' {text.count("<!-- table: ")} names.'
    )
  return written


def main() -> None:
  """Writes the pages."""
  for page in PAGES:
    page.write_text(with_tables(page.read_text()))
    print(f'{page.relative_to(_ROOT)} written')


if __name__ == '__main__':
  main()
