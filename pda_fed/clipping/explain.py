"""A table of how `clipped_grad` treats each weight of a loss."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple, Union

import jax
from pda_fed.clipping import backward
from pda_fed.clipping import checks
from pda_fed.clipping import norms as norms_lib
from pda_fed.common import tables


class Row(NamedTuple):
  """One place where weights are used.

  Attributes:
    weights: The weights' names.
    operation: The name of JAX's operation.
    norm: How the norm is found: by 'Gram matrices', from the 'product' that is
      the gradient, from a 'sum' of derivatives, or from gradients that are
      'formed' by the weights themselves. 'unused' if there is no gradient.
    bytes: Memory that this takes for each example.
  """

  weights: str
  operation: str
  norm: str
  bytes: int


@dataclasses.dataclass(frozen=True)
class Explanation:
  """What `explain` returns; its text is the table.

  Attributes:
    rows: The places, in an order of the program.
  """

  rows: tuple[Row, ...]

  def __str__(self) -> str:
    rows = [(*row[:3], f'{row.bytes:,}') for row in self.rows]
    total = 'all', '', '', f'{sum(row.bytes for row in self.rows):,}'
    header = 'weights', 'operation', 'norm', 'bytes an example'
    return tables.format_table(header, [*rows, total])

  __repr__ = __str__


def explain(
  loss: Callable[..., Any],
  *args: Any,
  argnums: Union[int, Sequence[int]] = 0,
  has_aux: bool = False,
) -> Explanation:
  """Says how `clipped_grad` finds the norms of a loss, and what that takes.

  Nothing is computed; arrays may be `jax.ShapeDtypeStruct`s.

  Example:

    >>> def loss(params, x):
    ...   return jnp.square(x @ params['w'] + params['b']).sum()
    >>> params = {'w': jnp.zeros((3, 2)), 'b': jnp.zeros(2)}
    >>> print(explain(loss, params, jnp.zeros((4, 3))))
    weights  operation    norm     bytes an example
    -------  -----------  -------  ----------------
    ['w']    dot_general  product                24
    ['b']    add          sum                     8
    all                                          32

  Args:
    loss: See `clipped_grad`.
    *args: The arguments of the loss, of one example.
    argnums: See `clipped_grad`.
    has_aux: See `clipped_grad`.
  """
  numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
  own, names = checks.weights_of(args, numbers)
  unit_loss = backward.loss_of_unit(loss, own, has_aux)
  rows, used = [], set()

  def collect(weights, examples):
    batch = jax.tree.map(lambda a: a[None], examples)
    recorded, leaves, *_ = backward.run(unit_loss, weights, (batch, None))
    for part in norms_lib.find(recorded, leaves):
      for site, size in zip(part.sites, part.bytes, strict=True):
        method = 'sum' if not site.find and site.is_known else part.method
        own = sorted(site.weight.leaves)
        together = ', '.join(names[leaf] for leaf in own)
        rows.append(Row(together, site.operation, method, size))
        used.update(own)

  weights = tuple(args[number] for number in own)
  examples = {k: args[k] for k in range(len(args)) if k not in own}
  jax.eval_shape(collect, weights, examples)
  unused = [name for k, name in enumerate(names) if k not in used]
  return Explanation((*rows, *(Row(name, '', 'unused', 0) for name in unused)))
