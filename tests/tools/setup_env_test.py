"""tools/setup_env.sh on a small lock: what it makes, mends and refuses."""

import os
import pathlib
import subprocess
import sys

import pytest

_SCRIPT = pathlib.Path(__file__).parents[2] / 'tools' / 'setup_env.sh'
_UNREACHABLE = 'no-such-package==1.0 --hash=sha256:' + '0' * 64 + '\n'


@pytest.fixture
def project(tmp_path):
  (tmp_path / 'requirements.txt').write_text('# Nothing to install.\n')
  (tmp_path / 'requirements-aarch64.txt').write_text('# Nothing either.\n')
  return tmp_path


def _setup(project, *, venv='.venv', python=sys.executable, platform=None):
  environment = os.environ | {'PYTHON': python, 'PIP_NO_INDEX': '1'}
  if platform is not None:
    uname = project / 'bin' / 'uname'
    uname.parent.mkdir(exist_ok=True)
    uname.write_text(f'#!/bin/sh\necho {platform}\n')
    uname.chmod(0o755)
    path = f'{uname.parent}{os.pathsep}{os.environ["PATH"]}'
    environment['PATH'] = path
  return subprocess.run(
    ['sh', str(_SCRIPT), venv],
    cwd=project,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )


def _works(project) -> bool:
  python = project / '.venv' / 'bin' / 'python'
  return subprocess.run([python, '-m', 'pip', '--version']).returncode == 0


def _assert_refused(done, *words):
  assert done.returncode == 1
  assert done.stderr.count('\n') == 1
  for word in words:
    assert word in done.stderr


def test_makes_once_then_again_only_for_another_lock(project):
  first = _setup(project)
  assert first.returncode == 0, first.stderr
  assert 'is ready' in first.stdout
  assert _works(project)
  assert not (project / '.venv-install.log').exists()

  marker = project / '.venv' / 'marker'
  marker.touch()
  again = _setup(project)
  assert (again.returncode, again.stdout, again.stderr) == (0, '', '')
  assert marker.exists()

  (project / 'requirements.txt').write_text('# Another lock.\n')
  assert 'is ready' in _setup(project).stdout
  assert not marker.exists()


def test_half_made_environment_is_made_anew(project):
  (project / '.venv' / 'bin').mkdir(parents=True)
  (project / '.venv' / 'bin' / 'python').touch()
  assert _setup(project).returncode == 0
  assert _works(project)


def test_failed_install_is_one_line_and_nothing_to_trip_over(project):
  (project / 'requirements.txt').write_text(_UNREACHABLE)
  _assert_refused(
    _setup(project), 'no-such-package', 'network', '.venv-install.log'
  )
  assert (project / '.venv-install.log').exists()
  (project / 'requirements.txt').write_text('# Mended.\n')
  assert _setup(project).returncode == 0
  assert _works(project)


def test_no_python(project):
  done = _setup(project, python='/nowhere/python3.11')
  _assert_refused(done, 'Python 3.11', 'found: none', 'PYTHON=')
  assert not (project / '.venv').exists()


def test_other_pythons_are_named(project):
  fake = project / 'python3.12'
  fake.write_text('#!/bin/sh\necho 3.12.1\n')
  fake.chmod(0o755)
  _assert_refused(_setup(project, python=str(fake)), 'python3.12 (3.12.1)')


def test_python_without_venv_is_named(project):
  fake = project / 'python3.11'
  fake.write_text(
    '#!/bin/sh\ncase $2 in *version*) echo 3.11.9 ;; *) exit 1 ;; esac\n'
  )
  fake.chmod(0o755)
  done = _setup(project, python=str(fake))
  _assert_refused(done, '3.11.9', 'without the venv module')


def test_read_only_folder(project):
  # Nobody, not even root, may create a file in /proc.
  _assert_refused(_setup(project, venv='/proc/.venv'), 'cannot write')


def test_not_in_the_project(tmp_path):
  _assert_refused(_setup(tmp_path), 'requirements.txt is not here')


def test_other_platforms_are_refused(project):
  done = _setup(project, platform='Darwin arm64')
  _assert_refused(done, 'Darwin arm64', 'Linux x86_64', 'Linux aarch64')


_TFF = _UNREACHABLE.replace('no-such-package', 'tensorflow-federated')


def test_on_x86_64_nothing_is_left_out(project):
  (project / 'requirements.txt').write_text(_TFF)
  (project / 'requirements-aarch64.txt').unlink()
  done = _setup(project, platform='Linux x86_64')
  _assert_refused(done, 'tensorflow-federated')
  assert 'left out' not in done.stdout


def test_on_aarch64_one_package_is_left_out(project):
  entry = _TFF.replace(' --', ' \\\n    --') + '    # via requirements.in\n'
  (project / 'requirements.txt').write_text(f'# a\n{entry}# b\n')
  done = _setup(project, platform='Linux aarch64')
  assert done.returncode == 0, done.stderr
  (said,) = [s for s in done.stdout.splitlines() if 'left out' in s]
  assert 'tensorflow-federated' in said and '--engine=tff' in said
  installed = (project / '.venv' / 'lock.txt').read_text()
  assert installed == '# a\n# b\n# Nothing either.\n'

  assert _setup(project, platform='Linux aarch64').stdout == ''
  (project / 'requirements-aarch64.txt').write_text(_UNREACHABLE)
  _assert_refused(_setup(project, platform='Linux aarch64'), 'no-such-package')
