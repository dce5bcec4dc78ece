"""What a token store holds, for people: a table, a statement, a figure."""

import os
import pathlib
from typing import Any

from data_prep import assignment
import numpy as np
from pda_fed.common import tables

FIGURE = 'sentences_per_user.png'

_SHOWN = ('0', '0.5', '1')  # Of the quantiles in the manifest.
_MAX_NOTES = 20  # Of a kind; the manifest has them all.


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
        *(f'{quantiles[q]:,}' if quantiles else '-' for q in _SHOWN),
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
  lines += _format_notes(manifest)
  words = manifest['vocabulary']
  lines.append(
    f'Vocabulary: {words["size"]:,} words, origin {words["origin"]}.'
    f' {words["statement"]}'
  )
  if manifest['max_private_users_per_person'] > 1:
    lines.append(
      f'{manifest["private_overflow_users"]:,} private users are the overflow'
      ' of another: one person may count as two users, and epsilon for a person'
      ' is that of a group of two.'
    )
  lines.append(f'Public users, sha256: {manifest["public_users_sha256"]}')
  return '\n'.join(lines)


def _format_notes(manifest: dict[str, Any]) -> list[str]:
  lines = []
  for what, notes in manifest.get('source_notes', {}).items():
    more = ', ...' if len(notes) > _MAX_NOTES else ''
    lines.append(
      f'{len(notes):,} {what}: {", ".join(notes[:_MAX_NOTES])}{more}.'
    )
  return lines


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
  edges = _doubling_edges(max_sentences, int(counts.max()))
  # From the first bin with a user on, but with one that is kept.
  first = int(np.searchsorted(edges, min(counts.min(), max_sentences), 'right'))
  edges = edges[first - 1 :]
  numbers, _ = np.histogram(counts, edges)
  centres = np.arange(numbers.size)
  is_overflow = edges[:-1] > max_sentences
  canvas = figure.Figure(figsize=(7, 4), dpi=150, layout='constrained')
  axes = canvas.add_subplot()
  public = len(plan.groups[assignment.PUBLIC])
  people = int((counts > max_sentences).sum())
  for part, colour, label in (
    (~is_overflow, '#4878a8', 'all sentences are kept'),
    (
      is_overflow,
      '#d1803a',
      f'{people:,} overflow; {public:,} users are public',
    ),
  ):
    bars = axes.bar(
      centres[part], numbers[part], width=0.92, color=colour, label=label
    )
    labels = [f'{n:,}' if n else '' for n in numbers[part]]
    axes.bar_label(bars, labels, padding=1, fontsize=7)
  cut = float(centres[~is_overflow][-1]) + 0.5
  axes.axvline(cut, color='#303030', linewidth=1, linestyle='--')
  axes.set_yscale('log')
  axes.set_ylim(0.7, 2 * numbers.max())
  axes.set_xticks(centres, _bin_labels(edges), rotation=40, ha='right')
  axes.tick_params(labelsize=8)
  axes.set_xlabel('sentences of a user')
  axes.set_ylabel('users')
  axes.set_title(
    f'{counts.size:,} users, cut at {max_sentences:,} sentences',
    fontsize=11,
    loc='left',
    pad=10,
  )
  axes.spines[['top', 'right']].set_visible(False)
  axes.margins(x=0.01)
  # Above the axes, where neither bars nor the cut can be.
  axes.legend(
    frameon=False,
    loc='lower right',
    bbox_to_anchor=(1, 1),
    fontsize=8,
    borderaxespad=0.2,
  )
  path = pathlib.Path(folder) / FIGURE
  # Without the name of the library's version: equal data, equal bytes.
  canvas.savefig(path, metadata={'Software': None})
  return path


def _doubling_edges(cut: int, top: int) -> np.ndarray:
  """Returns edges of bins, one of which begins right after the cut."""
  below = [cut + 1]
  while below[-1] > 1:
    below.append((below[-1] - 1) // 2 + 1)
  above = [2 * cut + 1]
  while above[-1] <= top:
    above.append(2 * (above[-1] - 1) + 1)
  return np.array([*below[::-1], *above])


def _bin_labels(edges: np.ndarray) -> list[str]:
  first, last = edges[:-1].tolist(), (edges[1:] - 1).tolist()
  return [
    f'{a:,}' if a == b else f'{a:,}\u2013{b:,}'
    for a, b in zip(first, last, strict=True)
  ]
