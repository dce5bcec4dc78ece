"""One run on several hosts: processes of this machine, faults and strangers."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
from pda_fed import runs as runs_lib
from pda_fed.runs import checkpoints
import pytest

from tests.runs import tiny_users
from tests.scripts import host_processes
from tests.scripts import programs

pytestmark = pytest.mark.slow

_LOST = 'error: A host has ended or does not answer, so the run ends here.'
_ANOTHER = 'error: Another host is lost: '


@pytest.fixture(scope='module')
def store(tmp_path_factory):
  return tiny_users.prepare_table(tmp_path_factory.mktemp('users') / 'store')


def _check_same(*folders, is_exact):
  found, expected = (
    checkpoints.Checkpoints(folder / 'checkpoints').latest()
    for folder in folders
  )
  assert found.round_num == expected.round_num
  for name, array in expected.arrays.items():
    np.testing.assert_allclose(
      found.arrays[name],
      array,
      rtol=0,
      atol=0 if is_exact else 1e-5,
      err_msg=name,
    )
  rows = [checkpoint.record['rows'] for checkpoint in (found, expected)]
  for row, other in zip(*rows, strict=True):
    for name in row.keys() - {'seconds'}:
      assert row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5), name


def _line(err):
  """The one line of an error."""
  (line,) = err.splitlines()
  assert line.startswith('error: ')
  return line


def _all_well(*processes):
  for code, _, err in host_processes.ended(*processes):
    assert code == 0, err


@pytest.fixture(scope='module')
def alone(store, tmp_path_factory):
  """The run on one host with 4 devices."""
  folder = tmp_path_factory.mktemp('alone') / 'run'
  _all_well(host_processes.start(store, folder, 4))
  return folder


def test_two_hosts_give_the_bits_of_one(store, alone, tmp_path):
  folder = tmp_path / 'run'
  leader, follower = host_processes.ended(
    *host_processes.start_hosts(store, folder, [2, 2])
  )
  assert leader[0] == follower[0] == 0, leader[2] + follower[2]
  _check_same(folder, alone, is_exact=True)
  found, expected = (
    runs_lib.RunFolder(path).read_result() for path in (folder, alone)
  )
  for name in ('test', 'validation', 'epsilon', 'warm_start'):
    assert found[name] == expected[name]
  # Host 0 alone writes and prints.
  assert 'epsilon' in leader[1]
  assert follower[1:] == ('', 'Host 0 has the results.\n')
  assert {p.name for p in tmp_path.iterdir()} == {'run', 'warm_start'}


def test_a_host_dies_and_others_go_on(store, tmp_path):
  """A run without a seed, whose folder has the seeds that hosts derived."""
  folder, copy = tmp_path / 'run', tmp_path / 'copy'
  dies = {1: {'FATE': 'SIGKILL', 'ROUND': '3'}}
  leader, follower = host_processes.ended(
    *host_processes.start_hosts(store, folder, [2, 2], own=dies, seed=None)
  )
  assert follower[0] == -signal.SIGKILL
  assert leader[0] == 3, leader[2]
  last = leader[2].splitlines()[-1]
  assert last.startswith(_ANOTHER) and 'Saved after round 3' in last
  assert (folder / 'secret_seeds.json').stat().st_mode & 0o077 == 0
  shutil.copytree(folder, copy)
  # Another number of hosts, and of devices.
  _all_well(
    host_processes.start(store, copy, 4, seed=None),
    *host_processes.start_hosts(store, folder, [1, 1, 1], seed=None),
  )
  _check_same(folder, copy, is_exact=False)
  assert not (folder / 'secret_seeds.json').exists()


def test_host_0_dies_and_the_run_resumes_bit_for_bit(store, alone, tmp_path):
  folder = tmp_path / 'run'
  dies = {0: {'FATE': 'SIGKILL', 'ROUND': '3'}}
  leader, follower = host_processes.ended(
    *host_processes.start_hosts(store, folder, [2, 2], own=dies)
  )
  assert leader[0] == -signal.SIGKILL
  assert follower[0] == 3 and 'ost' in _line(follower[2])
  # Rounds after the checkpoint may have been seen: sums in another order
  # would be another look at their users.
  ((code, _, err),) = host_processes.ended(
    host_processes.start(store, folder, 2)
  )
  assert code == 2
  assert 'num_devices: 4 -> 2' in err
  _all_well(*host_processes.start_hosts(store, folder, [2, 2]))
  _check_same(folder, alone, is_exact=True)


def test_a_host_hangs(store, tmp_path):
  hangs = {1: {'FATE': 'SIGSTOP', 'ROUND': '2'}}
  leader, follower = host_processes.start_hosts(
    store, tmp_path / 'run', [1, 1], own=hangs
  )
  ((code, _, err),) = host_processes.ended(leader)
  assert code == 3
  assert err.splitlines()[-1].startswith(_LOST)
  follower.send_signal(signal.SIGCONT)
  ((code, _, err),) = host_processes.ended(follower)
  assert code == 3 and _line(err)


def _in_round_2(store, folder, **options):
  """The processes of a long run."""
  processes = host_processes.start_hosts(
    store, folder, [1, 1], '--rounds=3000', **options
  )
  for line in processes[0].stderr:
    if line.startswith('round 2/'):
      break
  return processes


@pytest.mark.parametrize('to_all', [False, True])
def test_a_signal_saves_the_run(store, tmp_path, to_all):
  processes = _in_round_2(store, tmp_path / 'run')
  for process in processes if to_all else processes[1:]:
    process.send_signal(signal.SIGTERM)
  for code, _, err in host_processes.ended(*processes):
    assert code == 128 + signal.SIGTERM
    assert 'SIGTERM: saved after round' in err.splitlines()[-1]
  folder = tmp_path / 'run'
  saved = max((folder / 'checkpoints').iterdir()).stem
  mark = json.loads((folder / 'running.json').read_text())
  assert mark == {'until': int(saved.split('_')[1]), 'seen_before': 0}


@pytest.mark.parametrize(
  'flag, words',
  [
    ('--clip_norm=1', ['host 1: settings.plan.clip_norm: 0.3 -> 1.0.'] * 2),
    (None, ['Host 1 did not prove that', 'Host 0 did not prove that']),
  ],
)
def test_a_host_that_differs(store, tmp_path, flag, words):
  secret = host_processes.secret_file(store, 'o')
  own = {1: [flag or f'--cluster_secret_file={secret}']}
  found = host_processes.ended(
    *host_processes.start_hosts(store, tmp_path / 'run', [1, 1], own=own)
  )
  for (code, out, err), expected in zip(found, words, strict=True):
    assert (code, out) == (2, '')
    assert expected in _line(err)
  assert not (tmp_path / 'run').exists()


_STRANGER = """
import sys, time
from jax._src.lib import _jax
client = _jax.get_distributed_runtime_client(sys.argv[1], int(sys.argv[2]))
client.connect()
client.key_value_set('pda_fed/challenge/1', 'x {}', True)
print('inside', flush=True)
time.sleep(600)
"""


def _visit(place, index):
  """Starts a stranger, who takes the place of a host."""
  return subprocess.Popen(
    [sys.executable, '-c', _STRANGER, place, index],
    cwd=programs.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  )


def _wait_for_door(port):
  for _ in range(600):
    try:
      return socket.create_connection(('127.0.0.1', port), timeout=5).close()
    except ConnectionRefusedError:
      time.sleep(0.1)
  raise AssertionError('The coordinator does not listen.')


def test_a_stranger_in_the_place_of_host_1(store, tmp_path):
  place = host_processes.address()
  leader = host_processes.start_host(
    *(store, tmp_path / 'run', 0, [1, 1], place, '--connect_timeout_s=20'),
    seed=None,
  )
  port = int(place.split(':')[1])
  _wait_for_door(port)
  with pytest.raises(ConnectionRefusedError):  # It listens nowhere else.
    socket.create_connection(('127.0.0.2', port), timeout=5)
  stranger = _visit(place, '1')
  assert stranger.stdout.readline() == 'inside\n'
  ((code, out, err),) = host_processes.ended(leader)
  stranger.kill()
  stranger.communicate()
  assert (code, out) == (2, '')
  assert _line(err).startswith('error: Host 1 did not prove that it knows the')
  assert not (tmp_path / 'run').exists()


def test_a_stranger_after_host_1(store, tmp_path):
  processes = _in_round_2(store, tmp_path / 'run', seed=None)
  (place,) = [x[14:] for x in processes[0].args if '--coordinator=' in x]
  visits = [_visit(place, index) for index in '71']
  for code, _, err in host_processes.ended(*processes):
    assert code == 3
    assert err.splitlines()[-1].startswith((_LOST, _ANOTHER))
  for visit in visits:
    visit.kill()
    assert visit.communicate()[0] == ''


def test_a_coordinator_that_does_not_answer(store, tmp_path):
  ((code, _, err),) = host_processes.ended(
    host_processes.start_host(
      *(store, tmp_path / 'run', 1, [1, 1], '127.0.0.1:1'),
      '--connect_timeout_s=2',
    )
  )
  assert code == 2
  assert _line(err).startswith('error: All hosts must connect to --coordinator')
