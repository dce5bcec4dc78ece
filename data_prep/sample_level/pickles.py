"""Pickles of dictionaries with arrays of bytes, read as data.

A pickle is a program. Of the functions that it may call, and be it numpy's,
none is called here: they are replaced by classes that keep what they are given.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

# What a mere program of a pickle may raise, beside UnpicklingError.
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
  """Keeps arguments and state."""

  def __init__(self, *arguments):
    self.arguments = arguments
    self.state = None

  def __setstate__(self, state):
    self.state = state


class _Dtype(_Kept):
  """In place of numpy.dtype."""


class _Array(_Kept):
  """In place of numpy's function that makes an array, and of its class."""

  def to_numpy(self) -> np.ndarray:
    """Returns the array of bytes that numpy would have made."""
    _, shape, dtype, is_fortran, content = self.state
    if dtype.arguments[0] not in ('u1', b'u1', '|u1'):
      raise ValueError(f'an array of {dtype.arguments[0]!r}, not of bytes')
    # numpy would take a size of -1 for one to find out.
    if min(shape) < 0 or math.prod(shape) != len(content):
      raise ValueError(f'{len(content)} bytes for an array of {shape}')
    array = np.frombuffer(content, np.uint8)
    return array.reshape(shape, order='F' if is_fortran else 'C')


class _Bytes:
  """In place of _codecs.encode, by which Python 3 writes bytes for Python 2."""

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
  """Knows arrays, and nothing that could run code."""

  def find_class(self, module, name):
    if (module, name) not in _STAND_INS:
      raise pickle.UnpicklingError(f'{module}.{name} is not an array')
    return _STAND_INS[module, name]


def _check_memo(content: bytes) -> None:
  """Raises if a place of the memo is out of all reason.

  Python makes the memo as long as the largest place: a flipped bit would ask
  for gigabytes.
  """
  for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
    if opcode.name in _PUTS and not 0 <= argument <= count:
      raise ValueError(f'place {argument} of the memo after {count} steps')


def load_arrays(content: bytes) -> dict[Any, Any]:
  """Returns the dictionary of a pickle.

  Args:
    content: The pickle, of Python 2 or 3. Texts of Python 2 are bytes.

  Returns:
    Values by key; arrays, which must be of bytes, as numpy arrays.

  Raises:
    ValueError: If it is cut off or damaged, or holds something else.
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
    raise ValueError(f'no pickle of arrays: {e!r}') from e
