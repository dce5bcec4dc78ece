"""Runs the program of a loss, and records where weights meet examples.

The loss of one example is traced once. Its program is then run again, operation
by operation. Values that depend on no example are `Known`, all others are data.
Where both meet there is a site: zeros (a *tap*) are added to the output. The
derivative of the batch's losses by the taps, one ordinary backward pass, gives
the derivatives that each example's gradient is made of.

A run without taps finds the sites; a second one, with a tap for each, records
the data. Scans and rematerialized blocks are programs inside the program, which
are run in the same way.
"""

from collections.abc import Callable, Sequence
import itertools
from typing import Any, Optional, Union

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np
from pda_fed.clipping import known as known_lib
from pda_fed.clipping import sites as sites_lib

_Value = Union[known_lib.Known, jax.Array]

_CALLS = frozenset({'closed_call', 'core_call', 'jit', 'pjit'})
_REMAT = frozenset({'checkpoint', 'remat', 'remat2'})


class Run:
  """One run of a program, or of a program inside it.

  Attributes:
    sites: The sites, in the order of the program.
    shapes: The shapes and dtypes of their outputs.
    records: What was recorded at each; None if nothing.
  """

  def __init__(self, taps: Optional[Sequence[jax.Array]] = None, depth=0):
    """Initializes the run.

    Args:
      taps: An array for each site, added to its output; None to find the sites.
      depth: The number of scans around the program.
    """
    self.sites: list[sites_lib.Site] = []
    self.shapes: list[jax.ShapeDtypeStruct] = []
    self.records: list[Any] = []
    self._taps = taps
    self._depth = depth

  def outputs(self, program, consts, inputs: Sequence[_Value]) -> list[Any]:
    """Runs a program; weights among its outputs get taps."""
    found = self._run(program, consts, inputs)
    return known_lib.values(self._free(found, 'output'))

  def _run(self, program, consts, inputs: Sequence[_Value]) -> list[_Value]:
    program = getattr(program, 'jaxpr', program)
    env: dict[Any, _Value] = {}

    def read(atom) -> _Value:
      if isinstance(atom, jex_core.Literal):
        return known_lib.constant(np.asarray(atom.val, atom.aval.dtype))
      return env[atom]

    consts = map(known_lib.constant, consts)
    env.update(zip(program.constvars, consts, strict=True))
    env.update(zip(program.invars, inputs, strict=True))
    for eqn in program.eqns:
      outs = self._apply(eqn, [read(atom) for atom in eqn.invars])
      env.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in program.outvars]

  def _apply(self, eqn, ins: list[_Value]) -> Sequence[_Value]:
    name = eqn.primitive.name
    is_known = all(isinstance(i, known_lib.Known) for i in ins)
    if not any(map(known_lib.is_weight, ins)):
      if is_known:
        return known_lib.derive(eqn, ins)
      return known_lib.bind(eqn, known_lib.values(ins))
    if name == 'while':
      _refuse_loop(eqn)
    if name in _CALLS:
      return self._run(*_inner(eqn), ins)
    if is_known:
      return known_lib.derive(eqn, ins)
    if name == 'scan':
      return self._scan(eqn, ins)
    if name in _REMAT:
      return self._remat(eqn, ins)
    meeting = sites_lib.recognize(eqn, ins)
    if meeting is not None:
      return [self._tap(*meeting)]
    # As `vmap(grad)` would: each example has its own copy of the weights.
    return self._apply(eqn, self._free(ins, name))

  def _tap(self, site: sites_lib.Site, out, record=None) -> jax.Array:
    """Adds the site's tap to its output."""
    self.sites.append(site)
    self.shapes.append(jax.ShapeDtypeStruct(out.shape, out.dtype))
    self.records.append(record)
    return out if self._taps is None else out + self._taps[len(self.sites) - 1]

  def _free(self, ins: Sequence[_Value], operation: str) -> list[_Value]:
    """Gives each example its own copy of what is a weight."""
    return [
      self._tap(sites_lib.Site(operation, None, i), i.value)
      if known_lib.is_weight(i)
      else i
      for i in ins
    ]

  def _enter(
    self, inside: Callable[..., Any], *args: Any, steps: tuple[int, ...] = ()
  ) -> list[jax.Array]:
    """Adds the sites of a program inside; returns their taps.

    `inside` runs it, as a function of a `Run` and of arrays. It has `steps` if
    it is a scan.
    """
    run = Run(depth=self._depth + len(steps))
    jax.eval_shape(lambda *args: inside(run, *args), *args)
    first = len(self.sites)
    self.sites += run.sites
    self.shapes += [
      jax.ShapeDtypeStruct((*steps, *s.shape), s.dtype) for s in run.shapes
    ]
    if self._taps is None:
      return [jnp.zeros(s.shape, s.dtype) for s in self.shapes[first:]]
    return list(self._taps[first : len(self.sites)])

  def _remat(self, eqn, ins: list[_Value]) -> list[jax.Array]:
    """Runs a block that is computed again in the backward pass."""
    is_data = [not isinstance(i, known_lib.Known) for i in ins]
    data = list(itertools.compress(ins, is_data))

    def inside(run, data):
      data = iter(data)
      own = [next(data) if k else i for k, i in zip(is_data, ins, strict=True)]
      return run.outputs(*_inner(eqn), own)

    def block(data, taps):
      run = Run(taps, self._depth)
      return inside(run, data), run.records

    options = {name: eqn.params[name] for name in ('prevent_cse', 'policy')}
    taps = self._enter(inside, data)
    outs, records = jax.checkpoint(block, **options)(data, taps)
    self.records += records
    return outs

  def _scan(self, eqn, ins: list[_Value]) -> list[jax.Array]:
    """Runs a scan; its sites have a position, or a weight, for each step."""
    params = eqn.params
    consts, carry, xs = _operands_of_scan(params, ins)
    carry = known_lib.values(self._free(carry, 'scan'))
    fixed, arrays = known_lib.values(consts), known_lib.values(xs)

    def enter(outside, value, sliced):
      if isinstance(outside, known_lib.Known):
        return outside.enter(value, self._depth, sliced)
      return value

    def inside(run, carry, x):
      shared = [enter(i, v, False) for i, v in zip(consts, fixed, strict=True)]
      own = [enter(i, v, True) for i, v in zip(xs, x, strict=True)]
      return run.outputs(*_inner(eqn), [*shared, *carry, *own])

    def first_step(run, carry, arrays):
      x = [jax.lax.index_in_dim(a, 0, keepdims=False) for a in arrays]
      return inside(run, carry, x)

    def body(carry, x):
      x, taps = x
      run = Run(taps, self._depth + 1)
      outs = inside(run, carry, x)
      return outs[: len(carry)], (outs[len(carry) :], run.records)

    taps = self._enter(first_step, carry, arrays, steps=(params['length'],))
    options = {k: params[k] for k in ('length', 'reverse', 'unroll')}
    carry, (ys, records) = jax.lax.scan(body, carry, (arrays, taps), **options)
    self.records += records
    return [*carry, *ys]


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
  try:
    frames = eqn.source_info.traceback.frames
    own = next(f for f in frames if '/jax/' not in f.file_name)
    place = f'{own.file_name}:{own.line_num}'
  except (AttributeError, StopIteration):
    place = 'an unknown place'
  raise ValueError(
    'loss must not use weights in while_loop, which JAX cannot differentiate'
    ' backward. Found one that depends on weights; use scan, or fori_loop with'
    f' a fixed number of steps. It stands at {place}.'
  )
