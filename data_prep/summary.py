"""Summarizes a store: a table, a statement and a figure."""

import os
import pathlib
from typing import Any, Optional

from data_prep import assignment
import numpy as np
from pda_fed.common import tables

FIGURE = '{}_per_user.png'  # The unit: sentences or examples.

_SHOWN = ('0', '0.5', '1')  # Quantiles of the manifest that are shown.
_MAX_NOTES = 20  # Shown per kind; the manifest has all of them.


def format_summary(manifest: dict[str, Any]) -> str:
  """Formats a manifest as text.

  Args:
    manifest: The manifest of a store.

  Returns:
    Several lines, without a trailing line break.
  """
  has_text = 'vocabulary' in manifest
  unit = 'sentences' if has_text else 'examples'
  rows = []
  for name, group in manifest['groups'].items():
    quantiles = group[f'{unit}_per_user']
    rows.append(
      [
        name,
        f'{group["users"]:,}',
        f'{group[unit]:,}',
        *(f'{quantiles[q]:,}' if quantiles else '-' for q in _SHOWN),
      ]
    )
  header = ['users', 'number', unit, 'fewest', 'median', 'most']
  unknown = manifest.get('vocabulary', {}).get('unknown_share')
  if unknown is not None:  # Absent in older stores.
    header.append('unknown words')
    for row in rows:
      share = unknown[row[0]]
      row.append('-' if share is None else f'{share:.1%}')
  lines = [tables.format_table(header, rows), '']
  losses = [
    (what, f'{number:,}')
    for reasons in (manifest.get('skipped', {}), manifest['left_out'])
    for what, number in reasons.items()
    if number
  ]
  if losses:
    lines += [tables.format_table(['not used', 'number'], losses), '']
  lines += _format_notes(manifest)
  lines += _format_words(manifest) if has_text else _format_examples(manifest)
  if manifest['max_private_users_per_person'] > 1:
    lines.append(
      f'{manifest["private_overflow_users"]:,} private users are overflow'
      ' users. One person may be two users: for persons, epsilon is that of'
      ' groups of two users.'
    )
  drawn = describe_drawn_users(manifest)
  lines += [drawn] if drawn else []
  lines.append(f'Public users, sha256: {manifest["public_users_sha256"]}')
  return '\n'.join(lines)


def describe_drawn_users(manifest: dict[str, Any]) -> str:
  """Returns a sentence on public users who did not opt in; '' if all did.

  Args:
    manifest: The manifest of a store.
  """
  drawn = manifest['settings']['num_public_users']
  if not drawn or 'vocabulary' not in manifest:  # Arrays: whole users.
    return ''
  return (
    f'{drawn:,} public users are later sentences of private users. Epsilon does'
    ' not protect these sentences.'
  )


def _format_words(manifest: dict[str, Any]) -> list[str]:
  words = manifest['vocabulary']
  return [
    f'Vocabulary: {words["size"]:,} words, origin {words["origin"]}.'
    f' {words["statement"]}'
  ]


def _format_examples(manifest: dict[str, Any]) -> list[str]:
  inputs, classes = manifest['inputs'], manifest['classes']
  shape = ' x '.join(map(str, inputs['shape']))
  how = (
    "standardised with the public users' mean and scale"
    if manifest['groups'][assignment.PUBLIC]['users']
    else 'not standardised, as there are no public users'
  )
  return [
    f'Inputs: {shape} of {np.dtype(inputs["dtype"])}, {how}.',
    f'Classes: {classes["number"]:,}.',
    *classes['caveats'],
  ]


def _format_notes(manifest: dict[str, Any]) -> list[str]:
  lines = []
  for what, notes in manifest.get('source_notes', {}).items():
    more = ', ...' if len(notes) > _MAX_NOTES else ''
    if len(notes) == 1:  # Singular: 'file read'.
      what = what.replace('s ', ' ', 1)
    lines.append(
      f'{len(notes):,} {what}: {", ".join(notes[:_MAX_NOTES])}{more}.'
    )
  return lines


def draw_sentences_per_user(
  folder: os.PathLike | str,
  plan: assignment.Assignment,
  max_sentences: Optional[int],
  unit: str = 'sentences',
) -> pathlib.Path:
  """Plots the number of sentences of users, and the cut.

  Args:
    folder: Folder of the figure.
    plan: The assignment of users.
    max_sentences: The cut; None if there is none.
    unit: What to count: 'sentences' or 'examples'.

  Returns:
    The path of the PNG file.

  Raises:
    ImportError: If matplotlib is not installed.
  """
  from matplotlib import figure

  counts = plan.train_counts[plan.train_counts > 0]
  top = int(counts.max())
  cut = top if max_sentences is None else max_sentences
  edges = _doubling_edges(cut, top)
  # Start at the first bin with a user, but include one below the cut.
  first = int(np.searchsorted(edges, min(counts.min(), cut), 'right'))
  edges = edges[first - 1 : -1 if max_sentences is None else None]
  numbers, _ = np.histogram(counts, edges)
  centres = np.arange(numbers.size)
  is_overflow = edges[:-1] > cut
  canvas = figure.Figure(figsize=(7, 4), dpi=150, layout='constrained')
  axes = canvas.add_subplot()
  public = len(plan.groups[assignment.PUBLIC])
  people = int((counts > cut).sum())
  bars_of = (
    (~is_overflow, '#4878a8', f'all {unit} are kept'),
    (
      is_overflow,
      '#d1803a',
      f'{people:,} overflow; {public:,} users are public',
    ),
  )
  for part, colour, label in bars_of[: 1 if max_sentences is None else 2]:
    bars = axes.bar(
      centres[part], numbers[part], width=0.92, color=colour, label=label
    )
    labels = [f'{n:,}' if n else '' for n in numbers[part]]
    axes.bar_label(bars, labels, padding=1, fontsize=7)
  if max_sentences is not None:
    line = float(centres[~is_overflow][-1]) + 0.5
    axes.axvline(line, color='#303030', linewidth=1, linestyle='--')
  axes.set_yscale('log')
  axes.set_ylim(0.7, 2 * numbers.max())
  axes.set_xticks(centres, _bin_labels(edges), rotation=40, ha='right')
  axes.tick_params(labelsize=8)
  axes.set_xlabel(f'{unit} of a user')
  axes.set_ylabel('users')
  limit = f'cut at {cut:,} {unit}'
  if max_sentences is None:
    limit = f'{public:,} of them public'
  axes.set_title(
    f'{counts.size:,} users, {limit}',
    fontsize=11,
    loc='left',
    pad=10,
  )
  axes.spines[['top', 'right']].set_visible(False)
  axes.margins(x=0.01)
  # Above the axes, to cover neither bars nor the cut.
  axes.legend(
    frameon=False,
    loc='lower right',
    bbox_to_anchor=(1, 1),
    fontsize=8,
    borderaxespad=0.2,
  )
  path = pathlib.Path(folder) / FIGURE.format(unit)
  # Without the library's version: equal data give equal bytes.
  canvas.savefig(path, metadata={'Software': None})
  return path


def _doubling_edges(cut: int, top: int) -> np.ndarray:
  """Returns bin edges that double, one of them right after the cut."""
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
