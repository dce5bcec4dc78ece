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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from pda_fed.clipping import factors
from pda_fed.clipping import known as known_lib
from pda_fed.clipping import numerics
from pda_fed.clipping import sites as sites_lib

_Sums = dict[int, jax.Array]

# Of a float32, in tables of what norms take.
_BYTES = 4


class Part(NamedTuple):
  """What some sites contribute.

  Attributes:
    squared: Squared norms, [batch].
    weighted: Returns the weighted sum for each weight. Its arguments are the
      examples' scales and a mask of those that count.
  """

  squared: jax.Array
  weighted: Callable[[jax.Array, jax.Array], _Sums]


class Choice(NamedTuple):
  """How the norm at a site is found.

  Attributes:
    site: The site.
    method: 'Gram matrices', 'product' or 'formed'.
    bytes: The memory that this takes for each example.
  """

  site: sites_lib.Site
  method: str
  bytes: int


class Norms(NamedTuple):
  """All parts of the gradients of a batch.

  Attributes:
    parts: Those whose gradients by weights are not formed.
    formed: The gradients by the other weights, [batch, ...].
    choices: How the norm was found at each site.
  """

  parts: list[Part]
  formed: _Sums
  choices: list[Choice]


def _grams(
  s: factors.Factors, t: factors.Factors
) -> tuple[jax.Array, jax.Array]:
  """Returns inner products of the positions of two sites, for both factors."""
  axes = ((3,), (3,)), ((0, 1), (0, 1))
  of_b = numerics.product(s.b, t.b, *axes)
  if not s.is_index and not t.is_index:
    return numerics.product(s.a, t.a, *axes), of_b
  if s.is_index and t.is_index:
    same = s.a[:, :, :, None] == t.a[:, :, None, :]
    return same.astype(of_b.dtype), of_b
  index, dense = (s.a, t.a) if s.is_index else (t.a, s.a)
  taken = jnp.take_along_axis(
    dense, index[:, :, None, :], axis=3, mode='fill', fill_value=0
  )
  taken = numerics.widen(taken)
  return (taken.swapaxes(2, 3) if s.is_index else taken), of_b


def _lengths(gram: jax.Array) -> jax.Array:
  return jnp.sqrt(jnp.diagonal(gram, axis1=2, axis2=3))


def _gram_squares(group: Sequence[factors.Factors]) -> jax.Array:
  """Returns squared norms of the sum of the sites' gradients, rounded up."""
  squared, a_lengths, b_lengths = 0.0, [], []
  for (i, s), (j, t) in itertools.combinations_with_replacement(
    enumerate(group), 2
  ):
    of_a, of_b = _grams(s, t)
    found = (of_a * of_b).sum(axis=3).sum(axis=2)
    squared = squared + (found if i == j else 2 * found)
    if i == j:
      a_lengths.append(_lengths(of_a))
      b_lengths.append(_lengths(of_b))
  return numerics.from_above(
    squared,
    jnp.concatenate(a_lengths, axis=2),
    jnp.concatenate(b_lengths, axis=2),
    (group[0].inputs, group[0].outputs),
    split=any(_is_split(f) for f in group),
  )


def _weighs_a(f: factors.Factors) -> bool:
  """Returns whether to weight `a`: the narrower one is copied in float32."""
  return not f.is_index and f.inputs < f.outputs


def _is_split(f: factors.Factors) -> bool:
  return not f.is_index and numerics.is_split(f.b if _weighs_a(f) else f.a)


def _weighted_product(f: factors.Factors, scales, counts) -> jax.Array:
  """Returns the weighted sum of gradients, [blocks, inputs, outputs]."""
  if f.is_index:
    rows = numerics.weigh(scales, counts, f.b).reshape(-1, f.outputs)
    table = jnp.zeros((f.inputs, f.outputs), rows.dtype)
    return table.at[f.a.reshape(-1)].add(rows, mode='drop')[None]
  if _weighs_a(f):
    weighted = numerics.weigh(scales, counts, f.a)
    return numerics.weighted_product(weighted, numerics.keep(counts, f.b))
  weighted = numerics.weigh(scales, counts, f.b)
  kept = f.a if f.finite is not None else numerics.keep(counts, f.a)
  return numerics.weighted_product(weighted, kept).swapaxes(1, 2)


