"""The command pda-fed."""

import pathlib
import re
import subprocess
import sys

from pda_fed import __main__ as command
import pytest

_ROOT = pathlib.Path(__file__).parents[1]


def _run(*arguments, cwd=_ROOT):
  return subprocess.run(
    [sys.executable, '-m', 'pda_fed', *arguments],
    cwd=cwd,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


@pytest.mark.parametrize('arguments', [(), ('--help',)])
def test_help_is_a_table(arguments):
  done = _run(*arguments)
  assert (done.returncode, done.stderr) == (0, '')
  named = re.findall(r'^  ([\w-]+)  +[A-Z].+\.$', done.stdout, re.MULTILINE)
  assert named == list(command.COMMANDS)
  assert max(map(len, done.stdout.splitlines())) <= 88


def test_an_unknown_command_is_one_line_with_those_that_are_known():
  done = _run('trian')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.count('\n') == 1
  assert "'trian'" in done.stderr and 'train, compare' in done.stderr


@pytest.mark.parametrize('name', command.COMMANDS)
def test_commands_are_programs(name):
  program, _ = command.COMMANDS[name]
  text = (_ROOT / f'scripts/{program}.py').read_text()
  assert "if __name__ == '__main__':" in text


@pytest.mark.slow
def test_runs_a_program_with_its_arguments():
  done = _run('privacy', '--preset=stackoverflow')
  assert (done.returncode, done.stderr) == (0, '')
  assert '6.054' in done.stdout
  done = _run('privacy', '--no_such_flag')
  assert done.returncode == 2
  assert done.stderr.startswith('error: ') and 'no_such_flag' in done.stderr


def test_a_package_that_is_missing_is_one_line(monkeypatch, capsys):
  def run_module(name, **_):
    raise ModuleNotFoundError('No module', name='absl.flags')

  monkeypatch.setattr(sys, 'argv', ['pda-fed', 'compare'])
  monkeypatch.setattr(sys, 'path', list(sys.path))
  monkeypatch.setattr(command.runpy, 'run_module', run_module)
  with pytest.raises(SystemExit, match='2'):
    command.main()
  assert capsys.readouterr().err == (
    "error: compare needs absl; pip install 'pda_fed[jax]' brings it.\n"
  )
