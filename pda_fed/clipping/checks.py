"""Checks of what `clipped_grad` is given, with names in the messages."""

from collections.abc import Sequence
import math
from typing import Any, Optional, Union
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.common import validate

Scalar = Union[float, jax.Array]


def known_number(value: Scalar) -> Optional[float]:
  """Returns the value as a number, or None if it is a tracer."""
  if not isinstance(value, (jax.Array, np.ndarray)):
    return value
  try:
    return float(value)
  except jax.errors.ConcretizationTypeError:
    return None


def check_options(
  clip_norm: Scalar, copies: int, microbatch_size: Optional[int], group
) -> None:
  """Raises if options are out of range or exclude one another.

  The norm may be infinite, and is not known if it is traced.
  """
  number = known_number(clip_norm)
  if number is not None and number != math.inf:
    validate.positive(clip_norm=number)
  validate.integers(1, copies=copies)
  if microbatch_size is not None:
    validate.integers(1, microbatch_size=microbatch_size)
  validate.one_of((None, 'mean', 'sum'), group=group)
  if group is not None and copies > 1:
    raise ValueError(
      'copies must be 1 if examples are grouped. Found copies='
      f"{copies} and group={group!r}; put an example's copies in its group."
    )


def weights_of(
  args: Sequence[Any], argnums: Sequence[int]
) -> tuple[tuple[int, ...], list[str]]:
  """Raises if weights are missing, or not all are real numbers.

  Args:
    args: All arguments.
    argnums: Which hold weights; negative numbers count from the end.

  Returns:
    The numbers, all positive, and the names of all weights, in order.
  """
  names = []
  for number in argnums:
    if not -len(args) <= number < len(args):
      raise ValueError(
        f'argnums must be less than the number of arguments, {len(args)}. '
        f'Found {number}.'
      )
    found = _named(args[number])
    if not found:
      raise ValueError(
        f'argument {number} must have at least one weight. Found none.'
      )
    for name, leaf in found:
      _check_weight(f'argument {number}{name}', leaf)
    prefix = '' if len(argnums) == 1 else str(number)
    names += [prefix + name for name, _ in found]
  return tuple(number % len(args) for number in argnums), names


def _named(tree: Any) -> list[tuple[str, Any]]:
  """Returns the leaves with what the user would write for them."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _check_weight(name: str, leaf: Any) -> None:
  words = name + type(leaf).__name__
  if 'batch_stats' in words or 'BatchStat' in words:
    raise ValueError(
      f'{name} is the state of a batch normalization, which mixes examples, so'
      ' that no clip bounds what one of them changes. Use group or layer'
      ' normalization, or close over fixed averages.'
    )
  dtype = jnp.result_type(leaf)
  if not jnp.issubdtype(dtype, jnp.floating):
    raise TypeError(
      f'{name} must hold floating-point weights. Found dtype {dtype}. Close'
      ' over what is not trained, or pass it with the examples.'
    )


def batch_shape(
  args: Sequence[Any], examples: Sequence[int], axes: int
) -> tuple[int, ...]:
  """Returns the leading axes that all examples' arrays share, or raises.

  Args:
    args: All arguments.
    examples: The numbers of those that hold examples.
    axes: The number of leading axes, 2 if examples are grouped.
  """
  named = [
    (f'argument {number}{name}', jnp.shape(leaf))
    for number in examples
    for name, leaf in _named(args[number])
  ]
  if not named:
    raise ValueError(
      'arguments must hold examples besides the weights. Found none.'
    )
  first, shared = named[0][0], named[0][1][:axes]
  for name, shape in named:
    if len(shape) < axes:
      kind = 'an axis of examples' if axes == 1 else 'axes of groups, members'
      raise ValueError(f'{name} must have {kind}. Found shape {shape}.')
    if shape[:axes] != shared:
      raise ValueError(
        f'{name} must have as many examples as {first}, {shared}. '
        f'Found shape {shape}.'
      )
  return shared


def check_loss(found: Any, has_aux: bool) -> tuple[jax.Array, Any]:
  """Returns the loss of one example, a real scalar, and other values.

  Args:
    found: What the loss returned.
    has_aux: Whether that must be a pair.
  """
  if has_aux and not (isinstance(found, tuple) and len(found) == 2):
    raise ValueError(
      'loss must return a pair of a scalar and other values if has_aux=True.'
      f' Found {type(found).__name__}.'
    )
  value, aux = found if has_aux else (found, None)
  structure = jax.tree.structure(value)
  is_array = structure == jax.tree.structure(0)
  if not is_array or jnp.shape(value):
    raise ValueError(
      'loss must return one scalar for one example, and with has_aux=True a '
      f'pair of it and other values. Found '
      f'{jnp.shape(value) if is_array else structure}. It gets examples without'
      ' their batch axis: if a model needs one, add it inside, and take a mean.'
    )
  dtype = jnp.result_type(value)
  if not jnp.issubdtype(dtype, jnp.floating):
    raise TypeError(
      f'loss must return a floating-point number. Found dtype {dtype}.'
    )
  return jnp.asarray(value), aux


def warn_formed(sites: Sequence[Any], names: Sequence[str]) -> None:
  """Says once for which weights gradients are formed, and why.

  Args:
    sites: All places where weights meet examples.
    names: The names of all weights.
  """
  found = {}
  for site in sites:
    if not site.is_known:
      for leaf in sorted(site.weight.leaves):
        found.setdefault(names[leaf], site.operation)
  if found:
    listed = ', '.join(f'{name} ({what})' for name, what in found.items())
    warnings.warn(
      'clipped_grad forms the gradient of each example by weights that reach an'
      f' operation it does not know, as vmap(grad) would: {listed}. This takes'
      ' time and memory; `clipping.explain` shows how much.',
      stacklevel=3,
    )


def warn_non_finite(count: jax.Array, non_finite: jax.Array) -> None:
  """Says that no example has a finite gradient, if that is known already."""
  total, bad = known_number(count), known_number(non_finite)
  if total and bad == total:
    warnings.warn(
      f'The gradients of all {int(total)} examples are NaN or infinite, so that'
      ' their sum is 0. Look at the loss of one example and at the weights.',
      stacklevel=3,
    )
