"""Every command and program in the docs runs, or is marked with why not.

A block that no test runs has a comment before it, `<!-- not run: REASON -->`.
Its commands are still parsed: the module is there, and takes these flags.
"""

import collections
import functools
import json
import os
import re
import stat
import subprocess
import sys

from pda_fed import __main__ as pda_fed_command
import pytest

from tests.docs import pages

# What a page says where each of its commands measures, for long.
_WHOLE_PAGE = re.compile(r'<!-- nothing on this page is run: (.+?) -->')
# extending.md has a test of its own, which runs all of it.
_PAGES = [page for page in pages.MARKDOWN if page.name != 'extending.md']
_BLOCKS = [b for page in _PAGES for b in pages.blocks(page)]
_SHELL = [b for b in _BLOCKS if b.language == 'shell']
_PYTHON = [b for b in _BLOCKS if b.language == 'python']
# Languages of what a program prints, and of fences that hold no program.
_NOT_PROGRAMS = ('', 'text')
# Flags of other programs than ours, in the running text.
_FLAGS_OF_OTHERS = {'config', 'fuzz_cases'}  # Of Bazel and pytest.
_PROGRAM = re.compile(r'(?:.*/)?python3?$')


def _reason(block):
  found = _WHOLE_PAGE.search((pages.ROOT / block.page).read_text())
  return block.reason or (found and found[1])


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


def _argument_lists(module, arguments):
  """What goes to which binary: after `--`, it is every run's own."""
  if (
    module not in ('scripts.compare', 'scripts.sweep') or '--' not in arguments
  ):
    return [(module, arguments)]
  at = arguments.index('--')
  binary = 'train_stackoverflow'
  for word in arguments[:at]:
    if word.startswith('--binary='):
      binary = word.partition('=')[2]
  return [(module, arguments[:at]), (f'scripts.{binary}', arguments[at + 1 :])]


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
  found = collections.defaultdict(list)
  for block in _SHELL:
    for words in pages.commands(block.code):
      binary = _of_binary(words)
      if binary is not None:
        for module, arguments in _argument_lists(*binary):
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
  (error,) = _check_flags('scripts.privacy', (('--rounds=many',),))['errors']
  assert 'rounds' in error


def test_commands_are_found():
  found = _by_module()
  assert ('--quick',) in found['scripts.run_linear_regression']
  # What stands after -- is a run's.
  assert any('--test_curve' in c for c in found['scripts.train_sample_level'])
  assert not any('--test_curve' in c for c in found['scripts.compare'])


def test_other_commands_name_what_is_there():
  targets = re.findall(
    r'^([a-z]+):', (pages.ROOT / 'Makefile').read_text(), re.MULTILINE
  )
  wrong = []
  for block in _SHELL:
    for words in pages.commands(block.code):
      if words[0] == 'make' and words[1] not in targets:
        wrong.append((str(block), words))
      if words[0] in ('sh', 'bash') and not (pages.ROOT / words[1]).exists():
        wrong.append((str(block), words))
  assert wrong == []
  prose = '\n'.join(pages.prose(page) for page in pages.MARKDOWN)
  named = set(re.findall(r'`make ([a-z]+)', prose))
  assert 'run' in named and named <= set(targets), named - set(targets)


@pytest.fixture(scope='module')
def known_flags():
  names = set(_FLAGS_OF_OTHERS)
  for path in (pages.ROOT / 'bench').glob(
    '*.py'
  ):  # Not imported: that is slow.
    names |= set(re.findall(r"DEFINE_\w+\(\s*'(\w+)'", path.read_text()))
  for path in (pages.ROOT / 'scripts').glob('*.py'):
    if '__main__' in path.read_text():
      names |= set(_check_flags(f'scripts.{path.stem}')['flags'])
  return names


