"""Every public name says what it takes, gives and raises, with an example.

Examples are doctests, which run here, unless they need a TFF process, data of
others or a long time: then they are code in a fence. A name whose use is that
of another one may point to it, "Example: see `other`."
"""

import dataclasses
import doctest
import inspect
import re
import textwrap

from pda_fed.common import settings
import pytest

from tests.docs import pages
from tools import write_api

_NAMES = [
  (package, name)
  for package in write_api.PACKAGES
  for name, value in write_api.public_names(package).items()
  if callable(value)
]
_MODULES = sorted(
  {
    inspect.getmodule(inspect.unwrap(write_api.public_names(p)[n])).__name__
    for p, n in _NAMES
  }
)
_EXAMPLE = re.compile(r'^Examples?:', re.MULTILINE)
_SEE = re.compile(r'^Example: see `(\w+)`\.$', re.MULTILINE)
# What its functions give and raise has no example of its own: that of the
# package, and those of the functions, show it.
_WITHOUT_EXAMPLE = {
  (package, name)
  for package, name in _NAMES
  if package == 'pda_fed.tff.runtime'
  and inspect.isclass(write_api.public_names(package)[name])
}


def _value(package, name):
  return inspect.unwrap(write_api.public_names(package)[name])


def _doc(package, name):
  return inspect.getdoc(_value(package, name)) or ''


def _raises(function):
  """Whether the function itself raises, or checks its arguments."""
  source = textwrap.dedent(inspect.getsource(function))
  return bool(re.search(r'^ +raise |\bvalidate\.', source, re.MULTILINE))


def _missing(package, name):
  """The sections that a name should have and has not."""
  value, doc = _value(package, name), _doc(package, name)
  missing = []
  if inspect.isclass(value):
    fields = dataclasses.is_dataclass(value) and dataclasses.fields(value)
    if issubclass(value, settings.Group):  # The help of a field says it.
      fields = [f for f in fields if not f.metadata.get('help')]
    has_fields = fields or hasattr(value, '_fields')
    return ['Attributes'] if has_fields and 'Attributes:' not in doc else []
  signature = inspect.signature(value)
  if signature.parameters and 'Args:' not in doc:
    missing.append('Args')
  for parameter in signature.parameters:
    if not re.search(rf'^  \*{{0,2}}{parameter}:', doc, re.MULTILINE):
      missing.append(f'Args: {parameter}')
  returns = signature.return_annotation not in (None, inspect.Signature.empty)
  # Google's style: a summary that says it is enough.
  if returns and not re.search(r'^(Returns|Yields):|\AReturns ', doc, re.M):
    missing.append('Returns')
  if _raises(value) and 'Raises:' not in doc:
    missing.append('Raises')
  return missing


@pytest.mark.parametrize('package, name', _NAMES)
def test_docstring_has_its_sections(package, name):
  assert _missing(package, name) == []


def _has_example(package, name):
  doc = _doc(package, name)
  if found := _SEE.search(doc):
    doc = _doc(package, found[1])  # No pointer to a pointer.
  return bool(_EXAMPLE.search(doc)) and not _SEE.search(doc)


@pytest.mark.parametrize(
  'package, name', [n for n in _NAMES if n not in _WITHOUT_EXAMPLE]
)
def test_docstring_has_an_example(package, name):
  assert _has_example(package, name)


@pytest.mark.slow
@pytest.mark.parametrize('module', [*_MODULES, 'pda_fed.common.tables'])
def test_doctests(module):
  # A mean of float32 may print another last digit; examples round for that.
  imported = __import__(module, fromlist=['_'])
  found = doctest.testmod(imported, optionflags=doctest.ELLIPSIS)
  assert found.failed == 0


def test_a_docstring_without_sections_is_seen(monkeypatch):
  def nothing_said(alpha: float) -> float:
    """Half of it."""
    if alpha < 0:
      raise ValueError(alpha)
    return alpha / 2

  monkeypatch.setattr(write_api, 'public_names', lambda _: {'f': nothing_said})
  assert _missing('p', 'f') == ['Args', 'Args: alpha', 'Returns', 'Raises']
  assert not _has_example('p', 'f')


def test_the_page_of_public_names_is_up_to_date():
  assert write_api.PAGE.read_text() == write_api.render(), 'run `make docs`'
  page = write_api.SHARP_EDGES.read_text()
  assert page == write_api.with_table(page), 'run `make docs`'
  assert page.count('| `seconds` |') == 1
  assert write_api.PAGE.parent == pages.ROOT / 'docs'
