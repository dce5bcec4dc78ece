"""Reads the YAML that the recipes use, which is little: the lock has no parser.

Nested mappings and lists by indentation, [a, b] on one line, and comments.
Anchors, quotation and text over several lines are refused.
"""

import re
from typing import Any

_PAIR = re.compile(r'([\w./-]+):(?: (.+))?$')


def parse(text: str) -> list[Any]:
  """Returns the documents of a file.

  Args:
    text: The file.

  Raises:
    ValueError: If it has something else than plain YAML.
  """
  found = []
  for document in re.split(r'^---$', text, flags=re.MULTILINE):
    lines = []
    for line in document.splitlines():
      stripped = re.sub(r'(^|\s)#.*', '', line).rstrip()
      if stripped:
        depth = len(stripped) - len(stripped.lstrip())
        lines.append((depth, stripped.lstrip()))
    value, rest = _block(lines)
    if rest:
      raise ValueError(f'line must not be indented like this: {rest[0]}')
    found.append(value)
  return found


def _scalar(text: str) -> Any:
  if re.search(r"""^[&*!|>'"{@`%]""", text):
    raise ValueError(f'value must be plain. Found {text}')
  if text.startswith('['):
    return [_scalar(part.strip()) for part in text[1:-1].split(',')]
  if text in ('true', 'false'):
    return text == 'true'
  return int(text) if re.fullmatch(r'-?\d+', text) else text


def _block(lines: list[tuple[int, str]]) -> tuple[Any, list[tuple[int, str]]]:
  """The block that starts at the first line, and what follows it."""
  depth, first = lines[0]
  found: Any = [] if first.startswith('- ') else {}
  while lines and lines[0][0] == depth:
    text = lines[0][1]
    if isinstance(found, list):
      if not text.startswith('- '):
        break
      inner, is_pair = text[2:], _PAIR.match(text[2:])
      if is_pair:  # A mapping that begins beside its dash.
        value, lines = _block([(depth + 2, inner), *lines[1:]])
      else:
        value, lines = _scalar(inner), lines[1:]
      found.append(value)
      continue
    pair = _PAIR.match(text)
    if pair is None or pair[1] in found:
      raise ValueError(f'line must be a key of its own. Found {text}')
    lines = lines[1:]
    if pair[2] is not None:
      found[pair[1]] = _scalar(pair[2])
    elif lines and (
      lines[0][0] > depth or (lines[0][0] == depth and lines[0][1][:2] == '- ')
    ):
      found[pair[1]], lines = _block(lines)
    else:
      found[pair[1]] = None
  if lines and lines[0][0] > depth:
    raise ValueError(f'line must not be indented like this: {lines[0][1]}')
  return found, lines
