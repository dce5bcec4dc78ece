"""tools/setup_env.sh and install_lock.py: what they make, mend and refuse."""

import base64
import fcntl
import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

from tools import install_lock

_TOOLS = pathlib.Path(__file__).parents[2] / 'tools'
_UNREACHABLE = 'no-such-package==1.0 --hash=sha256:' + '0' * 64 + '\n'
_NAMES = ('python3', 'python3.13', 'python3.12', 'python3.11', 'python')
# A pyenv command for a version that is not active.
_SHIM = 'echo "pyenv: command not found" >&2; exit 127'
# Says that it was taken, instead of making an environment.
_WORKS = f"""case $1 in
  *install_lock.py) echo "took $0 for $2" ;;
  *) exec '{sys.executable}' "$@" ;;
esac"""


@pytest.fixture
def project(tmp_path):
  (tmp_path / 'requirements.txt').write_text('# Nothing to install.\n')
  return tmp_path


def _command(path, lines):
  path.parent.mkdir(exist_ok=True)
  path.write_text(f'#!/bin/sh\n{lines}\n')
  path.chmod(0o755)


def _run(project, *command, **environment):
  return subprocess.run(
    command,
    cwd=project,
    env=os.environ | {'PIP_NO_INDEX': '1'} | environment,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )


def _setup(project, *, venv='.venv', python=sys.executable):
  return _run(project, 'sh', str(_TOOLS / 'setup_env.sh'), venv, PYTHON=python)


def _search(project, **commands):
  """Sets up with no other Pythons on the path than these shell scripts."""
  for name in _NAMES:
    _command(project / 'bin' / name, commands.get(name, _SHIM))
  path = f'{project / "bin"}{os.pathsep}{os.environ["PATH"]}'
  script = str(_TOOLS / 'setup_env.sh')
  return _run(project, 'sh', script, '.venv', PYTHON='', PATH=path)


def _install_as(project, changes, *arguments):
  """Runs install_lock.py in a Python that was changed."""
  program = (
    f'import platform, runpy, sys; {changes}\n'
    f'sys.argv = ["install_lock.py", ".venv", *{arguments}]\n'
    f'runpy.run_path({str(_TOOLS / "install_lock.py")!r}, run_name="__main__")'
  )
  return _run(project, sys.executable, '-c', program)


def _is_up_to_date(project, changes='') -> bool:
  return _install_as(project, changes, '--check').returncode == 0


def _assert_refused(done, *words):
  assert done.returncode == 1
  assert done.stderr.startswith('pda_fed: error: ')
  assert done.stderr.count('\n') == 1
  for word in words:
    assert word in done.stderr


class TestMake:
  @pytest.fixture(scope='class')
  def made(self, tmp_path_factory):
    """A project with its environment, which was half-made before."""
    project = tmp_path_factory.mktemp('made')
    (project / 'requirements.txt').write_text('# Nothing to install.\n')
    (project / '.venv' / 'bin').mkdir(parents=True)
    (project / '.venv' / 'bin' / 'python').touch()
    done = _setup(project)
    assert done.returncode == 0, done.stderr
    assert 'is ready' in done.stdout
    return project

  def test_has_pip_and_leaves_no_log(self, made):
    python = str(made / '.venv' / 'bin' / 'python')
    assert _run(made, python, '-m', 'pip', '--version').returncode == 0
    assert not (made / '.venv-install.log').exists()

  def test_once(self, made):
    # Also where no other Python is left.
    for again in (_setup(made), _search(made)):
      assert (again.returncode, again.stdout, again.stderr) == (0, '', '')

  def test_anew_for_another_lock_or_python(self, made):
    assert _is_up_to_date(made)
    other = 3, 12 if sys.version_info[1] == 13 else 13
    assert not _is_up_to_date(made, f'sys.version_info = {other}')
    lock = made / 'requirements.txt'
    before = lock.read_text()
    lock.write_text('# Another lock.\n')
    assert not _is_up_to_date(made)
    lock.write_text(before)

  def test_second_waits_for_the_first(self, made):
    stamp = made / '.venv' / '.installed-lock'
    with (made / '.venv.lock').open('w') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      stamp.rename(made / 'stamp')
      with subprocess.Popen(
        [sys.executable, str(_TOOLS / 'install_lock.py'), '.venv'],
        cwd=made,
        stdout=subprocess.PIPE,
        text=True,
      ) as second:
        assert 'waiting' in second.stdout.readline()
        (made / 'stamp').rename(stamp)  # The first is done.
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert second.communicate(timeout=60)[0] == ''
    assert second.returncode == 0

  @pytest.mark.slow
  def test_failed_install_is_one_line_and_is_not_taken_for_whole(self, project):
    (project / 'requirements.txt').write_text(_UNREACHABLE)
    log = '.venv-install.log'
    _assert_refused(_setup(project), 'no-such-package', 'network', log)
    assert (project / log).exists()
    assert not _is_up_to_date(project)


