"""Folders that are complete or not there."""

import os
import signal
import stat
import subprocess
import sys
import textwrap

from data_prep import errors
from data_prep import staging
import pytest

_MARKER = 'done'


def _write(target, content, overwrite=False):
  with staging.staged_folder(
    target, overwrite=overwrite, marker=_MARKER
  ) as folder:
    (folder / _MARKER).write_text(content)
    assert not target.exists() or overwrite


def _names(folder):
  return [path.name for path in folder.iterdir()]


def test_appears_when_complete(tmp_path):
  _write(tmp_path / 'deep' / 'out', 'a')
  assert (tmp_path / 'deep' / 'out' / _MARKER).read_text() == 'a'
  assert _names(tmp_path / 'deep') == ['out']


@pytest.mark.parametrize('umask', [0o022, 0o002])
def test_only_the_owner_may_read(tmp_path, umask):
  before = os.umask(umask)
  try:
    _write(tmp_path / 'out', 'a')
    (tmp_path / 'out').chmod(0o755)
    _write(tmp_path / 'out', 'b', overwrite=True)  # As if it were new.
  finally:
    os.umask(before)
  assert stat.S_IMODE((tmp_path / 'out').stat().st_mode) == 0o700


def test_a_failure_leaves_nothing(tmp_path):
  with (
    pytest.raises(RuntimeError),
    staging.staged_folder(
      tmp_path / 'out', overwrite=False, marker=_MARKER
    ) as folder,
  ):
    (folder / 'half').write_text('')
    raise RuntimeError
  assert _names(tmp_path) == []


def test_overwrite(tmp_path):
  target = tmp_path / 'out'
  _write(target, 'a')
  with pytest.raises(FileExistsError, match='--overwrite'):
    _write(target, 'b')
  assert (target / _MARKER).read_text() == 'a'
  _write(target, 'b', overwrite=True)
  assert (target / _MARKER).read_text() == 'b'
  assert _names(tmp_path) == ['out']


def test_what_was_there_comes_back_if_it_cannot_be_replaced(
  tmp_path, monkeypatch
):
  target = tmp_path / 'out'
  _write(target, 'a')
  rename = os.rename

  def fail(source, destination):
    if os.path.basename(source) == 'new':
      raise OSError('no')
    rename(source, destination)

  monkeypatch.setattr(os, 'rename', fail)
  with pytest.raises(errors.StoreError, match='could not be replaced: no'):
    _write(target, 'b', overwrite=True)
  assert (target / _MARKER).read_text() == 'a'
  assert _names(tmp_path) == ['out']


def test_a_link_stays_one(tmp_path):
  (tmp_path / 'disk').mkdir()
  link = tmp_path / 'out'
  link.symlink_to(tmp_path / 'disk')
  _write(link, 'a', overwrite=True)
  assert link.is_symlink()
  assert (tmp_path / 'disk' / _MARKER).read_text() == 'a'


def test_never_replaces_what_is_not_ours(tmp_path):
  (tmp_path / 'thesis.tex').write_text('')
  with pytest.raises(FileExistsError, match='Choose another'):
    _write(tmp_path, 'a', overwrite=True)
  with pytest.raises(FileExistsError, match='Choose another'):
    _write(tmp_path / 'thesis.tex', 'a', overwrite=True)


def test_an_empty_folder_may_be_filled(tmp_path):
  (tmp_path / 'out').mkdir()
  with staging.staged_folder(
    tmp_path / 'out', overwrite=False, marker=_MARKER
  ) as folder:
    (folder / _MARKER).write_text('a')
  assert (tmp_path / 'out' / _MARKER).read_text() == 'a'


def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path):
  program = textwrap.dedent(f"""
      import pathlib, sys, time
      from data_prep import staging
      with staging.staged_folder(
        {str(tmp_path / 'out')!r}, overwrite=False, marker={_MARKER!r}
      ) as folder:
        (folder / {_MARKER!r}).write_text('half')
        print('writing', flush=True)
        time.sleep(600)
      """)
  root = staging.__file__.rsplit('/', 2)[0]
  with subprocess.Popen(
    [sys.executable, '-c', program],
    cwd=root,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      assert process.stdout.readline() == 'writing\n'
      # While it lives, nobody touches what it writes.
      with pytest.raises(FileExistsError, match='being written by another'):
        _write(tmp_path / 'out', 'mine')
    finally:
      process.send_signal(signal.SIGKILL)
  assert _names(tmp_path) == ['.out.partial']
  # Afterwards the next run clears it away.
  _write(tmp_path / 'out', 'new')
  assert _names(tmp_path) == ['out']
  assert (tmp_path / 'out' / _MARKER).read_text() == 'new'
