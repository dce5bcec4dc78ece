"""Settings of an optimizer, which every engine builds from its own library."""

from collections.abc import Mapping
import dataclasses
import functools
import itertools
from typing import ClassVar, Optional

from pda_fed.common import settings
from pda_fed.common import validate

setting = settings.setting

_below_one = functools.partial(setting, check=validate.below_one)
_non_negative = functools.partial(setting, check=validate.non_negative)

# What each optimizer has besides its rate, with TFF's defaults.
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
  'sgd': {'momentum': 0.0},
  'adam': {'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-7},
  'yogi': {
    'beta1': 0.9,
    'beta2': 0.999,
    'epsilon': 1e-3,
    'initial_accumulator': 1e-6,
  },
  'adagrad': {'epsilon': 1e-7, 'initial_accumulator': 0.1},
}
NAMES = tuple(_DEFAULTS)
_OWN = frozenset(itertools.chain(*_DEFAULTS.values()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings(settings.Group):
  """An optimizer by name; all engines take the same steps with it.

  Example:

    >>> OptimizerSettings(optimizer='adam', beta1=0.8).values
    {'beta1': 0.8, 'beta2': 0.999, 'epsilon': 1e-07}

  Attributes:
    DEFAULTS: The settings that each optimizer has, and what None stands for.
  """

  DEFAULTS: ClassVar[Mapping[str, Mapping[str, float]]] = _DEFAULTS

  optimizer: str = setting('sgd', 'The optimizer.', choices=NAMES)
  learning_rate: float = setting(
    1.0, 'The learning rate.', check=validate.positive
  )
  momentum: Optional[float] = _below_one(
    None, 'Momentum of sgd. Default: 0.9 at the server, else 0.'
  )
  beta1: Optional[float] = _below_one(
    None, 'Decay of the mean of gradients of adam and yogi. Default: 0.9.'
  )
  beta2: Optional[float] = _below_one(
    None,
    'Decay of the mean of squared gradients of adam and yogi. Default: 0.99 at'
    ' the server, else 0.999.',
  )
  epsilon: Optional[float] = setting(
    None,
    "Added to the root of the mean of squares, before the mean's bias is"
    ' corrected, as in TFF and Keras (optax adds it after that). adagrad adds'
    ' it to the sum of squares, under the root. Smaller values amplify noise.'
    ' Default: 1e-3 at the server and for yogi, else 1e-7; 1e-6 for adagrad at'
    ' the server.',
    check=validate.positive,
  )
  initial_accumulator: Optional[float] = _non_negative(
    None,
    'First mean of squares of yogi, or first sum of squares of adagrad.'
    ' Default: 1e-6 and 0.1; 0 for adagrad at the server.',
  )
  weight_decay: float = _non_negative(
    0.0,
    'Each step also shrinks the weights by this times the learning rate: AdamW,'
    ' if the optimizer is adam. Only with --engine=jax.',
    only='jax',
  )

  def __post_init__(self):
    super().__post_init__()
    own = self.DEFAULTS[self.optimizer]
    for name in sorted(_OWN - own.keys()):
      if getattr(self, name) is not None:
        raise ValueError(
          f'{self.PREFIX}{name} must be none with {self.optimizer}, which has'
          f' {", ".join(own)}. Found {getattr(self, name)!r}.'
        )

  @property
  def values(self) -> dict[str, float]:
    """What the optimizer has besides rate and decay, with defaults."""
    defaults = self.DEFAULTS[self.optimizer]
    given = {name: getattr(self, name) for name in defaults}
    return {n: defaults[n] if v is None else v for n, v in given.items()}