def _form(f: factors.Factors) -> jax.Array:
  """Returns the gradients, [batch, blocks, inputs, outputs]."""
  if f.is_index and f.positions <= f.inputs:

    def table(index, rows):
      zeros = jnp.zeros((1, f.inputs, f.outputs), rows.dtype)
      return zeros.at[0, index[0]].add(rows[0], mode='drop')

    return jax.vmap(table)(f.a, numerics.widen(f.b))
  if f.shifted is not None:
    formed = f.shifted()
  else:
    a = jax.nn.one_hot(f.a, f.inputs, dtype=f.b.dtype) if f.is_index else f.a
    formed = numerics.product(a, f.b, ((2,), (2,)), ((0, 1), (0, 1)))
  if f.finite is None:
    return formed
  # It looks finite because inputs that are not were replaced by zeros.
  mark = jnp.where(f.finite, 0.0, jnp.nan).astype(formed.dtype)
  return formed + mark.reshape(-1, 1, 1, 1)


def _has_cheap_grams(group: Sequence[factors.Factors]) -> bool:
  """Returns whether Gram matrices need fewer products than gradients."""
  positions = sum(f.positions for f in group)
  inputs, outputs = group[0].inputs, group[0].outputs
  if len(group) == 1 and group[0].is_index:
    return positions <= inputs
  return positions * (inputs + outputs) < inputs * outputs


def _weighted_rows(scales, counts, formed: jax.Array) -> jax.Array:
  return numerics.weigh(scales, counts, formed).sum(axis=0)


def _product_part(f: factors.Factors, weight, leaves) -> Part:
  formed = _form(f)

  def weighted(scales, counts):
    total = f.restore(_weighted_rows(scales, counts, formed))
    return known_lib.pull(weight, leaves, total)

  return Part(numerics.square_sum(formed), weighted)


def _gram_part(
  group: Sequence[factors.Factors],
  weights: Sequence[known_lib.Known],
  leaves,
) -> Part:
  squared = _gram_squares(group)
  for f in group:
    if f.finite is not None:
      squared = jnp.where(f.finite, squared, jnp.nan)

  def weighted(scales, counts):
    sums = {}
    for f, weight in zip(group, weights, strict=True):
      total = f.restore(_weighted_product(f, scales, counts))
      _add(sums, known_lib.pull(weight, leaves, total))
    return sums

  return Part(squared, weighted)


def _add(sums: _Sums, more: _Sums) -> None:
  for index, value in more.items():
    sums[index] = sums[index] + value if index in sums else value


def _formed_by_weights(site, record, delta, leaves) -> _Sums:
  """Returns the gradients by the weights themselves, [batch, ...]."""
  weight = site.weight
  if site.kind is not None:
    f = factors.find(site.kind, weight, record, delta)
    formed = jax.vmap(f.restore)(_form(f))
  else:
    shared = [1 + k for k, own in enumerate(weight.stack) if not own]
    formed = numerics.widen(delta).sum(axis=shared)
  return jax.vmap(lambda g: known_lib.pull(weight, leaves, g))(formed)


def _groups(sites: Sequence[sites_lib.Site]) -> list[list[int]]:
  """Groups the places of sites that share entries of a weight."""
  keys = [_keys(site, sites) for site in sites]
  groups: list[tuple[set, list[int]]] = []
  for place, own in enumerate(keys):
    joined = set(own), [place]
    for group in [g for g in groups if g[0] & own]:
      groups.remove(group)
      joined = joined[0] | group[0], sorted(joined[1] + group[1])
    groups.append(joined)
  return [places for _, places in groups]


def _keys(site: sites_lib.Site, sites: Sequence[sites_lib.Site]) -> set:
  """Returns what a site touches: weights, or boxes of them."""
  keys = set()
  for leaf in site.weight.leaves:
    touching = [s.weight.view for s in sites if leaf in s.weight.leaves]
    boxes = {view.box for view in touching if view is not None}
    apart = None not in touching and not any(
      _overlap(*pair) for pair in itertools.combinations(boxes, 2)
    )
    keys.add((leaf, site.weight.view.box if apart else None))
  return keys


