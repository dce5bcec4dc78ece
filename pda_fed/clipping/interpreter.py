"""Runs the program of a loss, and records where weights meet examples.

The loss of one example is traced once. Its program is then run again, operation
by operation. Values that depend on no example are `Known`, others are `Data`.
Where both meet there is a site: zeros (a *tap*) are added to the output. The
derivative of the batch's losses by the taps, one ordinary backward pass, gives
the derivatives that each example's gradient is made of.

The first run, `discover`, only finds the sites; the second one, `replay`, adds
taps and records the data. Scans and rematerialized blocks are programs inside
the program, which are run in the same way.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, Optional

import jax
from jax.extend import core as jex_core
import numpy as np
from pda_fed.clipping import known as known_lib
from pda_fed.clipping import sites as sites_lib

# A `Known` or `Data`.
_Value = Any

_CALLS = frozenset({'closed_call', 'core_call', 'jit', 'pjit'})
_REMAT = frozenset({'checkpoint', 'remat', 'remat2'})


@dataclasses.dataclass
class Plan:
  """The sites of a program.

  Attributes:
    sites: The sites, in the order of the program.
    shapes: The shapes and dtypes of their taps.
    blocks: The plans of programs inside the program, in order.
  """

  sites: list[sites_lib.Site] = dataclasses.field(default_factory=list)
  shapes: list[jax.ShapeDtypeStruct] = dataclasses.field(default_factory=list)
  blocks: list['Plan'] = dataclasses.field(default_factory=list)


def discover(program, leaves: Sequence[Any], data: Sequence[Any]) -> Plan:
  """Finds the sites of a program; see `replay`."""
  run = _Run(0)
  run.outputs(program, program.consts, _inputs(leaves, data))
  return run.plan


def replay(
  program, plan: Plan, leaves: Sequence[Any], data: Sequence[Any], taps
) -> tuple[list[Any], list[Any]]:
  """Runs a program with taps.

  Args:
    program: The program, a closed jaxpr of weights and data.
    plan: Its plan.
    leaves: The flattened weights.
    data: The example's arrays.
    taps: An array for each site, added to its output.

  Returns:
    The outputs, and the records of all sites (None if there is none).
  """
  run = _Run(0, plan, taps)
  outputs = run.outputs(program, program.consts, _inputs(leaves, data))
  return [out.value for out in outputs], run.records


def _inputs(leaves: Sequence[Any], data: Sequence[Any]) -> list[_Value]:
  weights = [known_lib.weight(leaf, k) for k, leaf in enumerate(leaves)]
  return [*weights, *map(known_lib.Data, data)]


class _Run:
  """One run of a program, or of a program inside it."""

  def __init__(self, depth: int, plan: Optional[Plan] = None, taps=None):
    """Initializes the run.

    Args:
      depth: The number of scans around it.
      plan: The plan to replay; None to discover it.
      taps: An array for each site of the plan.
    """
    self.plan = Plan() if plan is None else plan
    self.records: list[Any] = []
    self._depth = depth
    self._taps = taps
    self._blocks = iter(self.plan.blocks)

  def outputs(self, program, consts, inputs: Sequence[_Value]) -> list[_Value]:
    """Runs a program; weights among its outputs get taps."""
    return self._free(self._run(program, consts, inputs), 'output')

  def _run(self, program, consts, inputs: Sequence[_Value]) -> list[_Value]:
    program = getattr(program, 'jaxpr', program)
    env: dict[Any, _Value] = {}

    def read(atom) -> _Value:
      if isinstance(atom, jex_core.Literal):
        return known_lib.constant(np.asarray(atom.val, atom.aval.dtype))
      return env[atom]

    env.update(
      zip(program.constvars, map(known_lib.constant, consts), strict=True)
    )
    env.update(zip(program.invars, inputs, strict=True))
    for eqn in program.eqns:
      outs = self._apply(eqn, [read(atom) for atom in eqn.invars])
      env.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in program.outvars]

  def _apply(self, eqn, ins: list[_Value]) -> list[_Value]:
    name = eqn.primitive.name
    has_data = any(isinstance(i, known_lib.Data) for i in ins)
    if not any(_is_weight(i) for i in ins):
      if not has_data:
        return known_lib.derive(eqn, ins)
      return self._as_data(known_lib.bind(eqn, [i.value for i in ins]))
    if name == 'while':
      _refuse_loop(eqn)
    if name in _CALLS:
      inner, consts = _inner(eqn)
      return self._run(inner, consts, ins)
    if not has_data:
      return known_lib.derive(eqn, ins)
    if name == 'scan':
      return self._scan(eqn, ins)
    if name in _REMAT:
      return self._remat(eqn, ins)
    meeting = sites_lib.recognize(eqn, ins)
    if meeting is not None:
      site, record, out = meeting
      return [self._tap(out, site, record)]
    # As `vmap(grad)` would: each example has its own copy of the weights.
    return self._apply(eqn, self._free(ins, name))

  def _as_data(self, values: Sequence[Any]) -> list[_Value]:
    return [known_lib.Data(value) for value in values]

  def _tap(self, out, site: sites_lib.Site, record=None) -> known_lib.Data:
    """Adds the site's tap to its output."""
    if self._taps is None:
      self.plan.sites.append(site)
      self.plan.shapes.append(jax.ShapeDtypeStruct(out.shape, out.dtype))
      return known_lib.Data(out)
    out = out + self._taps[len(self.records)]
    self.records.append(record)
    return known_lib.Data(out)

  def _free(self, values: Sequence[_Value], operation: str) -> list[_Value]:
    """Gives each example its own copy of what is a weight."""
    return [
      self._tap(v.value, sites_lib.Site(operation, None, v))
      if _is_weight(v)
      else v
      for v in values
    ]

  def _block(self, plan: Plan, shapes: Sequence[Any]) -> None:
    """Adds a discovered block to the plan."""
    self.plan.blocks.append(plan)
    self.plan.sites += plan.sites
    self.plan.shapes += shapes

  def _next_block(self) -> tuple[Plan, list[jax.Array]]:
    """Returns the next block to replay, and its taps."""
    plan, first = next(self._blocks), len(self.records)
    return plan, list(self._taps[first : first + len(plan.sites)])

  def _remat(self, eqn, ins: list[_Value]) -> list[_Value]:
    """Runs a block that is computed again in the backward pass."""
    inner, consts = _inner(eqn)
    places = [k for k, i in enumerate(ins) if isinstance(i, known_lib.Data)]
    data = [ins[k].value for k in places]

    def run_block(run, data):
      inside = list(ins)
      for k, value in zip(places, data, strict=True):
        inside[k] = known_lib.Data(value)
      return [out.value for out in run.outputs(inner, consts, inside)]

    if self._taps is None:
      run = _Run(self._depth)
      outs = run_block(run, data)
      self._block(run.plan, run.plan.shapes)
      return self._as_data(outs)
    plan, taps = self._next_block()

    def block(data, taps):
      run = _Run(self._depth, plan, taps)
      return run_block(run, data), run.records

    again = jax.checkpoint(
      block, prevent_cse=eqn.params['prevent_cse'], policy=eqn.params['policy']
    )
    outs, records = again(data, taps)
    self.records += records
    return self._as_data(outs)

  def _scan(self, eqn, ins: list[_Value]) -> list[_Value]:
    """Runs a scan; its sites have a position, or a weight, for each step."""
    params = eqn.params
    consts, carry, xs = _operands_of_scan(params, ins)
    inner, inner_consts = _inner(eqn)
    length = params['length']
    carry = [i.value for i in self._free(carry, 'scan')]
    entered = [self._enter(i, i.value, sliced=False) for i in consts]

    def step(run, carry, x):
      own = [self._enter(i, v, sliced=True) for i, v in zip(xs, x, strict=True)]
      inputs = [*entered, *self._as_data(carry), *own]
      return [out.value for out in run.outputs(inner, inner_consts, inputs)]

    xs_values = [i.value for i in xs]
    if self._taps is None:
      run = _Run(self._depth + 1)

      def first_step(carry, xs):
        x = [jax.lax.index_in_dim(v, 0, keepdims=False) for v in xs]
        return step(run, carry, x)

      jax.eval_shape(first_step, carry, xs_values)
      stacked = [
        jax.ShapeDtypeStruct((length, *s.shape), s.dtype)
        for s in run.plan.shapes
      ]
      self._block(run.plan, stacked)
      values = [i.value for i in consts] + carry + xs_values
      return self._as_data(known_lib.bind(eqn, values))
    plan, taps = self._next_block()

    def body(carry, x):
      x, taps = x
      run = _Run(self._depth + 1, plan, taps)
      outs = step(run, carry, x)
      return outs[: len(carry)], (outs[len(carry) :], run.records)

    options = {k: params[k] for k in ('length', 'reverse', 'unroll')}
    carry, (ys, records) = jax.lax.scan(
      body, carry, (xs_values, taps), **options
    )
    self.records += records
    return self._as_data([*carry, *ys])

  def _enter(self, outside: _Value, value: Any, sliced: bool) -> _Value:
    if isinstance(outside, known_lib.Data):
      return known_lib.Data(value)
    return outside.enter(value, self._depth, sliced)


