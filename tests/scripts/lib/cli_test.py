"""What every binary does with flags, errors and noise."""

import pathlib
import subprocess
import sys
import textwrap

import pytest
from scripts.lib import cli

_ROOT = pathlib.Path(__file__).parents[3]

_PROGRAM = textwrap.dedent("""
    import sys
    sys.path.insert(0, {root!r})
    from scripts.lib import cli
    from absl import flags
    _ROUNDS = flags.DEFINE_integer('rounds', 1, 'Rounds.', lower_bound=1)

    def main():
      {body}

    cli.run(main)
    """)


def _run(body: str, *arguments: str) -> subprocess.CompletedProcess:
  program = _PROGRAM.format(root=str(_ROOT), body=body)
  return subprocess.run(
    [sys.executable, '-c', program, *arguments],
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def test_good_run():
  done = _run('print(_ROUNDS.value)', '--rounds=3')
  assert (done.returncode, done.stdout, done.stderr) == (0, '3\n', '')


@pytest.mark.parametrize(
  'argument, words',
  [
    ('--ronds=3', ('ronds', 'rounds')),  # Suggests the right name.
    ('--rounds=0', ('rounds', '0 is not a positive integer')),
    ('--rounds=many', ('rounds', 'many')),
    ('extra', ("unexpected argument 'extra'",)),
  ],
)
def test_bad_flags_are_one_line(argument, words):
  done = _run('print("ran")', argument)
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr.count('\n') == 1
  assert done.stderr.startswith('error: ')
  for word in words:
    assert word in done.stderr


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
def test_user_errors_are_one_line(error, exit_code):
  done = _run(f'raise {error}')
  assert done.returncode == exit_code
  assert done.stderr.count('\n') == 1


def test_debug_shows_the_traceback():
  assert 'Traceback' in _run("raise ValueError('x')", '--debug').stderr


def test_bugs_keep_their_traceback():
  done = _run("raise KeyError('x')")
  assert done.returncode == 1
  assert 'Traceback' in done.stderr


def test_ctrl_c():
  done = _run('raise KeyboardInterrupt')
  assert (done.returncode, done.stderr) == (130, 'interrupted\n')


def test_warnings_are_one_line():
  done = _run("import warnings; warnings.warn('open port', RuntimeWarning)")
  assert (done.returncode, done.stderr) == (0, 'warning: open port\n')


@pytest.mark.slow
def test_tensorflow_is_silent():
  done = _run('import pda_fed.tff, tensorflow_federated, jax')
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


class TestShippedFiles:
  def test_are_found_from_any_folder(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ['--a=1', '--flagfile=scripts/presets/cifar10.flags', '--b=2']
    found = cli.with_presets(given)
    assert (found[0], found[-1]) == ('--a=1', '--b=2')
    assert '--noise_multiplier=1.51' in found
    # That of the preset which this one names.
    assert any(flag.startswith('--expected_cohort=') for flag in found)
    assert not any('flagfile' in flag for flag in found)
    assert cli.expanded(given) == found
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
    assert cli.with_presets(given) == given
    assert cli.expanded(given) == ['--rounds=77']

  def test_other_arguments_stay(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ['--flagfile=mine', 'x', '--', '--flagfile=scripts/presets/a.flags']
    assert cli.with_presets(given) == given
    after = ['--', '--flagfile=scripts/presets/tiny.flags']
    assert cli.with_presets(after) == after
    assert cli.shipped('scripts/presets/none.flags').endswith('ts/none.flags')

  def test_a_program_takes_them(self, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = '--flagfile=scripts/presets/tiny.flags'
    done = _run('print(_ROUNDS.value)', preset, '--undefok=delta')
    assert 'expected_cohort' in done.stderr  # Which only others have.
