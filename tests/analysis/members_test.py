"""Processes that find out about each other by a folder and nothing else."""

import subprocess

from pda_fed import errors
from pda_fed.analysis import members
import pytest


class _Clock:
  """Seconds of one host; that of another shows something else."""

  def __init__(self, start=0.0):
    self.now = start

  def __call__(self):
    return self.now


class _Member(members.Members):
  """A member on a host of its own, unless it is told another."""

  def __init__(self, folder, host, purpose='', start=0.0):
    self.clock = _Clock(start)
    super().__init__(folder, purpose, clock=self.clock)
    self._about |= {'host': host, 'machine': host}


@pytest.fixture
def folder(tmp_path):
  return tmp_path / 'out' / '.claims'


def _pair(folder):
  a, b = _Member(folder, 'a'), _Member(folder, 'b', start=1e6)
  assert a.try_join()
  assert not b.try_join()
  a.beat()
  assert b.try_join()
  return a, b


def test_a_member_is_believed_once_it_moves(folder):
  a, b = _pair(folder)
  assert b.others() == [a.id]
  assert b.about(a.id)['host'] == 'a'
  b.clock.now += 89
  a.beat()
  assert not b.is_dead(a.id)
  b.clock.now += 90
  assert not b.is_dead(a.id)
  b.clock.now += 1
  assert b.is_dead(a.id)
  a.beat()  # It was away, for a while.
  assert not b.is_dead(a.id)


def test_what_dead_members_left_is_removed(folder):
  _Member(folder, 'a').try_join()
  (folder / 'job.done').touch()
  b = _Member(folder, 'b')
  for seconds in (0, 60, 30):
    b.clock.now += seconds
    assert not b.try_join()
  b.clock.now += 1
  assert b.try_join()
  assert [path.name for path in folder.iterdir()] == [f'{b.id}.alive']
  b.leave()
  assert not list(folder.parent.iterdir())


def test_a_process_of_this_host_that_is_gone_is_dead_at_once(folder):
  process = subprocess.Popen(['true'])
  process.wait()
  a = _Member(folder, 'a')
  a._about['pid'] = process.pid
  a.try_join()
  assert not _Member(folder, 'b').try_join()  # It cannot know.
  assert _Member(folder, 'a').try_join()


def test_the_last_member_removes_the_folder(folder):
  a, b = _pair(folder)
  (folder / 'job.0').touch()
  a.leave()
  assert {path.name for path in folder.iterdir()} == {
    'job.0',
    f'{b.id}.alive',
  }
  b.leave()
  assert not list(folder.parent.iterdir())


def test_a_member_that_was_killed_is_not_waited_for(folder):
  a, b = _pair(folder)
  b.look()
  b.clock.now += 91
  b.leave()
  assert not folder.exists()
  a.beat()  # It was not dead at all, and begins anew.
  assert [path.name for path in folder.iterdir()] == [f'{a.id}.alive']


def test_another_purpose_is_refused(folder):
  a = _Member(folder, 'a', 'sweep --grid=x=1')
  b = _Member(folder, 'b', 'sweep --grid=x=2')
  assert a.try_join() and not b.try_join()
  a.beat()
  with pytest.raises(
    errors.OutputError, match='a runs another command in .*=1'
  ):
    b.try_join()
  assert not (folder / f'{b.id}.alive').exists()


def test_files_are_made_once_and_in_a_folder_that_went(folder):
  a, b = _pair(folder)
  assert a.create('x') and not b.create('x') and not a.create('x')
  assert b.read('x') == a.id and b.read('y') is None
  b._remove_all()
  assert b.create('x') and a.read('x') == b.id
