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
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from pda_fed.clipping import known as known_lib
from pda_fed.clipping import numerics
from pda_fed.clipping import sites as sites_lib

# Sums or gradients by the weights' numbers.
Sums = dict[int, jax.Array]
# A site with what a batch left there: the record and the derivatives by the
# output, [batch, *steps, ...].
Recorded = tuple[sites_lib.Site, Any, jax.Array]

# Of a float32, in tables of what norms take.
_BYTES = 4
# Scaled factors with fewer entries are not rounded: errors would not average
# out.
_LEAST_ROUNDED = 1024


class Part(NamedTuple):
  """What some sites contribute.

  Attributes:
    sites: The sites.
    method: How their norm is found: 'Gram matrices', 'product' or 'formed'.
    bytes: The memory that this takes for each example, at each site.
    squared: Squared norms, [batch].
    weighted: Returns the weighted sum for each weight. Its arguments are a mask
      of the examples that count and their scales.
    rounded: Returns the squared norms of what `weighted` adds up, if it rounds
      scaled factors.
  """

  sites: Sequence[sites_lib.Site]
  method: str
  bytes: Sequence[int]
  squared: jax.Array
  weighted: Callable[[jax.Array, jax.Array], Sums]
  rounded: Optional[Callable[[jax.Array, jax.Array], jax.Array]] = None


def find(
  recorded: Sequence[Recorded], leaves: Sequence[jax.Array]
) -> list[Part]:
  """Returns the parts of a batch's gradients, each found in the cheapest way.

  Args:
    recorded: All sites.
    leaves: The flattened weights.
  """
  return [_part(group, leaves) for group in _groups(recorded)]


def _part(group: Sequence[Recorded], leaves) -> Part:
  sites = [site for site, *_ in group]
  simple = all(s.find is not None and s.weight.keeps_norms for s in sites)
  factors = [site.factors(*rest) for site, *rest in group] if simple else []
  if factors and _has_cheap_grams(factors):
    return _gram_part(sites, factors, leaves)
  if len(factors) == 1:
    (f,), (site,) = factors, sites

    def finish(sums):
      return known_lib.pull(site.weight, leaves, f.restore(sums[0]))

    return formed_part(sites, [{0: _form(f)}], 'product', finish)
  return formed_part(sites, [form(r, leaves) for r in group])


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
      meets = any(share(site.weight, own[0].weight) for site, *_ in group)
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
  taken = jnp.take_along_axis(
    x, y[:, :, None, :], axis=3, mode='fill', fill_value=0
  )
  return numerics.widen(taken)


def _gram_squares(group: Sequence[sites_lib.Factors]) -> jax.Array:
  """Returns squared norms of the sum of the sites' gradients, rounded up."""
  first = group[0]
  pairs = [(f.a, f.b) if f.place == first.place else (f.b, f.a) for f in group]
  squared, lengths = 0.0, []
  for s, t in itertools.combinations_with_replacement(pairs, 2):
    grams = [_gram(x, y) for x, y in zip(s, t, strict=True)]
    found = (grams[0] * grams[1]).sum(axis=3).sum(axis=2)
    squared = squared + (found if s is t else 2 * found)
    if s is t:
      diagonals = (jnp.diagonal(g, axis1=2, axis2=3) for g in grams)
      lengths.append([jnp.sqrt(d) for d in diagonals])
  a, b = (jnp.concatenate(one, axis=2) for one in zip(*lengths, strict=True))
  return numerics.from_above(squared, a, b, first.inputs + first.outputs)


def _is_rounded(f: sites_lib.Factors) -> bool:
  """Returns whether scaled factors are rounded, for products that are quick."""
  is_narrow = not f.is_index and f.a.dtype == f.b.dtype == jnp.bfloat16
  entries = f.positions * min(f.inputs, f.outputs)
  return (
    is_narrow and entries >= _LEAST_ROUNDED and jax.default_backend() != 'cpu'
  )


