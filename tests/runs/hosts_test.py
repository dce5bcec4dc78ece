"""Hosts of a run: who is lost, who differs, and what is said."""

import os
import signal
import threading
import time

from pda_fed.common import signals
from pda_fed.common import typed
from pda_fed.runs import hosts as hosts_lib
import pytest


class _Store:
  """A key-value store as that of JAX's coordination service."""

  def __init__(self):
    self.values = {}
    self.hangs = threading.Event()
    self.hangs.set()  # Set: it answers.
    self._changed = threading.Condition()

  def key_value_set(self, key, value, allow_overwrite=False):
    self.hangs.wait()
    with self._changed:
      if key in self.values and not allow_overwrite:
        raise RuntimeError(f'ALREADY_EXISTS: {key}')
      self.values[key] = value
      self._changed.notify_all()

  def key_value_dir_get(self, prefix):
    self.hangs.wait()
    with self._changed:
      return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]

  def blocking_key_value_get(self, key, timeout_in_ms):
    self.hangs.wait()
    with self._changed:
      there = self._changed.wait_for(
        lambda: key in self.values, timeout_in_ms / 1000
      )
      if not there:
        raise RuntimeError('DEADLINE_EXCEEDED: it took too long')
      return self.values[key]


@pytest.fixture
def quick(monkeypatch):
  monkeypatch.setattr(hosts_lib, '_BEAT_S', 0.02)
  monkeypatch.setattr(hosts_lib, '_POLL_S', 0.01)


@pytest.fixture
def impatient(monkeypatch, quick):
  monkeypatch.setattr(hosts_lib, 'TIMEOUT_S', 0.5)


@pytest.fixture
def pair(quick):
  store = _Store()
  found = [hosts_lib.Hosts(store, i, 2) for i in range(2)]
  yield store, *found
  store.hangs.set()
  for hosts in found[::-1]:
    if not hosts._closing.is_set():
      hosts.leave(seconds=0.1)


@pytest.fixture
def hang():
  """A function that returns after the test: Python waits for its threads."""
  ended = threading.Event()
  yield ended.wait
  ended.set()


def _until(condition):
  for _ in range(2000):
    if condition():
      return
    time.sleep(0.01)
  raise AssertionError('It never came.')


def test_commands_come_in_their_order(pair):
  _, leader, follower = pair
  leader.send({'do': 'open'})
  leader.send({'do': 'end', 'n': 3})
  assert [follower.receive() for _ in range(2)] == [
    {'do': 'open'},
    {'do': 'end', 'n': 3},
  ]
  assert leader.is_leader and not follower.is_leader


def test_hosts_that_are_alike_agree(pair):
  for fact in (1, 2):
    threads = [
      threading.Thread(
        target=hosts.agree, args=({'a': fact}, typed.differences)
      )
      for hosts in pair[1:]
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(timeout=30)
      assert not thread.is_alive()


def test_all_hosts_say_which_one_differs(pair):
  _, leader, follower = pair
  errors = []

  def agree(hosts, clip_norm):
    try:
      hosts.agree({'plan': {'clip_norm': clip_norm}}, typed.differences)
    except hosts_lib.DisagreementError as e:
      errors.append(str(e))

  other = threading.Thread(target=agree, args=(follower, 2.0))
  other.start()
  agree(leader, 1.0)
  other.join()
  assert len(errors) == 2 and errors[0] == errors[1]
  assert errors[0].endswith('Host 0 -> host 1: plan.clip_norm: 1.0 -> 2.0.')


@pytest.mark.usefixtures('impatient')
def test_a_host_that_is_silent_is_lost():
  store = _Store()
  leader = hosts_lib.Hosts(store, 0, 2)  # Host 1 never beats.
  hangs = threading.Event()
  with pytest.raises(hosts_lib.HostError, match='host 1 sent no heartbeat'):
    leader.call(hangs.wait)  # As a collective that waits for it.
  hangs.set()
  leader.leave(seconds=0.1)


@pytest.mark.usefixtures('impatient')
def test_host_0_that_hangs_is_lost():
  store = _Store()
  follower = hosts_lib.Hosts(store, 1, 2)
  store.hangs.clear()
  with pytest.raises(hosts_lib.HostError, match='host 0 sent no heartbeat'):
    follower.receive()
  follower.fail('It does not wait for an answer.')
  follower.leave()
  store.hangs.set()


def test_a_host_that_has_failed(pair, hang):
  _, leader, follower = pair
  follower.fail('The disk is full.')
  with pytest.raises(
    hosts_lib.HostError, match='host 1 has failed: The disk is full.$'
  ):
    leader.call(hang)


def test_a_host_that_has_left_is_not_lost(pair, monkeypatch):
  monkeypatch.setattr(hosts_lib, 'TIMEOUT_S', 0.2)
  store, leader, follower = pair
  follower.leave()
  beats = store.values['host/beat/0']
  _until(lambda: int(store.values['host/beat/0']) > int(beats) + 40)
  leader.check()


def test_errors_of_a_function_are_its_own(pair):
  def fail():
    raise RuntimeError('ours')

  with pytest.raises(RuntimeError, match='^ours$'):
    pair[1].call(fail)
  assert pair[1].call(lambda: 3) == 3


def test_a_signal_to_a_follower_stops_the_leader(pair):
  _, leader, follower = pair
  of_follower = signals.StopSignals()
  follower.heed(of_follower)
  with signals.StopSignals() as of_leader:
    follower.check()
    of_follower.signum = signal.SIGINT
    follower.check()
    _until(lambda: of_leader.signum is not None)
    assert of_leader.signum == signal.SIGTERM
  leader.check()


def test_a_signal_to_all_hosts_is_one_signal(pair):
  # The leader's own comes first; the second one of a process would kill it.
  store, _, follower = pair
  with signals.StopSignals() as of_leader:
    os.kill(os.getpid(), signal.SIGINT)
    _until(lambda: of_leader.signum is not None)
    store.key_value_set('host/stop/1', '')
    beats = int(store.values['host/beat/0'])
    _until(lambda: int(store.values['host/beat/0']) > beats + 5)
    assert of_leader.signum == signal.SIGINT
  follower.check()


def test_the_others_end_as_the_leader_ends(pair, hang):
  _, leader, follower = pair
  leader.end('The disk is full.', 7)
  with pytest.raises(hosts_lib.LeaderError, match='^The disk is full.$') as e:
    follower.receive()
  assert e.value.exit_code == 7
  with pytest.raises(hosts_lib.LeaderError):
    follower.call(hang)


def test_memory_that_is_short(pair):
  def fail():
    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory.')

  with pytest.raises(hosts_lib.HostError, match='lower --clients_per_chunk'):
    pair[1].call(fail)
