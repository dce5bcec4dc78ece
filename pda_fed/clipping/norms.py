"""Norms and weighted sums of examples' gradients, from recorded sites.

The gradient of one example by a weight is a sum of outer products,

    G = A' B,    A: positions x inputs,    B: positions x outputs,

with a position for each token, pixel or step. Only its norm is needed,

    ||G||^2 = sum_{p, q} (A A')_{p q} (B B')_{p q},

the *ghost norm* of Gram matrices ("Large Language Models Can Be Strong
Differentially Private Learners", Li et al., ICLR 2022, arXiv:2110.05679, after
"Efficient Per-Example Gradient Computations", Goodfellow, arXiv:1510.01799), or
G itself where that is cheaper. If a weight has several sites, such as a table
of embeddings that also gives the logits, positions of all sites are paired. The
clipped sum is then one product for all examples.
"""

from collections.abc import Callable, Sequence
import itertools
from typing import NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed.clipping import known as known_lib
from pda_fed.clipping import numerics
from pda_fed.clipping import sites as sites_lib

# Sums or gradients by the weights' numbers.
Sums = dict[int, jax.Array]

# Of a float32, in tables of what norms take.
_BYTES = 4


class Recorded(NamedTuple):
  """A site with what a batch left there.

  Attributes:
    site: The site.
    record: What was recorded, [batch, *steps, ...], or None.
    delta: The derivatives by the output, [batch, *steps, ...].
  """

  site: sites_lib.Site
  record: Optional[jax.Array]
  delta: jax.Array

  def factors(self) -> sites_lib.Factors:
    return self.site.factors(self.record, self.delta)


class Part(NamedTuple):
  """What some sites contribute.

  Attributes:
    sites: The sites.
    method: How their norm is found: 'Gram matrices', 'product' or 'formed'.
    bytes: The memory that this takes for each example, at each site.
    squared: Squared norms, [batch].
    weighted: Returns the weighted sum for each weight. Its arguments are the
      examples' scales and a mask of those that count.
    rounded: Returns the squared norms of what `weighted` adds up, if it rounds
      scaled factors.
  """

  sites: list[sites_lib.Site]
  method: str
  bytes: list[int]
  squared: jax.Array
  weighted: Callable[[jax.Array, jax.Array], Sums]
  rounded: Optional[Callable[[jax.Array, jax.Array], jax.Array]] = None


def find(recorded: Sequence[Recorded], leaves: Sequence[jax.Array]):
  """Returns the parts of a batch's gradients, each found in the cheapest way.

  Args:
    recorded: All sites.
    leaves: The flattened weights.
  """
  return [_part(group, leaves) for group in _groups(recorded)]


def _part(group: Sequence[Recorded], leaves) -> Part:
  sites = [r.site for r in group]
  simple = all(s.find is not None and s.weight.keeps_norms for s in sites)
  factors = [r.factors() for r in group] if simple else []
  if factors and _has_cheap_grams(factors):
    return _gram_part(sites, factors, leaves)
  if len(factors) != 1:
    return formed_part(sites, [form(r, leaves) for r in group])
  (f,), weight = factors, sites[0].weight
  gradients = _form(f)

  def weighted(scales, counts):
    total = f.restore(_weighted_rows(scales, counts, gradients))
    return known_lib.pull(weight, leaves, total)

  sizes = [gradients[0].size * _BYTES]
  squared = numerics.square_sum(gradients)
  return Part(sites, 'product', sizes, squared, weighted)


def _groups(recorded: Sequence[Recorded]) -> list[list[Recorded]]:
  """Groups sites that share entries of a weight."""

  def share(one, other):
    if not one.leaves & other.leaves:
      return False
    views = one.view, other.view
    return None in views or one.view.overlaps(other.view)

  groups: list[list[Recorded]] = []
  for own in recorded:
    joined, apart = [], []
    for group in groups:
      meets = any(share(r.site.weight, own.site.weight) for r in group)
      (joined if meets else apart).append(group)
    groups = [*apart, [*itertools.chain(*joined), own]]
  return groups


def _has_cheap_grams(group: Sequence[sites_lib.Factors]) -> bool:
  """Returns whether Gram matrices need fewer products than gradients."""
  first, positions = group[0], sum(f.positions for f in group)
  if len(group) == 1 and first.is_index:
    return positions <= first.inputs
  if len(group) > 1 and not all(first.is_pair(f) for f in group):
    return False
  added = first.inputs + first.outputs
  return positions * added < first.inputs * first.outputs


def _gram(x: jax.Array, y: jax.Array) -> jax.Array:
  """Returns inner products of the positions of two sites."""
  if x.ndim == y.ndim == 4:
    return numerics.product(x, y, ((3,), (3,)), ((0, 1), (0, 1)))
  if x.ndim == y.ndim:  # Numbers of rows.
    return (x[:, :, :, None] == y[:, :, None, :]).astype(jnp.float32)
  if x.ndim < y.ndim:
    return _gram(y, x).swapaxes(2, 3)
  options = {'mode': 'fill', 'fill_value': 0}
  taken = jnp.take_along_axis(x, y[:, :, None, :], axis=3, **options)
  return numerics.widen(taken)


