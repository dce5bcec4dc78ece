"""Flags of a federated privacy plan, for training and scripts.privacy."""

from collections.abc import Iterator
import contextlib
from typing import Any, Optional

from absl import flags
from pda_fed import privacy

DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Folder of the store that prepare_users wrote.'
)
ROUNDS = flags.DEFINE_integer(
  'rounds',
  None,
  'T, the number of rounds. Default in training: 1600.',
  lower_bound=1,
)
CLIENTS_PER_ROUND = flags.DEFINE_float(
  'clients_per_round',
  None,
  'qN, the expected number of users in a round. Default in training: 100.',
)
CLIP_NORM = flags.DEFINE_float(
  'clip_norm',
  None,
  "Bound on the norm of a user's model update. With --adaptive_clipping, its"
  ' initial value. Default in training: 0.3. It does not affect epsilon.',
)
SAMPLING = flags.DEFINE_enum(
  'sampling',
  None,
  ['poisson', 'fixed_size', 'fixed_size_as_poisson', 'epochs'],
  "How cohorts are sampled. 'poisson' (default): each user independently."
  " 'fixed_size': the same number of users in every round."
  " 'fixed_size_as_poisson': cohorts of fixed size, with the approximate"
  " epsilon of Poisson sampling. 'epochs': every user once per epoch, with"
  ' tree aggregation noise (DP-FTRL); training needs --engine=tff.',
)
_ADAPTIVE_CLIPPING = flags.DEFINE_bool(
  'adaptive_clipping',
  False,
  "Let the clip norm follow a quantile of the updates' norms."
  ' --noise_multiplier then covers both the updates and the quantile.',
)
_CLIP_QUANTILE = flags.DEFINE_float(
  'clip_quantile',
  None,
  'With --adaptive_clipping: target fraction of updates that are not clipped.'
  f' Default: {privacy.AdaptiveClipping.target_quantile:g}.',
)
_CLIP_LEARNING_RATE = flags.DEFINE_float(
  'clip_learning_rate',
  None,
  'With --adaptive_clipping: learning rate of the clip norm. Default:'
  f' {privacy.AdaptiveClipping.learning_rate:g}.',
)
_CLIP_COUNT_STDDEV = flags.DEFINE_float(
  'clip_count_stddev',
  None,
  'With --adaptive_clipping: standard deviation of the noise on the number of'
  ' unclipped updates. Default: a twentieth of the expected cohort.',
)
_OF_ADAPTIVE_CLIPPING = {
  'target_quantile': _CLIP_QUANTILE,
  'learning_rate': _CLIP_LEARNING_RATE,
  'count_stddev': _CLIP_COUNT_STDDEV,
}


def _adaptive_clipping() -> Optional[privacy.AdaptiveClipping]:
  given = {
    field: flag.value
    for field, flag in _OF_ADAPTIVE_CLIPPING.items()
    if flag.value is not None
  }
  if _ADAPTIVE_CLIPPING.value:
    return privacy.AdaptiveClipping(**given)
  if given:
    name = _OF_ADAPTIVE_CLIPPING[next(iter(given))].name
    raise ValueError(f'--{name} must be given with --adaptive_clipping.')
  return None


@contextlib.contextmanager
def named_as_flags() -> Iterator[None]:
  """Makes ValueErrors in the block name flags instead of plan fields."""
  try:
    yield
  except ValueError as e:
    named = str(e).replace('expected_cohort', CLIENTS_PER_ROUND.name)
    raise ValueError(named) from e


def settings() -> dict[str, Any]:
  """Returns the fields of a `PrivacyPlan` that the flags give.

  Raises:
    ValueError: If flags contradict each other.
  """
  adaptive = _adaptive_clipping()
  is_tree = SAMPLING.value == 'epochs'
  if adaptive is not None and is_tree:
    raise ValueError(
      '--adaptive_clipping must not be given with --sampling=epochs: tree'
      ' noise needs a constant clip.'
    )
  fields = {
    'rounds': ROUNDS.value,
    'expected_cohort': CLIENTS_PER_ROUND.value,
    'clip_norm': CLIP_NORM.value,
    'sampling': SAMPLING.value,
    'mechanism': 'tree' if is_tree else None,
    'adaptive_clipping': adaptive,
  }
  return {name: value for name, value in fields.items() if value is not None}
