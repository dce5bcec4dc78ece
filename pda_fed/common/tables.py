"""Formats tables for terminals and Markdown."""

from collections.abc import Sequence


def format_table(
  header: Sequence[str], rows: Sequence[Sequence[object]]
) -> str:
  """Formats rows under a header; numbers align right, text left.

  Example:

    >>> print(format_table(['method', 'accuracy'], [['cold', '8.8 %']]))
    method  accuracy
    ------  --------
    cold       8.8 %

  Args:
    header: The names of the columns.
    rows: The cells of each row. Floats get four significant digits.

  Returns:
    The table, without a trailing newline.

  Raises:
    ValueError: If the number of a row's cells differs from the header's.
  """
  for row in rows:
    if len(row) != len(header):
      raise ValueError(
        f'rows must have {len(header)} cells, like the header. Found {row!r}.'
      )
  texts = [
    [f'{cell:.4g}' if isinstance(cell, float) else str(cell) for cell in row]
    for row in rows
  ]
  columns = list(zip(header, *texts, strict=True))
  widths = [max(map(len, column)) for column in columns]
  numeric = [
    all(cell[:1] in '-+.0123456789' or cell == 'inf' for cell in column[1:])
    for column in columns
  ]

  def line(cells: Sequence[str]) -> str:
    padded = [
      cell.rjust(width) if right else cell.ljust(width)
      for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return '  '.join(padded).rstrip()

  rule = '  '.join('-' * width for width in widths)
  return '\n'.join([line(header), rule, *map(line, texts)])


def format_markdown(
  header: Sequence[str], rows: Sequence[Sequence[str]], alignment: str
) -> str:
  """Formats a table for Markdown.

  Example:

    >>> print(format_markdown(['method', 'loss'], [['cold', '1.2']], 'lr'))
    | method | loss |
    | --- | ---: |
    | cold | 1.2 |
    <BLANKLINE>

  Args:
    header: The names of the columns.
    rows: The cells of each row.
    alignment: 'l' or 'r' for each column.

  Returns:
    The table, with a trailing newline.
  """
  rules = [{'l': '---', 'r': '---:'}[side] for side in alignment]
  return ''.join(
    f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |\n'
    for cells in (header, rules, *rows)
  )
