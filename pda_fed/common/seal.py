"""A checksum inside JSON, which detects damaged values.

A flipped bit on a disk may leave valid JSON with a different number. If privacy
depends on that number (a seed, or how often a person counts), the damage would
go unnoticed.
"""

from collections.abc import Mapping
import hashlib
import json
from typing import Any

_FIELD = 'sha256'


def _digest(fields: Mapping[str, Any]) -> str:
  # The same before and after JSON: tuples become lists, and order is kept.
  return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def seal(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields with a checksum.

  Args:
    fields: JSON values by name. No name is 'sha256'.
  """
  return {**fields, _FIELD: _digest(fields)}


def unseal(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Checks the result of `seal` and returns the original fields.

  Args:
    fields: The sealed fields, as read from JSON.

  Raises:
    ValueError: If the checksum is wrong or missing.
  """
  if _FIELD not in fields:
    raise ValueError(f'{_FIELD} must be given. Found none')
  content = {n: value for n, value in fields.items() if n != _FIELD}
  if fields[_FIELD] != _digest(content):
    raise ValueError(
      f'{_FIELD} must match the other fields: {_digest(content)}. Found'
      f' {fields[_FIELD]!r}'
    )
  return content