@pytest.mark.parametrize(
  'page',
  [p for p in pages.MARKDOWN if p.parent.name != 'bench'],
  ids=lambda p: p.name,
)
def test_flags_in_the_running_text_exist(page, known_flags):
  code = re.findall(r'`([^`]+)`', pages.prose(page))
  flags = {f for c in code for f in re.findall(r'(?<!\S)--([a-z][\w-]*)', c)}
  # `--pretraining_...` stands for all that begin so.
  unknown = {
    f
    for f in flags - known_flags
    if not (f.endswith('_') and any(k.startswith(f) for k in known_flags))
  }
  assert unknown == set()


@pytest.mark.parametrize('block', _BLOCKS, ids=str)
def test_blocks_are_of_a_known_language(block):
  assert block.language in ('shell', 'python', *_NOT_PROGRAMS)


def test_reasons_stand_on_blocks_that_have_programs():
  everything = ''.join(page.read_text() for page in pages.MARKDOWN)
  marked = [
    b for b in _BLOCKS if b.reason and b.language in ('shell', 'python')
  ]
  assert everything.count('<!-- not run:') == len(marked) > 0


def _wrapper(path):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
  path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
  """A folder that looks like the root of a clone after `make setup`."""
  folder = tmp_path_factory.mktemp('clone')
  for name in ('data_prep', 'docs', 'pda_fed', 'scripts', 'tools', 'Makefile'):
    (folder / name).symlink_to(pages.ROOT / name)
  _wrapper(folder / '.venv/bin/python')
  return folder


def _run_shell(block, folder):
  path = f'{folder / ".venv/bin"}{os.pathsep}{os.environ["PATH"]}'
  return subprocess.run(
    ['bash', '-euo', 'pipefail', '-c', block.code],
    cwd=folder,
    env={**os.environ, 'PATH': path},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


_TO_RUN = [
  b
  for b in _BLOCKS
  if b.language in ('shell', 'python')
  and _reason(b) is None
  # These have a test of their own.
  and b.page != 'docs/extending.md'
]


# In the order of the pages: a program may read what a command before it wrote.
@pytest.mark.slow
@pytest.mark.parametrize('block', _TO_RUN, ids=str)
def test_block_runs_as_written(block, clone, monkeypatch, capsys):
  if block.language == 'shell':
    done = _run_shell(block, clone)
    assert done.returncode == 0, done.stderr[-2000:]
    output = done.stdout
  else:
    monkeypatch.chdir(clone)
    exec(compile(block.code, str(block), 'exec'), {'__name__': 'program'})
    output = capsys.readouterr().out
  for words, check in _CLAIMS.items():
    if words in block.code:
      check(block.code, output)
      break


def _check_library_example(code, output):
  lines = output.splitlines()
  claimed = re.search(r'epsilon\(plan\)\)  # ([\d.]+)', code).group(1)
  assert f'{float(lines[0]):.2f}' == claimed
  shown = 10 if "metrics['finalizer']" in code else 0
  assert len(lines) == 1 + shown
  assert all('alpha' in line and 'cosine' in line for line in lines[1:])


def _check_linear_regression(code, output):
  # The noise is fresh; over problems and noise the loss varies by 0.0005.
  assert abs(float(output.strip('[]\n')) - 0.016) < 0.003


def _check_presets(code, output):
  assert '6.05' in output and '7.51' in output and '8.32' in output


def _check_users(code, output):
  page = (pages.ROOT / 'docs/data_preparation.md').read_text()
  shown = re.search(r'users +number.*?test[^\n]+', page, re.DOTALL).group()
  assert shown in output


# What a page says of a block's output, by words in the block.
_CLAIMS = {
  'pda_tff.build_pda_dpmd': _check_library_example,
  'linear_regression.simulate': _check_linear_regression,
  '--preset=stackoverflow': _check_presets,
  'scripts.prepare_users --output_dir': _check_users,
}


@pytest.mark.parametrize('words', _CLAIMS)
def test_claims_are_about_blocks_that_run(words):
  assert any(words in block.code for block in _TO_RUN)
