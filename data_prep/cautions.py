"""Warnings about stores that are valid but of little use."""

from collections.abc import Mapping
from typing import Any
import warnings

from data_prep import assignment

# Above this, a model mostly learns to predict the unknown word.
_MAX_UNKNOWN_SHARE = 0.3


def warn(message: str) -> None:
  """Warns without a place in the code, which would not help."""
  warnings.warn(message, stacklevel=2)


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
      warn(f'There are no {group} users. Training needs them. {reason}')


def warn_of_unknown_words(vocabulary: Mapping[str, Any]) -> None:
  """Warns if many words are missing from the vocabulary.

  Args:
    vocabulary: The manifest's entry on the vocabulary.
  """
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
