"""Reads pickles of dictionaries with byte arrays, without running them.

A pickle is a program that may call functions. None is called here, not even
numpy's: they are replaced by classes that store their arguments.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

# Errors that unpickling may raise.
_ERRORS = (
  pickle.UnpicklingError,
  AttributeError,
  EOFError,
  IndexError,
  KeyError,
  MemoryError,
  OverflowError,
  TypeError,
  ValueError,
)
_PUTS = ('PUT', 'BINPUT', 'LONG_BINPUT')


class _Kept:
  """Stores arguments and state."""

  def __init__(self, *arguments):
    self.arguments = arguments
    self.state = None

  def __setstate__(self, state):
    self.state = state


class _Dtype(_Kept):
  """Replaces numpy.dtype."""


class _Array(_Kept):
  """Replaces numpy's function that makes an array, and its class."""

  def to_numpy(self) -> np.ndarray:
    """Returns the array of bytes that numpy would have made."""
    _, shape, dtype, is_fortran, content = self.state
    if dtype.arguments[0] not in ('u1', b'u1', '|u1'):
      raise ValueError(f'an array of {dtype.arguments[0]!r}, not of bytes')
    # numpy would infer a size of -1.
    if min(shape) < 0 or math.prod(shape) != len(content):
      raise ValueError(f'{len(content)} bytes for an array of {shape}')
    array = np.frombuffer(content, np.uint8)
    return array.reshape(shape, order='F' if is_fortran else 'C')


class _Bytes:
  """Replaces _codecs.encode, which Python 3 uses for Python 2 bytes."""

  def __new__(cls, text: str, encoding: str) -> Any:
    del encoding  # Always latin1.
    return text.encode('latin-1')


_STAND_INS = {
  ('numpy', 'dtype'): _Dtype,
  ('numpy', 'ndarray'): _Array,
  ('numpy.core.multiarray', '_reconstruct'): _Array,
  ('numpy._core.multiarray', '_reconstruct'): _Array,
  ('_codecs', 'encode'): _Bytes,
}


class _Unpickler(pickle.Unpickler):
  """Unpickles arrays, but nothing that could run code."""

  def find_class(self, module, name):
    if (module, name) not in _STAND_INS:
      raise pickle.UnpicklingError(f'{module}.{name} is not an array')
    return _STAND_INS[module, name]


def _check_memo(content: bytes) -> None:
  """Raises if an index of the memo is too large.

  Python allocates the memo up to the largest index: a flipped bit could ask for
  gigabytes.
  """
  for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
    if opcode.name in _PUTS and not 0 <= argument <= count:
      raise ValueError(f'index {argument} of the memo after {count} steps')


def load_arrays(content: bytes) -> dict[Any, Any]:
  """Returns the dictionary of a pickle.

  Args:
    content: The pickle, from Python 2 or 3. Strings of Python 2 are bytes.

  Returns:
    The dictionary. Byte arrays are numpy arrays.

  Raises:
    ValueError: If the pickle is truncated, damaged, or holds anything else.
  """
  try:
    _check_memo(content)
    loaded = _Unpickler(io.BytesIO(content), encoding='bytes').load()
    if not isinstance(loaded, dict):
      raise ValueError(f'a {type(loaded).__name__}, not a dictionary')
    return {
      key: value.to_numpy() if isinstance(value, _Array) else value
      for key, value in loaded.items()
    }
  except _ERRORS as e:
    raise ValueError(f'not a pickle of arrays: {e!r}') from e
