"""Flags of a private search, for compare and scripts.privacy."""

from typing import Optional, TYPE_CHECKING

from absl import flags
from pda_fed import privacy

if TYPE_CHECKING:
  from pda_fed.privacy import search as search_lib

PRIVATE_SEARCH = flags.DEFINE_enum(
  'private_search',
  None,
  ['negative_binomial', 'poisson'],
  'Distribution of the number of runs of a private search. The number is'
  ' secret, and only the best run is released. Epsilon then covers the search.'
  " With 'poisson' the number may be 0, and nothing is released.",
)
_SEARCH_RUNS = flags.DEFINE_float(
  'search_runs', None, 'With --private_search: expected number of runs.'
)
# Flags of this module, by name.
NAMES = ('private_search', 'search_runs')


def build() -> Optional['search_lib.PrivateSearch']:
  """Returns the search that the flags ask for; None without one.

  Raises:
    ValueError: If a flag is missing, out of range or given without
      --private_search, or dp_accounting is not installed.
  """
  if PRIVATE_SEARCH.value is None:
    if _SEARCH_RUNS.value is not None:
      raise ValueError('--search_runs must be given with --private_search.')
    return None
  if _SEARCH_RUNS.value is None:
    raise ValueError(
      '--private_search must be given with --search_runs, the expected number'
      ' of runs.'
    )
  try:
    return privacy.PrivateSearch(
      distribution=PRIVATE_SEARCH.value, expected_runs=_SEARCH_RUNS.value
    )
  except ModuleNotFoundError as e:
    raise ValueError(
      f'--private_search needs {e.name}, which is not installed.'
    ) from e


def describe(search: 'search_lib.PrivateSearch') -> str:
  """Returns a description of the search, without its secrets.

  Args:
    search: The search.
  """
  kind, shape = 'Poisson', ''
  if search.distribution == 'negative_binomial':
    kind, shape = 'truncated negative binomial', f', eta {search.eta:g}'
  return f'{kind}, {search.expected_runs:g} runs expected{shape}'
