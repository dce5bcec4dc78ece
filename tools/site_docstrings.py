"""Griffe extension: lets it read the examples in this project's docstrings.

Griffe knows a section `Examples:` whose first line follows at once, and code in
fences without a language is not coloured.
"""

import re
from typing import Any

import griffe

_TITLE = re.compile(r'^Examples?:\n+(?= )', re.MULTILINE)
_FENCE = re.compile(r'^( *)```\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)


def mend(text: str) -> str:
  """Returns a docstring as Griffe reads it.

  Args:
    text: The docstring, without its indentation.
  """
  text = _FENCE.sub(r'\1```python\n\2\1```', text)
  return _TITLE.sub('Examples:\n', text)


class Examples(griffe.Extension):
  """Mends each docstring as it is loaded."""

  def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
    """Mends the docstring of an object, if it has one."""
    if obj.docstring is not None:
      obj.docstring.value = mend(obj.docstring.value)
