"""Damaged presets, and files of runs."""

import pathlib

from absl import flags
import pytest
from scripts.lib import cli

from tests.fuzz import harness

_PRESETS = pathlib.Path(cli.__file__).parents[1] / 'presets'
_NAME = 'preset.flags'


@pytest.fixture
def flag_values(monkeypatch):
  """Flags of a preset; the binaries' own cannot all be in one process."""
  values = flags.FlagValues()
  flags.DEFINE_integer('rounds', 1, '', flag_values=values)
  flags.DEFINE_float('clip_norm', 1.0, '', flag_values=values)
  flags.DEFINE_string('flagfile', '', '', flag_values=values)
  lines = (_PRESETS / 'laptop.flags').read_text().split()
  for line in lines:
    name = line.lstrip('-').partition('=')[0]
    if line.startswith('--') and name not in values:
      flags.DEFINE_string(name, '', '', flag_values=values)
  monkeypatch.setattr(flags, 'FLAGS', values)
  return values


@pytest.mark.slow
def test_presets(fuzz, flag_values, capsys):
  text = (_PRESETS / 'laptop.flags').read_bytes()

  def load(folder):
    flag_values.unparse_flags()
    try:
      cli._parse_flags(['program', f'--flagfile={folder / _NAME}'])
      return {n: flag_values[n].value for n in ('rounds', 'clip_norm')}
    except SystemExit as e:
      message = capsys.readouterr().err
      assert e.code == 2
      assert message.startswith('error: ') and message.count('\n') == 1
      return None

  def check(expected, found):
    if found is not None:
      assert type(found['rounds']) is type(expected['rounds'])
      assert type(found['clip_norm']) is type(expected['clip_norm'])

  fuzz(
    harness.Target(
      write=lambda f: (f / _NAME).write_bytes(text), load=load, check=check
    ),
    must_find=0,
  )


def test_presets_of_jobs(fuzz):
  text = (_PRESETS / 'laptop.flags').read_bytes()

  def check(expected, found):
    del expected
    assert all(isinstance(argument, str) for argument in found)

  fuzz(
    harness.Target(
      write=lambda f: (f / _NAME).write_bytes(text),
      load=lambda f: cli.expanded([f'--flagfile={f / _NAME}']),
      check=check,
    ),
    must_find=0.1,
  )


def test_runs_files(fuzz):
  lines = [f'--seed={i} --output_dir="out/run {i}"  # One.' for i in range(20)]

  def check(expected, found):
    del expected
    assert all(isinstance(word, str) for line in found for word in line)

  fuzz(
    harness.Target(
      write=lambda f: (f / 'runs.txt').write_text('\n'.join(lines)),
      load=lambda f: cli.read_command_lines(f / 'runs.txt'),
      check=check,
    ),
    0.5,
    must_find=0.1,
  )


@pytest.mark.parametrize('name', cli.presets())
def test_presets_are_whole(name):
  assert cli.expanded([f'--flagfile={_PRESETS / name}'])
