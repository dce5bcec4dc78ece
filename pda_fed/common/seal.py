"""A checksum inside of JSON: what is read is what was written.

A bit that a disk has flipped may leave valid JSON with another number. Where
that number decides privacy (a seed, how often a person counts), nobody would
ever know.
"""

from collections.abc import Mapping
import hashlib
import json
from typing import Any

_FIELD = 'sha256'


def _digest(fields: Mapping[str, Any]) -> str:
  # As JSON gives them back: tuples are lists, and the order is kept.
  return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def seal(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns fields with their checksum.

  Args:
    fields: JSON values by name; none is called sha256.
  """
  return {**fields, _FIELD: _digest(fields)}


def unseal(
  fields: Mapping[str, Any], *, required: bool = False
) -> dict[str, Any]:
  """Returns the fields that `seal` was given.

  Args:
    fields: As JSON gave them back.
    required: Whether there must be a checksum. If not, fields without one, as
      earlier versions wrote them, are taken as they are.

  Raises:
    ValueError: If they are not those that the checksum was made of.
  """
  if required and _FIELD not in fields:
    raise ValueError(f'{_FIELD} must be there. Found none')
  content = {n: value for n, value in fields.items() if n != _FIELD}
  if _FIELD in fields and fields[_FIELD] != _digest(content):
    raise ValueError(
      f'{_FIELD} must be that of the other fields, {_digest(content)}. Found'
      f' {fields[_FIELD]!r}'
    )
  return content
