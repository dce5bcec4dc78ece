"""What a token store holds, for people: a table, a statement, a figure."""

import os
import pathlib
from typing import Any

from data_prep import assignment
import numpy as np
from pda_fed import tables

FIGURE = 'sentences_per_user.png'

_NOTHING = '-'


def format_summary(manifest: dict[str, Any]) -> str:
  """Formats what a manifest says.

  Args:
    manifest: Of a token store.

  Returns:
    Several lines, without a line break at the end.
  """
  rows = []
  for name, group in manifest['groups'].items():
    quantiles = group['sentences_per_user']
    rows.append(
      [
        name,
        f'{group["users"]:,}',
        f'{group["sentences"]:,}',
        *(
          f'{quantiles[q]:,}' if quantiles else _NOTHING
          for q in '0 0.5 1'.split()
        ),
      ]
    )
  header = ['users', 'number', 'sentences', 'fewest', 'median', 'most']
  lines = [tables.format_table(header, rows), '']
  losses = [
    (what, f'{number:,}')
    for what, number in {**manifest['skipped'], **manifest['left_out']}.items()
    if number
  ]
  if losses:
    lines += [tables.format_table(['not used', 'number'], losses), '']
  words = manifest['vocabulary']
  lines.append(
    f'Vocabulary: {words["size"]:,} words, origin {words["origin"]}.'
    f' {words["statement"]}'
  )
  if manifest['max_private_users_per_person'] > 1:
    lines.append(
      f'{manifest["private_overflow_users"]:,} private users are the overflow of'
      ' another: one person may count as two users, and epsilon for a person is'
      ' that of a group of two.'
    )
  lines.append(f'Public users, sha256: {manifest["public_users_sha256"]}')
  return '\n'.join(lines)


def draw_sentences_per_user(
  folder: os.PathLike, plan: assignment.Assignment, max_sentences: int
) -> pathlib.Path:
  """Draws how many sentences the people have, and where the cut is.

  Args:
    folder: Where the figure is written.
    plan: Who is private and public.
    max_sentences: The cut.

  Returns:
    The file, a PNG.

  Raises:
    ImportError: If matplotlib is not installed.
  """
  from matplotlib import figure

  counts = plan.train_counts[plan.train_counts > 0]
  top = int(max(counts.max(), 2 * max_sentences))
  # Whole numbers as edges where they are dense, so that no bar is a gap.
  edges = np.unique(np.geomspace(1, top + 1, 49).round().astype(np.int64))
  canvas = figure.Figure(figsize=(7, 4), dpi=150, layout='constrained')
  axes = canvas.add_subplot()
  for name, colour, part in (
    ('all sentences kept', '#4878a8', counts <= max_sentences),
    ('overflow', '#d1803a', counts > max_sentences),
  ):
    axes.hist(
      counts[part],
      bins=edges,
      color=colour,
      label=f'{name}: {int(part.sum()):,} users',
    )
  axes.axvline(max_sentences, color='#303030', linewidth=1, linestyle='--')
  axes.annotate(
    f'cut at {max_sentences:,}',
    (max_sentences, 1),
    xycoords=('data', 'axes fraction'),
    xytext=(4, -12),
    textcoords='offset points',
    fontsize=9,
  )
  axes.set_xscale('log')
  axes.set_yscale('log')
  axes.set_xlabel('sentences of a user')
  axes.set_ylabel('users')
  public = len(plan.groups[assignment.PUBLIC])
  axes.set_title(
    f'{counts.size:,} users, {public:,} public', fontsize=11, loc='left'
  )
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False, loc='lower left', bbox_to_anchor=(0, 0))
  path = pathlib.Path(folder) / FIGURE
  # Without the name of the library's version: equal data, equal bytes.
  canvas.savefig(path, metadata={'Software': None})
  return path