def _overlap(one, other) -> bool:
  return all(
    max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(one, other, strict=True)
  )


def _oriented(f: factors.Factors) -> factors.Factors:
  """Swaps the factors so that inputs are the weight's first axis."""
  first = min((*f.row_axes, *f.column_axes), default=None)
  if f.is_index or first in f.row_axes:
    return f

  def restore(product):
    return f.restore(product.swapaxes(1, 2))

  return factors.Factors(
    a=f.b,
    b=f.a,
    inputs=f.outputs,
    row_axes=f.column_axes,
    column_axes=f.row_axes,
    restore=restore,
  )


def _tied(
  sites: Sequence[sites_lib.Site], group: Sequence[factors.Factors]
) -> bool:
  """Returns whether positions of different sites can be paired."""
  views = [site.weight.view for site in sites]
  simple = all(
    view is not None and not any(site.weight.stack) and f.finite is None
    for view, site, f in zip(views, sites, group, strict=True)
  )
  layouts = {(f.row_axes, f.column_axes, f.a.shape[1]) for f in group}
  return simple and len({v.box for v in views}) == 1 and len(layouts) == 1


def find(
  sites: Sequence[sites_lib.Site],
  records: Sequence,
  deltas: Sequence[jax.Array],
  leaves: Sequence[jax.Array],
  form: bool = False,
) -> Norms:
  """Finds the norms of a batch, in the cheapest way for each weight.

  Args:
    sites: Where weights meet examples.
    records: What was recorded at each, [batch, ...].
    deltas: The derivatives by the outputs, [batch, ...].
    leaves: The flattened weights.
    form: Whether to form all gradients.
  """
  norms = Norms([], {}, [])
  records = [None if r is None else numerics.round_once(r) for r in records]
  deltas = [numerics.round_once(d) for d in deltas]
  for places in _groups(sites):
    chosen = [sites[p] for p in places]
    simple = all(s.kind is not None and s.weight.keeps_norms for s in chosen)
    group = []
    if simple and not form:
      group = [
        factors.find(sites[p].kind, sites[p].weight, records[p], deltas[p])
        for p in places
      ]
      if len(group) > 1:
        group = [_oriented(f) for f in group]
        group = group if _tied(chosen, group) else []
    if group and _has_cheap_grams(group):
      weights = [site.weight for site in chosen]
      norms.parts.append(_gram_part(group, weights, leaves))
      total = sum(f.positions for f in group)
      for site, f in zip(chosen, group, strict=True):
        size = 2 * f.b.shape[1] * f.positions * total * _BYTES
        norms.choices.append(Choice(site, 'Gram matrices', size))
    elif len(group) == 1:
      f = group[0]
      norms.parts.append(_product_part(f, chosen[0].weight, leaves))
      size = f.b.shape[1] * f.inputs * f.outputs * _BYTES
      norms.choices.append(Choice(chosen[0], 'product', size))
    else:
      for p in places:
        more = _formed_by_weights(sites[p], records[p], deltas[p], leaves)
        _add(norms.formed, more)
        size = sum(g[0].size for g in more.values()) * _BYTES
        norms.choices.append(Choice(sites[p], 'formed', size))
  return norms


def squared_norms(norms: Norms, size: int) -> jax.Array:
  """Returns the squared norms of all gradients of a batch of a size."""
  squared = [part.squared for part in norms.parts]
  squared += [numerics.square_sum(g) for g in norms.formed.values()]
  return sum(squared, jnp.zeros(size, jnp.float32))


def weighted_sums(norms: Norms, scales, counts) -> _Sums:
  """Returns the weighted sum of gradients, for each weight that has one."""
  sums: _Sums = {}
  for part in norms.parts:
    _add(sums, part.weighted(scales, counts))
  for index, gradients in norms.formed.items():
    _add(sums, {index: _weighted_rows(scales, counts, gradients)})
  return sums