def _is_weight(value: _Value) -> bool:
  return isinstance(value, known_lib.Known) and bool(value.leaves)


def _inner(eqn) -> tuple[Any, Sequence[Any]]:
  """Returns the program inside an operation, and its constants."""
  params = eqn.params
  program = params['jaxpr'] if 'jaxpr' in params else params['call_jaxpr']
  return program, getattr(program, 'consts', ())


def _operands_of_scan(params, ins: Sequence[_Value]):
  """Splits a scan's operands into constants, carry and what it goes over."""
  if 'ft_in' in params:  # JAX 0.11 and later.
    return tuple(map(list, params['ft_in'].update(list(ins)).unpack()))
  first = params['num_consts']
  last = first + params['num_carry']
  return list(ins[:first]), list(ins[first:last]), list(ins[last:])


def _refuse_loop(eqn) -> None:
  raise ValueError(
    'loss must not use weights in while_loop, which JAX cannot differentiate'
    ' backward. Found one that depends on weights; use scan, or fori_loop with'
    f' a fixed number of steps. It stands at {_place_of(eqn)}.'
  )


def _place_of(eqn) -> str:
  """Returns where the user's code has an operation."""
  try:
    frames = eqn.source_info.traceback.frames
    own = [f for f in frames if '/jax/' not in f.file_name]
    return f'{own[0].file_name}:{own[0].line_num}'
  except (AttributeError, IndexError):
    return 'an unknown place'
