"""Summarizes a store: a table, a statement, and what is of little use."""

from collections.abc import Mapping
from typing import Any
import warnings

from data_prep import assignment
import numpy as np
from pda_fed.common import tables

_SHOWN = ('0', '0.5', '1')  # Quantiles of the manifest that are shown.
_MAX_NOTES = 20  # Shown per kind; the manifest has all of them.
# Above this, a model mostly learns to predict the unknown word.
_MAX_UNKNOWN_SHARE = 0.3


def format_summary(manifest: dict[str, Any]) -> str:
  """Formats a manifest as text.

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
  if has_text:
    header.append('unknown words')
    for row in rows:
      share = manifest['vocabulary']['unknown_share'][row[0]]
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
  drawn = describe_drawn_users(manifest)
  lines += [drawn] if drawn else []
  lines.append(f'Public users, sha256: {manifest["public_users_sha256"]}')
  return '\n'.join(lines)


def describe_drawn_users(manifest: dict[str, Any]) -> str:
  """Returns a sentence on public users who did not opt in; '' if all did."""
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


def warn(message: str) -> None:
  """Warns without a place in the code, which would not help."""
  warnings.warn(message, stacklevel=2)


def warn_of_empty_groups(manifest: Mapping[str, Any]) -> None:
  """Warns if there are no validation or no test users."""
  for group in (assignment.VALIDATION, assignment.TEST):
    if not manifest['groups'][group]['users']:
      reason = f'Use a larger --{group}_fraction.'
      if manifest['held_out_by'][group] == 'split':
        reason = "The source's own split has none."
      warn(f'There are no {group} users. Training needs them. {reason}')


def warn_of_unknown_words(vocabulary: Mapping[str, Any]) -> None:
  """Warns if many words are missing from the vocabulary."""
  for group in (assignment.PRIVATE, assignment.VALIDATION):
    share = vocabulary['unknown_share'][group]
    if share is not None and share > _MAX_UNKNOWN_SHARE:
      warn(
        f'{share:.0%} of the words of {group} users are not among the'
        f' {vocabulary["size"]:,} words of the vocabulary. A model only learns'
        ' that they are unknown. Use a larger --vocabulary_size or another'
        ' --vocabulary.'
      )
      return
