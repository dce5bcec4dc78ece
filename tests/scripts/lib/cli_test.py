"""What every binary does with flags, errors and noise."""

import pathlib
import subprocess
import sys

import pytest
from scripts.lib import cli

from tests.scripts import programs

_PROGRAM = """
from scripts.lib import cli
from absl import flags
_ROUNDS = flags.DEFINE_integer('rounds', 1, 'Rounds.', lower_bound=1)

def main():
  {body}

cli.run(main)
"""


@pytest.fixture(name='run')
def fixture_run(tmp_path):
  """Runs a program of this body."""

  def run(body: str, *arguments: str) -> programs.Done:
    (tmp_path / 'program.py').write_text(_PROGRAM.format(body=body))
    return programs.run(tmp_path / 'program.py', *arguments)

  return run


def test_good_run(run):
  done = run('print(_ROUNDS.value)', '--rounds=3')
  assert (done.code, done.out, done.err) == (0, '3\n', '')


@pytest.mark.parametrize(
  'argument, words',
  [
    ('--ronds=3', ('ronds', 'rounds')),  # Suggests the right name.
    ('--rounds=0', ('rounds', '0 is not a positive integer')),
    ('--rounds=many', ('rounds', 'many')),
    ('extra', ("unexpected argument 'extra'",)),
  ],
)
def test_bad_flags_are_one_line(run, argument, words):
  done = run('print("ran")', argument)
  assert (done.code, done.out, done.err.count('\n')) == (2, '', 1)
  for word in words:
    assert word in done.error


@pytest.mark.parametrize(
  'error, exit_code',
  [
    ("ValueError('clip must be\\n positive')", 2),
    ("FileNotFoundError('no file x')", 2),
    # What may succeed when it is tried again, and what never will.
    ("OSError('disk full')", 3),
    ("__import__('pda_fed').errors.BusyError('in use')", 3),
    ("__import__('pda_fed').errors.DivergenceError('not finite')", 4),
  ],
)
def test_user_errors_are_one_line(run, error, exit_code):
  done = run(f'raise {error}')
  assert (done.code, done.err.count('\n')) == (exit_code, 1)
  assert done.error


def test_bugs_and_debug_keep_their_traceback(run):
  with pytest.raises(KeyError):
    run("raise KeyError('x')")
  done = run("raise ValueError('x')", '--debug')
  assert done.code == 2 and 'Traceback' in done.err


def test_ctrl_c(run):
  done = run('raise KeyboardInterrupt')
  assert (done.code, done.err) == (130, 'interrupted\n')


@pytest.mark.slow
def test_a_process_has_warnings_in_one_line_and_tensorflow_is_silent(tmp_path):
  body = 'import pda_fed.tff, tensorflow_federated, jax, warnings'
  body += "; warnings.warn('open port', RuntimeWarning)"
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM.format(body=body)],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  found = done.returncode, done.stdout, done.stderr
  assert found == (0, '', 'warning: open port\n')


class TestShippedFiles:
  def test_are_found_from_any_folder(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = cli.expanded(
      ['--a=1', '--flagfile=scripts/presets/cifar10.flags', '--b=2']
    )
    assert (found[0], found[-1]) == ('--a=1', '--b=2')
    assert '--noise_multiplier=1.51' in found
    # That of the preset which this one names.
    assert any(flag.startswith('--expected_cohort=') for flag in found)
    assert not any('flagfile' in flag for flag in found)
    sample = 'data_prep/samples/stackexchange/public_users.txt'
    assert pathlib.Path(cli.shipped(sample)).is_file()

  def test_those_of_the_working_directory_come_first(
    self, tmp_path, monkeypatch
  ):
    monkeypatch.chdir(tmp_path)
    preset = tmp_path / 'scripts/presets/tiny.flags'
    preset.parent.mkdir(parents=True)
    preset.write_text('--rounds=77\n')
    given = ['--flagfile=scripts/presets/tiny.flags']
    assert cli.expanded(given) == ['--rounds=77']

  def test_what_follows_dashes_stays(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    after = ['--a=1', '--', '--flagfile=scripts/presets/tiny.flags']
    assert cli.expanded(after) == after
    assert cli.shipped('scripts/presets/none.flags').endswith('ts/none.flags')

  def test_a_program_takes_them(self, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = '--flagfile=scripts/presets/tiny.flags'
    done = run('print(_ROUNDS.value)', preset, '--undefok=delta')
    assert 'expected_cohort' in done.err  # Which only others have.
