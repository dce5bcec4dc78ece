"""Tables for people: aligned columns in a terminal."""

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
    rows: Cells; floats are shown with four significant digits.

  Returns:
    The table, without a line break at its end.

  Raises:
    ValueError: If a row has not as many cells as the header.
  """
  for row in rows:
    if len(row) != len(header):
      raise ValueError(
        f'rows must have {len(header)} cells, as the header. Found {row!r}.'
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
