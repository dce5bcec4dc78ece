"""Packages import only those of lower layers, as docs/architecture.md says."""

import ast
import re

from tests.docs import pages

# Modules outside of all layers.
_SETUP = ('pda_fed', 'pda_fed.__main__')


def _layers():
  """The layer of each package, from the page's table."""
  text = (pages.ROOT / 'docs/architecture.md').read_text()
  rows = re.findall(r'^\| (\d) \| ([^|]+) \|', text, re.MULTILINE)
  return {
    name: int(layer)
    for layer, cell in rows
    for name in re.findall(r'`([\w.]+)`', cell)
  }


def _package(module):
  """The package of a module, as the table names it."""
  parts = module.split('.')
  return '.'.join(parts[: 2 if parts[0] == 'pda_fed' else 1])


def _modules():
  """Every module of ours by name, with its tree."""
  for folder in ('bench', 'data_prep', 'pda_fed', 'scripts'):
    for path in sorted((pages.ROOT / folder).rglob('*.py')):
      parts = path.relative_to(pages.ROOT).with_suffix('').parts
      name = '.'.join(p for p in parts if p != '__init__')
      yield name, ast.parse(path.read_text())


def _imported(tree):
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def test_every_package_has_a_layer():
  packages = {_package(name) for name, _ in _modules()} - set(_SETUP)
  assert packages == set(_layers())


def test_packages_import_only_lower_layers():
  layers = _layers()
  upwards = []
  seen = 0
  for name, tree in _modules():
    own = _package(name)
    if own in _SETUP:
      continue
    for imported in _imported(tree):
      other = _package(imported)
      if other == own or other not in layers:
        continue
      seen += 1
      is_base = layers[own] == layers[other] == 0
      if layers[other] >= layers[own] and not is_base:
        upwards.append((name, imported))
  assert upwards == []
  assert seen > 300
