"""Settings of a private search: which fit, and how they are described."""

from collections.abc import Mapping
import dataclasses
from typing import Any, TYPE_CHECKING

from pda_fed.compare import grids as grids_lib
from pda_fed.runs import spec as spec_lib

if TYPE_CHECKING:
  from pda_fed.privacy import search as search_lib

# Settings that affect epsilon, which must be the same for all runs.
_ACCOUNTED = (
  'data_dir',
  'dataset',
  'delta',
  'epochs',
  'expected_cohort',
  'noise_multiplier',
  'public_dataset',
  'public_examples',
  'rounds',
  'sampling',
  'split_seed',
  'target_epsilon',
  'validation_examples',
)


# Settings that the search makes itself.
_SET_HERE = ('final_test', 'method', 'seed')


def check(
  specs: Mapping[str, spec_lib.RunSpec], grids: Mapping[str, grids_lib.Grid]
) -> None:
  """Raises ValueError if settings do not fit a private search.

  Args:
    specs: The spec of each method's runs.
    grids: The grid of each method.
  """
  without = [method for method in specs if method not in grids]
  if without:
    raise ValueError(
      '--private_search must be given with --tune for every method. Found none'
      f' for {", ".join(without)}.'
    )
  for spec in specs.values():
    if spec.seed is not None:
      raise ValueError(
        '--seed must not be given with --private_search: runs that share a'
        ' seed share their noise.'
      )
    if spec.audit.audit is not None:
      raise ValueError(
        '--audit must not be given with --private_search: epsilon does not'
        ' cover what an audit shows.'
      )
  names = {grids_lib.canonical(n) for grid in grids.values() for n in grid}
  for name in sorted(names):
    if name in _ACCOUNTED:
      raise ValueError(
        f'--{name} must not be given in --tune with --private_search: it'
        ' changes epsilon, which must be the same for all runs.'
      )
    if name in _SET_HERE:
      raise ValueError(
        f'--{name} must not be given in --tune: the search sets it.'
      )


def describe(search: 'search_lib.PrivateSearch') -> str:
  """Returns a description of the search, without its secrets."""
  kind, shape = 'Poisson', ''
  if search.distribution == 'negative_binomial':
    kind, shape = 'truncated negative binomial', f', eta {search.eta:g}'
  return f'{kind}, {search.expected_runs:g} runs expected{shape}'


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings that determine the runs of searches, as JSON values.

  Attributes:
    specs: For each method, the spec of its runs.
    grids: For each method, the values of each setting.
    metric: The validation metric that chooses the best run.
    search: The fields of the `PrivateSearch`.
  """

  specs: dict[str, dict[str, Any]]
  grids: dict[str, dict[str, list[Any]]]
  metric: str
  search: dict[str, Any]