def _wheel(folder, name, tag, files) -> str:
  """Writes a wheel that refuses every Python; returns its line of a lock."""
  info = f'{name}-1.0.dist-info'
  files = files | {
    f'{info}/METADATA': (
      f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n'
      'Requires-Python: <3\nRequires-Dist: no-such-package\n'
    ),
    f'{info}/WHEEL': f'Wheel-Version: 1.0\nTag: {tag}\n',
  }
  record = ''.join(
    f'{path},sha256={_digest(text)},{len(text)}\n'
    for path, text in files.items()
  )
  path = folder / f'{name}-1.0-{tag}.whl'
  with zipfile.ZipFile(path, 'w') as wheel:
    for file, text in [*files.items(), (f'{info}/RECORD', record)]:
      wheel.writestr(file, text)
  checksum = hashlib.sha256(path.read_bytes()).hexdigest()
  return f'{name}==1.0 --hash=sha256:{checksum}\n'


def _digest(text: str) -> str:
  digest = hashlib.sha256(text.encode()).digest()
  return base64.urlsafe_b64encode(digest).decode().rstrip('=')


class TestSecondSection:
  @pytest.mark.slow
  def test_is_installed_without_regard_to_metadata(self, project, monkeypatch):
    monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
    name = 'tensorflow_federated'
    files = {f'{name}/__init__.py': '', f'{name}/data/worker_binary': 'large'}
    tag = 'py3-none-manylinux_2_31_x86_64'
    entry = _wheel(project, name, tag, files)
    monkeypatch.setenv('PIP_FIND_LINKS', str(project))
    lock = f'# Nothing.\n{install_lock.LINE}{entry}'
    (project / 'requirements.txt').write_text(lock)
    done = _setup(project)
    assert done.returncode == 0, done.stderr
    (package,) = (project / '.venv').glob(f'lib/*/site-packages/{name}')
    assert (package / '__init__.py').exists()
    # Imports would not write it.
    assert (package / '__pycache__').exists()
    assert not (package / 'data' / 'worker_binary').exists()


class TestPython:
  def test_first_that_works_is_taken(self, project):
    others = {'python3.12': _WORKS, 'python3.11': _WORKS}
    done = _search(project, python3='echo CPython 3.10.13', **others)
    assert done.stdout.endswith('python3.12 for .venv\n'), done.stderr

  def test_none(self, project):
    wanted = ('3.11, 3.12 or 3.13', 'found: none', 'PYTHON=')
    _assert_refused(_setup(project, python='/nowhere/python3.13'), *wanted)
    _assert_refused(_search(project), *wanted)
    assert not (project / '.venv').exists()

  @pytest.mark.parametrize(
    'version', ['CPython 3.10.13', 'CPython 3.14.0', 'PyPy 3.11.9']
  )
  def test_others_are_named(self, project, version):
    _command(project / 'other', f'echo {version}')
    done = _setup(project, python=str(project / 'other'))
    _assert_refused(done, f'other ({version})')

  def test_without_venv_is_named(self, project):
    prints = 'case $2 in *version*) echo CPython 3.11.9 ;; *) exit 1 ;; esac'
    _command(project / 'python3.11', prints)
    done = _setup(project, python=str(project / 'python3.11'))
    _assert_refused(done, '3.11.9', 'without the venv module')


class TestRefusals:
  def test_read_only_folder(self, project):
    # Nobody, not even root, may create a file in /proc.
    _assert_refused(_setup(project, venv='/proc/.venv'), 'cannot write')

  def test_not_in_the_project(self, tmp_path):
    _assert_refused(_setup(tmp_path), 'requirements.txt is missing')

  @pytest.mark.parametrize(
    'changes, words',
    [
      (
        'sys.version_info = (3, 10, 13)',
        ['3.11, 3.12 or 3.13', 'this is 3.10'],
      ),
      ('platform.system = lambda: "Windows"', ['Windows', 'Darwin arm64']),
      ('platform.machine = lambda: "ppc"', ['ppc', 'Linux x86_64']),
      ('platform.libc_ver = lambda: ("glibc", "2.17")', ['2.28', 'glibc 2.17']),
      ('platform.libc_ver = lambda: ("", "")', ['2.28']),
    ],
  )
  def test_other_machines(self, project, changes, words):
    if 'libc_ver' in changes:
      changes += '; platform.system = lambda: "Linux"'
      changes += '; platform.machine = lambda: "x86_64"'
    _assert_refused(_install_as(project, changes), *words)
    assert not (project / '.venv').exists()
