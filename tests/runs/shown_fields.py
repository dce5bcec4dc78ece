"""Collects every field that files show, named as in `disclosure`."""

import fnmatch
from html import parser
import json
import re

import numpy as np
from pda_fed.runs import checkpoints
from pda_fed.runs import disclosure

_KEY = re.compile(r'^[0-9a-f]{16}(?=\.)')


def undeclared(found):
  """The fields that no row declares."""
  return sorted(f for f in found if disclosure.find(*f) is None)


def unmatched(found):
  """The declared names that are in no file."""
  seen = set()
  for place, name in found:
    row = disclosure.find(place, name)
    for pattern in row.names if row else ():
      if fnmatch.fnmatchcase(name, pattern):
        seen.add((place, pattern))
  declared = [(row.place, n) for row in disclosure.TABLE for n in row.names]
  return sorted(set(declared) - seen)


def leaves(value, prefix=''):
  """Names of what a JSON value shows; those of a list are one."""
  if isinstance(value, dict):
    dot = f'{prefix}.' if prefix else ''
    return {n for k, v in value.items() for n in leaves(v, f'{dot}{k}')}
  if isinstance(value, list):
    return {n for v in value for n in leaves(v, prefix)}
  return set() if value is None else {prefix}


def _of_json(place, path, of_file=''):
  found = leaves(json.loads(path.read_text()))
  return {(place, f'{of_file}{name}') for name in found}


def _of_arrays(place, path):
  arrays, record = checkpoints.read_arrays(path)
  names = {*arrays, *leaves(record)} - {'fake/m'}  # Of the tests' engine.
  return {(place, name) for name in names}


def _tags(path):
  from tensorboard.backend.event_processing import event_file_loader

  events = event_file_loader.LegacyEventFileLoader(str(path)).Load()
  return {value.tag for event in events for value in event.summary.value}


def _files(folder):
  paths = sorted(p for p in folder.rglob('*') if p.is_file())
  return {p.relative_to(folder).as_posix(): p for p in paths}


def of_run(folder):
  found = set()
  for name, path in _files(folder).items():
    if name.startswith('audit/'):
      found.add((disclosure.FILES, 'audit/'))
    elif name == 'config.json':
      found |= _of_json(disclosure.CONFIG, path)
    elif name == 'result.json':
      found |= _of_json(disclosure.RESULT, path)
    elif name == 'metrics.csv':
      columns = path.read_text().partition('\n')[0].split(',')
      found |= {(disclosure.METRICS, column) for column in columns}
    elif name.startswith('tensorboard/'):
      found |= {(disclosure.METRICS, tag) for tag in _tags(path)}
    elif name.startswith('checkpoints/'):
      found |= _of_arrays(disclosure.CHECKPOINTS, path)
    elif name.endswith('.json'):
      found |= _of_json(disclosure.FILES, path, f'{name}: ')
    else:
      found.add((disclosure.FILES, name))
  if (folder / 'audit').is_dir():
    found |= of_run(folder / 'audit')
  return found


def of_warm_starts(folder):
  found = set()
  for name, path in _files(folder).items():
    found.add((disclosure.WARM_START, _KEY.sub('KEY', name)))
    if name.endswith('.ckpt'):
      found |= _of_arrays(disclosure.WARM_START, path)
  return found


def of_store(folder):
  files = _files(folder)
  found = _of_json(disclosure.MANIFEST, files.pop('manifest.json'))
  return found | {(disclosure.STORE, name) for name in files}


def of_export(path):
  with np.load(path) as arrays:
    found = {(disclosure.EXPORT, name) for name in arrays if name != 'about'}
    about = leaves(json.loads(str(arrays['about'])), 'about')
  return found | {(disclosure.EXPORT, name) for name in about}


class _Page(parser.HTMLParser):
  """Collects columns, titles of tables that open, and their first cells."""

  def __init__(self):
    super().__init__()
    self.found = set()
    self._tag = self._title = None
    self._cell = 0

  def handle_starttag(self, tag, attrs):
    self._tag = tag
    self._cell = 0 if tag == 'tr' else self._cell + (tag == 'td')

  def handle_endtag(self, tag):
    self._tag = None
    self._title = None if tag == 'details' else self._title

  def handle_data(self, data):
    if self._tag == 'summary':
      self._title = data
      self.found.add((disclosure.PAGE, data))
    elif self._title == 'Libraries' and self._tag == 'td' and self._cell == 1:
      self.found.add((disclosure.CONFIG, f'libraries.{data}'))
    elif str(self._title).startswith('Settings'):
      if self._tag == 'td' and self._cell == 1:
        is_of_page = data == 'seeds'
        place = disclosure.PAGE if is_of_page else disclosure.CONFIG
        name = data if is_of_page else f'settings.{data}'
        self.found.add((place, name))
    elif self._tag == 'th':
      self.found.add((disclosure.PAGE, data))


def of_comparison(folder):
  """Of the files beside runs."""
  found = set()
  for name, path in _files(folder).items():
    if name == 'index.html':
      page = _Page()
      page.feed(path.read_text())
      found |= page.found
    elif name == 'table.md':
      columns = path.read_text().partition('\n')[0].strip('| ').split(' | ')
      found |= {(disclosure.PAGE, column) for column in columns}
    elif name.endswith('.json'):
      found |= _of_json(disclosure.COMPARISON, path, f'{name}: ')
    else:
      found.add((disclosure.COMPARISON, name))
  return found


def of_lines(lines):
  """Of what progress and overview print: fields by their names."""
  found = set()
  for line in lines:
    match = re.match(r'round \d+/\d+, |pre-training, epoch \d+: ', line)
    if match:
      # Values stand before 's/round', and after other names.
      fields = line[match.end() :].split(', ')
      values = re.compile(r'^ *[\d.?]+(?=s/)| [\d.%:?]+$')
      found |= {(disclosure.TERMINAL, values.sub('', f)) for f in fields}
    elif line.startswith('  '):
      found.add((disclosure.TERMINAL, line.split()[0]))
    else:
      found.add((disclosure.TERMINAL, line))
  return found
