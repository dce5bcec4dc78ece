"""Warnings about a store that can be written and is of little use."""

from collections.abc import Mapping, Sequence
from typing import Any
import warnings

from data_prep import assignment
from data_prep.sources import base

# With more, most of what a model learns is when to say "unknown".
_MAX_UNKNOWN_SHARE = 0.3


def warn_of_faults(name: str, tally: base.Tally) -> None:
  """Warns of faulty rows, if the source tells where the first is.

  Args:
    name: Of the source.
    tally: What was read and skipped.
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
    stored: The public users of the store.
    planned: Those that were drawn or named.
  """
  if len(stored) < len(planned):
    warnings.warn(
      f'Of {len(planned)} public users {len(stored)} are left: the others have'
      ' no usable sentence.',
      stacklevel=2,
    )


def warn_of_empty_groups(manifest: Mapping[str, Any]) -> None:
  """Warns if nobody is a validation or a test user.

  Args:
    manifest: The store's.
  """
  for group in (assignment.VALIDATION, assignment.TEST):
    if not manifest['groups'][group]['users']:
      reason = f'A larger --{group}_fraction holds some out.'
      if manifest['held_out_by'][group] == 'split':
        reason = "The source's own split has none."
      warnings.warn(
        f'There are no {group} users, without whom train_stackoverflow refuses'
        f' a store. {reason}',
        stacklevel=2,
      )


def warn_of_unknown_words(vocabulary: Mapping[str, Any]) -> None:
  """Warns if many words are not in the vocabulary.

  Args:
    vocabulary: What the manifest says of it.
  """
  for group in (assignment.PRIVATE, assignment.VALIDATION):
    share = vocabulary['unknown_share'][group]
    if share is not None and share > _MAX_UNKNOWN_SHARE:
      warnings.warn(
        f'{share:.0%} of the words of {group} users are not among the'
        f' {vocabulary["size"]:,} words of the vocabulary: a model only learns'
        ' that they are unknown. A larger --vocabulary_size knows more, or'
        ' other words (--vocabulary).',
        stacklevel=2,
      )
      return
