"""Every command and program in the docs runs, or is marked with why not.

A block that no test runs has a comment before it, `<!-- not run: REASON -->`.
Its commands are still parsed: the module is there, and takes these flags.
"""

import collections
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys

from pda_fed import __main__ as pda_fed_command
from pda_fed import models
import pytest

from tests.docs import pages

# What a page says where each of its commands measures, for long.
_WHOLE_PAGE = re.compile(r'<!-- nothing on this page is run: (.+?) -->')
_BLOCKS = [b for page in pages.MARKDOWN for b in pages.blocks(page)]
_SHELL = [b for b in _BLOCKS if b.language == 'shell']
# Flags of other programs than ours, in the running text.
_FLAGS_OF_OTHERS = {'config', 'fuzz_cases'}  # Of Bazel and pytest.
_PROGRAM = re.compile(r'(?:.*/)?python3?$')


def _is_run(block):
  whole_page = _WHOLE_PAGE.search((pages.ROOT / block.page).read_text())
  return block.reason is None and whole_page is None


def _of_binary(words):
  """Splits a command into (module, arguments), if it runs one of ours."""
  words = [w for w in words if not re.match(r'[A-Z_]+=', w)]
  words = words[: words.index('>')] if '>' in words else words
  # Dots stand for more of the same; absl would end at --help.
  words = [w for w in words if w not in ('...', '--help')]
  if _PROGRAM.match(words[0]) and words[1:2] == ['-m']:
    return words[2], words[3:]
  if words[0] == 'pda-fed':
    program, *added = pda_fed_command.COMMANDS[words[1]][0].split()
    return f'scripts.{program}', [*added, *words[2:]]
  if words[:2] == ['bazel', 'run']:
    target, *rest = words[2:]
    module = target.removeprefix('//').replace('/', '.').replace(':', '.')
    return module, rest[1:] if rest[:1] == ['--'] else rest
  return None


@functools.cache
def _check_flags(module, commands=()):
  done = subprocess.run(
    [sys.executable, '-m', 'tests.docs.flag_checker'],
    input=json.dumps({'module': module, 'commands': commands}),
    cwd=pages.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, f'{module}: {done.stderr[-2000:]}'
  return json.loads(done.stdout.splitlines()[-1])


def _by_module():
  """The arguments of the docs' commands."""
  found = collections.defaultdict(list)
  for block in _SHELL:
    if block.page == 'docs/extending.md':  # Its modules add flags.
      continue
    for words in pages.commands(block.code):
      binary = _of_binary(words)
      if binary is not None:
        module, arguments = binary
        found[module].append(tuple(arguments))
  return found


@pytest.mark.slow
@pytest.mark.parametrize('module', sorted(_by_module()))
def test_flags_of_commands_exist_and_parse(module):
  assert _check_flags(module, tuple(_by_module()[module]))['errors'] == []


@pytest.mark.slow
def test_a_flag_that_does_not_exist_is_seen():
  commands = (('--preset=stackoverflow',), ('--no_such_flag=1',))
  (error,) = _check_flags('scripts.privacy', commands)['errors']
  assert 'no_such_flag' in error


def test_other_commands_name_what_is_there():
  makefile = (pages.ROOT / 'Makefile').read_text()
  targets = re.findall(r'^([a-z]+):', makefile, re.MULTILINE)
  prose = '\n'.join(pages.prose(page) for page in pages.MARKDOWN)
  named = set(re.findall(r'`make ([a-z]+)', prose))
  for block in _SHELL:
    for words in pages.commands(block.code):
      if words[0] == 'make':
        named.add(words[1])
      if words[0] in ('sh', 'bash'):
        assert (pages.ROOT / words[1]).exists(), block
  assert 'run' in named and named <= set(targets), named - set(targets)


@pytest.fixture(scope='module')
def known_flags():
  names = set(_FLAGS_OF_OTHERS)
  for kind in (models.RecurrentSpec, models.ConvolutionalSpec):
    names |= {f'model.{field.name}' for field in dataclasses.fields(kind)}
  for path in (pages.ROOT / 'bench').glob('*.py'):  # To import them is slow.
    names |= set(re.findall(r"DEFINE_\w+\(\s*'(\w+)'", path.read_text()))
  for path in (pages.ROOT / 'scripts').glob('*.py'):
    if '__main__' in path.read_text():
      names |= set(_check_flags(f'scripts.{path.stem}')['flags'])
  return names


@pytest.mark.slow
@pytest.mark.parametrize('page', pages.MARKDOWN[:-1], ids=lambda p: p.name)
def test_flags_in_the_running_text_exist(page, known_flags):
  code = ' '.join(re.findall(r'`([^`]+)`', pages.prose(page)))
  for flag in re.findall(r'(?<!\S)--([a-z](?:[\w.-]*\w)?)', code):
    assert flag in known_flags


def test_reasons_stand_on_blocks_that_have_programs():
  everything = ''.join(page.read_text() for page in pages.MARKDOWN)
  reasons = [b for b in _BLOCKS if b.reason and b.language]
  assert everything.count('<!-- not run:') == len(reasons) > 0


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
  """A folder that looks like the root of a clone after `make setup`."""
  folder = tmp_path_factory.mktemp('clone')
  for name in ('data_prep', 'docs', 'pda_fed', 'scripts', 'tools', 'Makefile'):
    (folder / name).symlink_to(pages.ROOT / name)
  python = folder / '.venv/bin/python'
  python.parent.mkdir(parents=True)
  python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
  python.chmod(0o755)
  return folder


_TO_RUN = [b for b in _BLOCKS if (b.language or b.file) and _is_run(b)]


# In the order of the pages: a program may read what a command before it wrote.
@pytest.mark.slow
@pytest.mark.parametrize('block', _TO_RUN, ids=str)
def test_block_runs_as_written(block, clone, monkeypatch):
  if block.file:
    (clone / block.file).write_text(block.code)
  elif block.language == 'python':
    monkeypatch.chdir(clone)
    exec(compile(block.code, str(block), 'exec'), {'__name__': 'program'})
  elif block.language == 'shell':
    path = f'{clone / ".venv/bin"}{os.pathsep}{os.environ["PATH"]}'
    done = subprocess.run(
      ['bash', '-euo', 'pipefail', '-c', block.code],
      cwd=clone,
      env={**os.environ, 'PATH': path},
      capture_output=True,
      text=True,
      timeout=600,
      check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
  else:
    assert block.language == 'text'