def _weigh(f: sites_lib.Factors, counts, scales) -> sites_lib.Factors:
  """Scales the narrower factor; numbers of rows have none."""
  narrow = 'b' if f.is_index or f.inputs >= f.outputs else 'a'
  weighed = numerics.weigh(getattr(f, narrow), counts, scales)
  if _is_rounded(f):
    weighed = numerics.round_once(weighed, f.a.dtype)
  return f._replace(**{narrow: weighed})


def _weighted_product(f: sites_lib.Factors, counts, scales) -> jax.Array:
  """Returns the weighted sum of gradients, [blocks, inputs, outputs]."""
  a, b = (numerics.weigh(x, counts) for x in _weigh(f, counts, scales)[:2])
  if not f.is_index:
    return numerics.product(a, b, ((0, 2), (0, 2)), ((1,), (1,)))
  table = jnp.zeros((f.inputs, f.outputs), b.dtype)
  rows = b.reshape(-1, f.outputs)
  return table.at[f.a.reshape(-1)].add(rows, mode='drop')[None]


def _gram_part(sites, group: Sequence[sites_lib.Factors], leaves) -> Part:
  def rounded(counts, scales):
    squared = _gram_squares([_weigh(f, counts, scales) for f in group])
    return jnp.where(counts, squared, 0)

  def weighted(counts, scales):
    sums: Sums = {}
    for f, site in zip(group, sites, strict=True):
      total = f.restore(_weighted_product(f, counts, scales))
      add(sums, known_lib.pull(site.weight, leaves, total))
    return sums

  total = sum(f.positions for f in group)
  sizes = [2 * f.b.shape[1] * f.positions * total * _BYTES for f in group]
  again = rounded if any(map(_is_rounded, group)) else None
  squared = _gram_squares(group)
  return Part(sites, 'Gram matrices', sizes, squared, weighted, again)


def _form(f: sites_lib.Factors) -> jax.Array:
  """Returns the gradients, [batch, blocks, inputs, outputs]."""
  if not f.is_index:
    return numerics.product(f.a, f.b, ((2,), (2,)), ((0, 1), (0, 1)))

  def table(index, rows):
    zeros = jnp.zeros((1, f.inputs, f.outputs), rows.dtype)
    return zeros.at[0, index[0]].add(rows[0], mode='drop')

  return jax.vmap(table)(f.a, numerics.widen(f.b))


def add(sums: Sums, more: Sums) -> None:
  """Adds to sums in place."""
  for index, value in more.items():
    sums[index] = sums[index] + value if index in sums else value


def form(recorded: Recorded, leaves: Sequence[jax.Array]) -> Sums:
  """Returns the gradients by the weights themselves, [batch, ...]."""
  site, record, delta = recorded
  if site.find is not None:
    f = site.factors(record, delta)
    formed = jax.vmap(f.restore)(_form(f))
  else:
    shared = [1 + k for k, own in enumerate(site.weight.stack) if not own]
    formed = numerics.widen(delta).sum(axis=shared)
  return jax.vmap(lambda g: known_lib.pull(site.weight, leaves, g))(formed)


def formed_part(
  sites: Sequence[sites_lib.Site],
  formed: Sequence[Sums],
  method: str = 'formed',
  finish: Callable[[Sums], Sums] = dict,
) -> Part:
  """Returns the part of gradients that were formed at some sites.

  Args:
    sites: The sites.
    formed: Their gradients, [batch, ...].
    method: See `Part`.
    finish: Changes the weighted sums of gradients.
  """
  total: Sums = {}
  for own in formed:
    add(total, own)

  def weighted(counts, scales):
    rows = {k: numerics.weigh(g, counts, scales) for k, g in total.items()}
    return finish({k: g.sum(axis=0) for k, g in rows.items()})

  sizes = [sum(g[0].size for g in own.values()) * _BYTES for own in formed]
  squared = sum(map(numerics.square_sum, total.values()))
  return Part(sites, method, sizes, squared, weighted)