def _gram_squares(group: Sequence[sites_lib.Factors]) -> jax.Array:
  """Returns squared norms of the sum of the sites' gradients, rounded up."""
  first = group[0]
  pairs = [(f.a, f.b) if f.is_alike(first) else (f.b, f.a) for f in group]
  squared, lengths = 0.0, []
  for (i, s), (j, t) in itertools.combinations_with_replacement(
    enumerate(pairs), 2
  ):
    grams = [_gram(x, y) for x, y in zip(s, t, strict=True)]
    found = (grams[0] * grams[1]).sum(axis=3).sum(axis=2)
    squared = squared + (found if i == j else 2 * found)
    if i == j:
      diagonals = (jnp.diagonal(g, axis1=2, axis2=3) for g in grams)
      lengths.append([jnp.sqrt(d) for d in diagonals])
  both = (jnp.concatenate(one, axis=2) for one in zip(*lengths, strict=True))
  return numerics.from_above(squared, *both, first.inputs + first.outputs)


def _weigh(f: sites_lib.Factors, scales, counts) -> sites_lib.Factors:
  """Scales the narrower factor; numbers of rows have none."""
  narrow = 'b' if f.is_index or f.inputs >= f.outputs else 'a'
  other = 'b' if narrow == 'a' else 'a'
  weighed = numerics.weigh(scales, counts, getattr(f, narrow))
  if _is_rounded(f):
    weighed = numerics.round_once(weighed, getattr(f, other).dtype)
  return f._replace(**{narrow: weighed})


def _is_rounded(f: sites_lib.Factors) -> bool:
  """Returns whether scaled factors are rounded: for products that are quick."""
  narrow = not f.is_index and f.a.dtype == f.b.dtype == jnp.bfloat16
  return narrow and jax.default_backend() != 'cpu'


def _weighted_product(f: sites_lib.Factors, scales, counts) -> jax.Array:
  """Returns the weighted sum of gradients, [blocks, inputs, outputs]."""
  weighed = _weigh(f, scales, counts)
  a, b = (numerics.keep(counts, x) for x in (weighed.a, weighed.b))
  if not f.is_index:
    return numerics.product(a, b, ((0, 2), (0, 2)), ((1,), (1,)))
  table = jnp.zeros((f.inputs, f.outputs), b.dtype)
  rows = b.reshape(-1, f.outputs)
  return table.at[f.a.reshape(-1)].add(rows, mode='drop')[None]


def _gram_part(sites, group: Sequence[sites_lib.Factors], leaves) -> Part:
  def rounded(scales, counts):
    squared = _gram_squares([_weigh(f, scales, counts) for f in group])
    return jnp.where(counts, squared, 0)

  def weighted(scales, counts):
    sums: Sums = {}
    for f, site in zip(group, sites, strict=True):
      total = f.restore(_weighted_product(f, scales, counts))
      add(sums, known_lib.pull(site.weight, leaves, total))
    return sums

  total = sum(f.positions for f in group)
  sizes = [2 * f.b.shape[1] * f.positions * total * _BYTES for f in group]
  is_rounded = any(_is_rounded(f) for f in group)
  return Part(
    sites,
    'Gram matrices',
    sizes,
    _gram_squares(group),
    weighted,
    rounded if is_rounded else None,
  )


def _form(f: sites_lib.Factors) -> jax.Array:
  """Returns the gradients, [batch, blocks, inputs, outputs]."""
  if f.is_index and f.positions <= f.inputs:

    def table(index, rows):
      zeros = jnp.zeros((1, f.inputs, f.outputs), rows.dtype)
      return zeros.at[0, index[0]].add(rows[0], mode='drop')

    return jax.vmap(table)(f.a, numerics.widen(f.b))
  a = jax.nn.one_hot(f.a, f.inputs, dtype=f.b.dtype) if f.is_index else f.a
  return numerics.product(a, f.b, ((2,), (2,)), ((0, 1), (0, 1)))


def _weighted_rows(scales, counts, gradients: jax.Array) -> jax.Array:
  return numerics.weigh(scales, counts, gradients).sum(axis=0)


def add(sums: Sums, more: Sums) -> None:
  """Adds to sums in place."""
  for index, value in more.items():
    sums[index] = sums[index] + value if index in sums else value


def form(recorded: Recorded, leaves: Sequence[jax.Array]) -> Sums:
  """Returns the gradients by the weights themselves, [batch, ...]."""
  site = recorded.site
  if site.find is not None:
    f = recorded.factors()
    formed = jax.vmap(f.restore)(_form(f))
  else:
    shared = [1 + k for k, own in enumerate(site.weight.stack) if not own]
    formed = numerics.widen(recorded.delta).sum(axis=shared)
  return jax.vmap(lambda g: known_lib.pull(site.weight, leaves, g))(formed)


def formed_part(sites: list[sites_lib.Site], formed: Sequence[Sums]) -> Part:
  """Returns the part of gradients that were formed at some sites."""
  total: Sums = {}
  for own in formed:
    add(total, own)

  def weighted(scales, counts):
    return {k: _weighted_rows(scales, counts, g) for k, g in total.items()}

  sizes = [sum(g[0].size for g in own.values()) * _BYTES for own in formed]
  squared = sum(map(numerics.square_sum, total.values()))
  return Part(sites, 'formed', sizes, squared, weighted)
