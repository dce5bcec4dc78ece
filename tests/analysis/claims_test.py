"""Claims: one has the job, whoever dies or comes back."""

import os
import threading

from pda_fed.analysis import claims
from pda_fed.analysis import members
import pytest


class _Host:
  """A member with a clock that tests set; it looks at each question."""

  def __init__(self, folder, name):
    self.now = 0.0
    self.members = members.Members(folder, clock=lambda: self.now)
    self.members._about |= {'host': name, 'machine': name}
    self.claims = claims.Claims(self.members)

  def join(self, *others):
    while not self.members.try_join():
      for other in others:
        other.members.beat()
    return self

  def wait(self, seconds):
    self.now += seconds

  def take(self, key='job'):
    self.wait(3)  # So that it lists the folder.
    return self.claims.take(key)


@pytest.fixture
def hosts(tmp_path):
  found = []
  for name in 'abc':
    found.append(_Host(tmp_path / '.claims', name).join(*found))
  return found


def test_one_has_a_job_and_the_others_know_who(hosts):
  a, b, c = hosts
  assert a.take()
  assert a.take() and a.claims.has('job')
  assert not b.take() and not c.take()
  b.wait(3)
  assert b.claims.host_of('job') == 'a'
  assert b.claims.host_of('other') is None
  assert c.take('other')


def test_what_is_let_go_is_free_at_once(hosts):
  a, b, c = hosts
  assert a.take() and not b.take()
  a.claims.release('job')
  assert not a.claims.has('job')
  b.wait(3)
  assert b.claims.host_of('job') is None
  assert b.take() and not c.take() and not a.take()
  b.claims.release_all()
  assert c.take()


def test_a_job_that_is_done_is_done_for_all(hosts):
  a, b, _ = hosts
  assert a.take() and b.claims.outcome('job') is None
  a.claims.finish('job', claims.Outcome(3, 'error: no\n', ('x', 'y')))
  assert not b.take() and not a.take()
  found = b.claims.outcome('job')
  assert found == claims.Outcome(3, 'error: no\n', ('x', 'y'))


def test_one_takes_over_from_the_dead(hosts):
  a, b, c = hosts
  assert a.take()
  for host in (b, c):
    assert not host.take()
    host.wait(60)
    assert not host.take()
  b.members.beat()
  for host in (b, c):
    host.wait(31)
    host.claims._look()  # Both have seen that it is dead.
  assert b.claims.take('job')
  assert not c.claims.take('job') and not c.take()
  # Whoever comes back finds out.
  assert not a.claims.has('job') and not a.take()
  assert b.claims.has('job')


def test_a_claim_of_an_old_folder_does_not_hold_in_a_new_one(hosts, tmp_path):
  a, b, c = hosts
  for generation in range(3):  # Its claim is of a later generation.
    b.take()
    if generation < 2:
      b.claims.release('job')
  a.members._remove_all()
  c.members.beat()
  assert c.take()
  assert not b.claims.has('job') and c.claims.has('job')


def test_a_host_that_was_killed_while_it_claimed(hosts, tmp_path):
  _, b, _ = hosts
  (tmp_path / '.claims/job.0').touch()  # It wrote no name.
  assert not b.take()
  b.wait(91)
  assert b.take()


def test_a_folder_that_went_keeps_claims_unless_others_have_them(hosts):
  a, b, _ = hosts
  assert a.take('x') and a.take('y') and not b.take('x')
  b.members._remove_all()
  assert b.take('y')
  assert a.claims.has('x') and not a.claims.has('y')
  assert not b.take('x')


def test_an_old_view_takes_over_nothing(hosts, monkeypatch):
  a, b, c = hosts
  assert a.take()
  assert not b.take()
  create = b.members.create

  def create_late(name):
    c.members._remove_all()
    assert c.take()  # What was a claim of a dead one is that of a living one.
    return create(name)

  monkeypatch.setattr(b.members, 'create', create_late)
  b.wait(91)
  assert not b.take()
  assert c.claims.has('job')
  names = [n for n in os.listdir(c.members.path('.')) if n.startswith('job')]
  assert names == ['job.0']


def test_three_at_once(hosts):
  keys = [f'job{i}' for i in range(40)]
  start = threading.Barrier(3)
  won = {}

  def take_all(host):
    start.wait()
    won[host] = [key for key in keys if host.claims.take(key)]

  threads = [threading.Thread(target=take_all, args=(h,)) for h in hosts]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sorted(key for of_host in won.values() for key in of_host) == sorted(
    keys
  )


def test_only_one_is_in_a_block(hosts, monkeypatch):
  a, b, _ = hosts
  seconds = []

  def sleep(_):
    seconds.append(1)
    b.wait(3)
    a.claims.release('block')

  monkeypatch.setattr(claims.time, 'sleep', sleep)
  assert a.take('block')
  with b.claims.alone('block'):
    assert seconds == [1]
    assert not a.take('block')
  assert a.take('block')


def test_keys_do_not_depend_on_where_a_folder_is_mounted(tmp_path):
  found = set()
  for root in ('x', 'y'):
    out = tmp_path / root
    host = claims.Claims(members.Members(out / '.claims'))
    found.add(host.key(out / 'runs/pda_0'))
  assert len(found) == 1
  assert host.key(out / 'runs/pda_1') not in found


def test_a_block_of_its_own_leaves_nothing(tmp_path):
  with claims.joined(tmp_path / '.claims', 'test') as found:
    assert found.take('job')
    assert len(list((tmp_path / '.claims').iterdir())) == 2
  assert not list(tmp_path.iterdir())
