"""Decides which method is better, from a few seeds.

For each metric, the method with the best mean is compared with every other
method. It is the clear winner if each of these 95 % intervals excludes 0.
Because all of them must, no correction for their number is needed: if the best
methods are equally good, a winner is named in at most 5 % of comparisons (in
simulations with 3 seeds: 5 % with two methods, 1 % with three or four).

Runs with the same seed share cohorts and noise, so methods are compared seed by
seed, with the interval of the paired t test on the differences. It makes no
assumption about the variances of methods. A pooled variance would: in
simulations where one of four methods varied five times as much as the others,
its 95 % intervals missed the true value in 20 % of the cases.

Few seeds detect only large differences: docs/training.md says how large.
"""

from collections.abc import Hashable, Mapping
import dataclasses
import math
import statistics
from typing import Optional

from pda_fed.compare import names
from scipy import special

# Values of a metric by seed.
BySeed = Mapping[Hashable, float]

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Difference:
  """A difference of means, and its 95 % interval.

  Example: see `difference`.

  Attributes:
    mean: The difference.
    low: The lower end of the interval; None without an interval.
    high: The upper end of the interval; None without an interval.
    num_seeds: The number of shared seeds if paired, otherwise the smaller of
      both numbers of seeds.
    paired: Whether the difference was taken seed by seed.
  """

  mean: float
  low: Optional[float]
  high: Optional[float]
  num_seeds: int
  paired: bool

  @property
  def is_clear(self) -> bool:
    """Whether there is an interval and it lies above 0."""
    return self.low is not None and self.low > 0


def difference(a: BySeed, b: BySeed) -> Difference:
  """Returns the mean of `a` minus the mean of `b`, with a 95 % interval.

  If `a` and `b` share at least two seeds, this is the paired t interval over
  the shared seeds; otherwise Welch's interval over all values. A single seed
  gives no interval.

  Example:

    >>> found = difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.5, 1: 1.0, 2: 1.5})
    >>> round(found.mean, 2), round(found.low, 2), round(found.high, 2)
    (1.0, -0.24, 2.24)
    >>> found.is_clear
    False

  Args:
    a: Finite values by seed, at least one.
    b: Finite values by seed, at least one.

  Raises:
    ValueError: If there is no value, or a value is not finite.
  """
  for name, values in (('a', a), ('b', b)):
    if not values or not all(map(math.isfinite, values.values())):
      raise ValueError(
        f'{name} must have at least one value, all finite. Found'
        f' {dict(values)}.'
      )
  shared = [seed for seed in a if seed in b]
  paired = len(shared) > 1 or bool(shared and min(len(a), len(b)) == 1)
  samples = [list(a.values()), list(b.values())]
  mean = statistics.fmean(samples[0]) - statistics.fmean(samples[1])
  if paired:
    samples = [[a[seed] - b[seed] for seed in shared]]
    mean = statistics.fmean(samples[0])
  num = min(map(len, samples))
  if num == 1:
    return Difference(mean, None, None, 1, paired)
  # Welch's, with Satterthwaite's degrees of freedom; of one sample Student's.
  parts = [(statistics.variance(v) / len(v), len(v) - 1) for v in samples]
  square, half = sum(part for part, _ in parts), 0.0
  if square:
    freedom = square**2 / sum(part**2 / degrees for part, degrees in parts)
    quantile = float(special.stdtrit(freedom, (1 + _CONFIDENCE) / 2))
    half = quantile * math.sqrt(square)
  return Difference(mean, mean - half, mean + half, num, paired)


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The best method by a metric, and its leads over the others.

  Example: see `decide`.

  Attributes:
    metric: The metric's name.
    best: The method with the best mean.
    leads: How much better the best method is than each other method, in the
      order of their means. Positive is better, whatever the metric.
    left_out: Methods that diverged: some value is not finite.
  """

  metric: str
  best: str
  leads: dict[str, Difference]
  left_out: tuple[str, ...] = ()

  @property
  def is_clear(self) -> bool:
    """Whether the best method is clearly better than every other one."""
    return all(lead.is_clear for lead in self.leads.values())

  @property
  def has_intervals(self) -> bool:
    """Whether there are enough seeds for intervals."""
    return all(lead.low is not None for lead in self.leads.values())

  @property
  def rival(self) -> str:
    """The best method that is not clearly worse, or else the second best."""
    unclear = [m for m, lead in self.leads.items() if not lead.is_clear]
    return next(iter(unclear or self.leads))


def decide(metric: str, values: Mapping[str, BySeed]) -> Optional[Verdict]:
  """Returns the verdict by a metric.

  Example:

    >>> found = decide('loss', {'a': {0: 1.0, 1: 1.1}, 'b': {0: 2.0, 1: 2.1}})
    >>> found.best, round(found.leads['b'].mean, 3), found.is_clear
    ('a', 1.0, True)

  Args:
    metric: The metric's name.
    values: Values by method and seed.

  Returns:
    The verdict, or None if fewer than two methods have finite values.
  """
  finite = {
    method: by_seed
    for method, by_seed in values.items()
    if all(map(math.isfinite, by_seed.values()))
  }
  if len(finite) < 2:
    return None
  sign = names.sign(metric)
  signed = {
    method: {seed: sign * value for seed, value in by_seed.items()}
    for method, by_seed in finite.items()
  }
  means = {m: statistics.fmean(v.values()) for m, v in signed.items()}
  best, *others = sorted(means, key=means.get, reverse=True)
  return Verdict(
    metric,
    best,
    {m: difference(signed[best], signed[m]) for m in others},
    tuple(m for m in values if m not in finite),
  )
