"""Operations where a weight meets an example.

A `Site` says how the gradient of one example by a weight follows from what is
recorded there: the operation's input, and the derivative by its output.
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional, Union

import jax
from pda_fed.clipping import convolutions
from pda_fed.clipping import factors
from pda_fed.clipping import known as known_lib

_Input = Union[known_lib.Known, known_lib.Data]

# Operations by entries, and those that join weights and data: the gradient by
# the weight is a sum of derivatives. All others that are not recognized are
# named in a warning.
_BY_ENTRY = frozenset({
  'add',
  'add_any',
  'clamp',
  'concatenate',
  'div',
  'dynamic_update_slice',
  'max',
  'min',
  'mul',
  'output',
  'pad',
  'pow',
  'scan',
  'select_n',
  'sub',
})  # fmt: skip


class Site(NamedTuple):
  """A place in a program where a weight meets an example.

  Attributes:
    operation: The name of the operation.
    kind: A `Dot`, a `Convolution` or `Rows`; None if the derivative is that by
      the weight itself.
    weight: The weight as it stands there.
  """

  operation: str
  kind: Optional[factors.Kind]
  weight: known_lib.Known

  @property
  def is_known(self) -> bool:
    """Whether the operation was recognized."""
    return self.kind is not None or self.operation in _BY_ENTRY


# A site, what to record of the data, and the operation's output.
_Meeting = tuple[Site, jax.Array, jax.Array]


def recognize(eqn, ins: Sequence[_Input]) -> Optional[_Meeting]:
  """Applies an operation on a weight and data, if it is a known one.

  Args:
    eqn: The operation, an equation of a jaxpr.
    ins: Its operands.

  Returns:
    The site, what to record there, and the operation's output.
  """
  find = _FINDERS.get(eqn.primitive.name)
  is_weight = [isinstance(i, known_lib.Known) and bool(i.leaves) for i in ins]
  if find is None or sum(is_weight) != 1:
    return None
  return find(eqn, ins, is_weight.index(True))


def _dot(eqn, ins, side) -> Optional[_Meeting]:
  data = ins[1 - side]
  if not isinstance(data, known_lib.Data):
    return None
  (out,) = known_lib.bind(eqn, [i.value for i in ins])
  kind = factors.Dot(side, eqn.params['dimension_numbers'])
  return Site('dot_general', kind, ins[side]), data.value, out


def _convolution(eqn, ins, side) -> Optional[_Meeting]:
  if side != 1 or eqn.params['batch_group_count'] != 1:
    return None
  x, kernel = (i.value for i in ins)
  kind = convolutions.Convolution(eqn.params, kernel.shape)
  site = Site('conv_general_dilated', kind, ins[1])
  if kind.is_product():
    out, seen = convolutions.convolve(x, kernel, kind)
    return site, seen, out
  (out,) = known_lib.bind(eqn, [x, kernel])
  return site, x, out


def _gather(eqn, ins, side) -> Optional[_Meeting]:
  params, table = eqn.params, ins[0].value
  numbers = params['dimension_numbers']
  is_rows = (
    side == 0
    and not any(ins[0].stack)
    and tuple(numbers.collapsed_slice_dims) == (0,)
    and tuple(numbers.start_index_map) == (0,)
    and not numbers.operand_batching_dims
    and tuple(params['slice_sizes']) == (1, *table.shape[1:])
  )
  if not is_rows:
    return None
  (out,) = known_lib.bind(eqn, [i.value for i in ins])
  drops = params['mode'] != jax.lax.GatherScatterMode.CLIP
  kind = factors.Rows(tuple(numbers.offset_dims), drops)
  return Site('gather', kind, ins[0]), ins[1].value[..., 0], out


def _dynamic_slice(eqn, ins, side) -> Optional[_Meeting]:
  table, start = ins[0].value, ins[1]
  whole_rows = tuple(eqn.params['slice_sizes']) == (1, *table.shape[1:])
  is_rows = side == 0 and whole_rows and isinstance(start, known_lib.Data)
  if not is_rows or any(ins[0].stack):
    return None
  (out,) = known_lib.bind(eqn, [i.value for i in ins])
  kind = factors.Rows(tuple(range(1, table.ndim)), drops=False)
  return Site('dynamic_slice', kind, ins[0]), start.value[None], out


_FINDERS = {
  'conv_general_dilated': _convolution,
  'dot_general': _dot,
  'dynamic_slice': _dynamic_slice,
  'gather': _gather,
}
