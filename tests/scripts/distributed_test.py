"""One run on several hosts: processes of this machine, and their faults."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
from pda_fed import experiments
from pda_fed.experiments import checkpoints
import pytest

from tests.experiments import tiny_users
from tests.scripts import programs

pytestmark = pytest.mark.slow

_SAVED = 'Saved after round'


@pytest.fixture(scope='module')
def store(tmp_path_factory):
  return tiny_users.prepare_table(tmp_path_factory.mktemp('users') / 'store')


def _secret_file(store, text='s' * 32):
  """The path of a file beside the data, made as users make it."""
  path = store.with_name(f'secret_{text[0]}')
  if not path.exists():
    path.touch(mode=0o600)
    path.write_text(f'{text}\n')
  return path


def _port():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


def _start(store, folder, num_devices, *arguments):
  flags = os.environ.get('XLA_FLAGS', '')
  flags += f' --xla_force_host_platform_device_count={num_devices}'
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'tests.scripts.train_tiny'),
      *(f'--data_dir={store}', f'--output_dir={folder}', *arguments),
    ],
    cwd=programs.ROOT,
    env=os.environ
    | {
      'XLA_FLAGS': flags,
      'JAX_PLATFORMS': 'cpu',
      # Most of such a run is compilation.
      'JAX_COMPILATION_CACHE_DIR': str(store.with_name('cache')),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _start_hosts(store, folder, devices, *arguments, own=None):
  """Starts a process for each number of devices; `own` has flags of a host."""
  coordinator = f'127.0.0.1:{_port()}'
  return [
    _start(
      store,
      folder if host == 0 else folder.with_name('followers_write_nothing'),
      number,
      *('--distributed', f'--coordinator={coordinator}'),
      f'--cluster_secret_file={_secret_file(store)}',
      '--connect_timeout_s=120',
      *(f'--num_hosts={len(devices)}', f'--host_index={host}'),
      *(*arguments, *(own or {}).get(host, ())),
    )
    for host, number in enumerate(devices)
  ]


def _ended(processes, seconds=240):
  found = []
  for process in processes:
    out, err = process.communicate(timeout=seconds)
    found.append((process.returncode, out, err))
  return found


def _last(folder):
  return checkpoints.Checkpoints(folder / 'checkpoints').latest()


def _check_same(folder, expected, *, is_exact):
  found, expected = _last(folder), _last(expected)
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


@pytest.fixture(scope='module')
def alone(store, tmp_path_factory):
  """The run on one host with 4, 2 and 1 devices."""
  folder = tmp_path_factory.mktemp('alone')
  for number in (4, 2, 1):
    ((code, _, err),) = _ended([_start(store, folder / f'{number}', number)])
    assert code == 0, err
  return folder


def test_devices_do_not_change_a_run(alone):
  for number in (4, 2, 1):
    _check_same(alone / f'{number}', alone / '4', is_exact=False)
    config = experiments.RunFolder(alone / f'{number}').read_config()
    assert config['order_of_sums']['num_devices'] == number


def test_two_hosts_give_the_bits_of_one(store, alone, tmp_path):
  folder = tmp_path / 'run'
  (leader, follower) = _ended(_start_hosts(store, folder, [2, 2]))
  assert leader[0] == follower[0] == 0, leader[2] + follower[2]
  _check_same(folder, alone / '4', is_exact=True)
  results = [
    experiments.RunFolder(path).read_result() for path in (folder, alone / '4')
  ]
  for name in ('test', 'validation', 'epsilon', 'warm_start'):
    assert results[0][name] == results[1][name]
  # Host 0 alone writes and prints.
  assert 'epsilon' in leader[1]
  assert follower[1:] == ('', 'Host 0 has the results.\n')
  assert {p.name for p in tmp_path.iterdir()} == {'run', 'warm_start'}


def test_a_host_dies_and_others_go_on(store, alone, tmp_path):
  folder = tmp_path / 'run'
  dies = {1: ['--die_in_round=3']}
  (leader, follower) = _ended(_start_hosts(store, folder, [2, 2], own=dies))
  assert follower[0] == -signal.SIGKILL
  assert leader[0] == 3, leader[2]
  (line,) = [x for x in leader[2].splitlines() if x.startswith('error:')]
  assert 'host 1 sent no heartbeat' in line and f'{_SAVED} 3' in line
  # Another number of hosts, and of devices.
  for code, _, err in _ended(_start_hosts(store, folder, [1, 1, 1])):
    assert code == 0, err
  _check_same(folder, alone / '4', is_exact=False)


def test_host_0_dies_and_another_number_of_hosts_resumes(
  store, alone, tmp_path
):
  folder = tmp_path / 'run'
  dies = {0: ['--die_in_round=3']}
  (leader, follower) = _ended(_start_hosts(store, folder, [2, 2], own=dies))
  assert leader[0] == -signal.SIGKILL
  assert follower[0] == 3
  assert follower[2].startswith('error: ')
  assert len(follower[2].splitlines()) == 1
  assert 'ost 0 ' in follower[2]
  # Rounds after the checkpoint may have been seen: sums in another order
  # would be another look at their users.
  ((code, _, err),) = _ended([_start(store, folder, 2)])
  assert code == 2
  assert 'num_devices: 4 -> 2' in err
  ((code, _, err),) = _ended([_start(store, folder, 4)])
  assert code == 0, err
  _check_same(folder, alone / '4', is_exact=True)


def test_a_host_hangs(store, tmp_path):
  folder = tmp_path / 'run'
  hangs = {1: ['--hang_in_round=2']}
  processes = _start_hosts(store, folder, [1, 1], own=hangs)
  ((code, _, err),) = _ended(processes[:1])
  assert code == 3
  assert 'host 1 sent no heartbeat' in err and f'{_SAVED} 2' in err
  processes[1].send_signal(signal.SIGCONT)
  ((code, _, err),) = _ended(processes[1:])
  assert code == 3
  assert err.startswith('error: ') and len(err.splitlines()) == 1


@pytest.mark.parametrize('to_all', [False, True])
def test_a_signal_saves_the_run(store, tmp_path, to_all):
  folder = tmp_path / 'run'
  processes = _start_hosts(store, folder, [1, 1], '--rounds=300')
  for line in processes[0].stderr:
    if line.startswith('round 2/'):
      break
  for process in processes if to_all else processes[1:]:
    process.send_signal(signal.SIGTERM)
  ended = _ended(processes)
  assert [code for code, _, _ in ended] == [128 + signal.SIGTERM] * 2
  for _, _, err in ended:
    assert 'SIGTERM: saved after round' in err.splitlines()[-1]
  assert (folder / 'stopped.json').exists()


def test_a_host_dies_before_the_first_round(store, tmp_path):
  dies = {1: ['--die_in_round=-1']}
  (leader, _) = _ended(_start_hosts(store, tmp_path / 'run', [1, 1], own=dies))
  assert leader[0] == 3
  assert 'host 1 sent no heartbeat' in leader[2]
  assert len(leader[2].splitlines()) == 1


def test_hosts_that_differ(store, tmp_path):
  other = {1: ['--clip_norm=1']}
  ended = _ended(_start_hosts(store, tmp_path / 'run', [1, 1], own=other))
  for code, out, err in ended:
    assert (code, out) == (2, '')
    assert 'Host 0 -> host 1: settings.plan.clip_norm: 0.3 -> 1.0.' in err
    assert err.startswith('error: ') and len(err.splitlines()) == 1
  assert not (tmp_path / 'run').exists()


def test_a_coordinator_that_does_not_answer(store, tmp_path):
  ((code, _, err),) = _ended(
    [
      _start(
        *(store, tmp_path / 'run', 1, '--distributed', '--connect_timeout_s=2'),
        *(f'--coordinator=127.0.0.1:{_port()}', '--num_hosts=2'),
        *('--host_index=1', f'--cluster_secret_file={_secret_file(store)}'),
      )
    ]
  )
  assert code == 2
  assert err.startswith('error: All hosts must connect within 2 s')
  assert len(err.splitlines()) == 1
