"""Warnings about stores that are valid but of little use."""

from collections.abc import Mapping, Sequence
from typing import Any
import warnings

from data_prep import assignment
from data_prep.sources import base

# Above this, a model mostly learns to predict the unknown word.
_MAX_UNKNOWN_SHARE = 0.3


def warn_of_faults(name: str, tally: base.Tally) -> None:
  """Warns of faulty rows, if the source reports where the first one is.

  Args:
    name: Name of the source.
    tally: Counts of rows read and skipped.
  """
  if tally.first_fault:
    warnings.warn(
      f'{name}: {tally.num_faulty:,} of {tally.rows:,} rows are faulty and were'
      f' skipped. The first is {tally.first_fault}.',
      stacklevel=2,
    )


def warn_of_lost(stored: Sequence[str], planned: Sequence[str]) -> None:
  """Warns if public users have no usable sentence.

  Args:
    stored: Public users in the store.
    planned: Public users that were drawn or named.
  """
  if len(stored) < len(planned):
    warnings.warn(
      f'Only {len(stored)} of {len(planned)} public users are left: the others'
      ' have no usable sentence.',
      stacklevel=2,
    )


def warn_of_empty_groups(manifest: Mapping[str, Any]) -> None:
  """Warns if there are no validation or no test users.

  Args:
    manifest: Manifest of the store.
  """
  for group in (assignment.VALIDATION, assignment.TEST):
    if not manifest['groups'][group]['users']:
      reason = f'Use a larger --{group}_fraction.'
      if manifest['held_out_by'][group] == 'split':
        reason = "The source's own split has none."
      warnings.warn(
        f'There are no {group} users. Training needs them. {reason}',
        stacklevel=2,
      )


def warn_of_unknown_words(vocabulary: Mapping[str, Any]) -> None:
  """Warns if many words are missing from the vocabulary.

  Args:
    vocabulary: The manifest's entry on the vocabulary.
  """
  for group in (assignment.PRIVATE, assignment.VALIDATION):
    share = vocabulary['unknown_share'][group]
    if share is not None and share > _MAX_UNKNOWN_SHARE:
      warnings.warn(
        f'{share:.0%} of the words of {group} users are not among the'
        f' {vocabulary["size"]:,} words of the vocabulary. A model only learns'
        ' that they are unknown. Use a larger --vocabulary_size or another'
        ' --vocabulary.',
        stacklevel=2,
      )
      return
