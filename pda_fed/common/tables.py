"""Tables for people: in a terminal, in Markdown and in LaTeX."""

from collections.abc import Sequence

_LATEX = {c: rf'\{c}' for c in '%_&#${}'} | {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
}


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
    rows: Cells.
    alignment: An l or an r for each column.

  Returns:
    The table, with a line break at its end.
  """
  rules = [{'l': '---', 'r': '---:'}[side] for side in alignment]
  return ''.join(
    f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |\n'
    for cells in (header, rules, *rows)
  )


def escape_latex(text: str) -> str:
  r"""Returns text as LaTeX takes it.

  Example:

    >>> print(escape_latex('100 % of_it'))
    100 \% of\_it

  Args:
    text: Any.
  """
  return ''.join(_LATEX.get(character, character) for character in text)


def format_latex(
  header: Sequence[str], rows: Sequence[Sequence[str]], alignment: str
) -> str:
  """Formats a table for LaTeX with the package booktabs.

  Args:
    header: The names of the columns, in LaTeX.
    rows: Cells, in LaTeX.
    alignment: An l or an r for each column.

  Returns:
    The table, with a line break at its end.
  """
  lines = [' & '.join(cells) + r' \\' for cells in (header, *rows)]
  parts = [
    rf'\begin{{tabular}}{{{alignment}}}',
    r'\toprule',
    lines[0],
    r'\midrule',
    *lines[1:],
    r'\bottomrule',
    r'\end{tabular}',
  ]
  return '\n'.join(parts) + '\n'
