"""One run on several hosts: processes of this machine, and their faults."""

import json
import shutil
import signal

import numpy as np
from pda_fed import runs as runs_lib
from pda_fed.runs import checkpoints
import pytest

from tests.runs import tiny_users
from tests.scripts import host_processes

pytestmark = pytest.mark.slow

_SAVED = 'Saved after round'


@pytest.fixture(scope='module')
def store(tmp_path_factory):
  return tiny_users.prepare_table(tmp_path_factory.mktemp('users') / 'store')


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
    ((code, _, err),) = host_processes.ended(
      [host_processes.start(store, folder / f'{number}', number)]
    )
    assert code == 0, err
  return folder


def test_devices_do_not_change_a_run(alone):
  for number in (4, 2, 1):
    _check_same(alone / f'{number}', alone / '4', is_exact=False)
    config = runs_lib.RunFolder(alone / f'{number}').read_config()
    assert config.order_of_sums['num_devices'] == number


def test_two_hosts_give_the_bits_of_one(store, alone, tmp_path):
  folder = tmp_path / 'run'
  (leader, follower) = host_processes.ended(
    host_processes.start_hosts(store, folder, [2, 2])
  )
  assert leader[0] == follower[0] == 0, leader[2] + follower[2]
  _check_same(folder, alone / '4', is_exact=True)
  results = [
    runs_lib.RunFolder(path).read_result() for path in (folder, alone / '4')
  ]
  for name in ('test', 'validation', 'epsilon', 'warm_start'):
    assert results[0][name] == results[1][name]
  # Host 0 alone writes and prints.
  assert 'epsilon' in leader[1]
  assert follower[1:] == ('', 'Host 0 has the results.\n')
  assert {p.name for p in tmp_path.iterdir()} == {'run', 'warm_start'}


def test_a_host_dies_and_others_go_on(store, alone, tmp_path):
  folder = tmp_path / 'run'
  dies = {1: {'DIE_IN_ROUND': '3'}}
  (leader, follower) = host_processes.ended(
    host_processes.start_hosts(store, folder, [2, 2], fates=dies)
  )
  assert follower[0] == -signal.SIGKILL
  assert leader[0] == 3, leader[2]
  (line,) = [x for x in leader[2].splitlines() if x.startswith('error:')]
  assert 'host 1 sent no heartbeat' in line and f'{_SAVED} 3' in line
  # Another number of hosts, and of devices.
  for code, _, err in host_processes.ended(
    host_processes.start_hosts(store, folder, [1, 1, 1])
  ):
    assert code == 0, err
  _check_same(folder, alone / '4', is_exact=False)


def test_host_0_dies_and_another_number_of_hosts_resumes(
  store, alone, tmp_path
):
  folder = tmp_path / 'run'
  dies = {0: {'DIE_IN_ROUND': '3'}}
  (leader, follower) = host_processes.ended(
    host_processes.start_hosts(store, folder, [2, 2], fates=dies)
  )
  assert leader[0] == -signal.SIGKILL
  assert follower[0] == 3
  assert follower[2].startswith('error: ')
  assert len(follower[2].splitlines()) == 1
  assert 'ost 0 ' in follower[2]
  # Rounds after the checkpoint may have been seen: sums in another order
  # would be another look at their users.
  ((code, _, err),) = host_processes.ended(
    [host_processes.start(store, folder, 2)]
  )
  assert code == 2
  assert 'num_devices: 4 -> 2' in err
  ((code, _, err),) = host_processes.ended(
    [host_processes.start(store, folder, 4)]
  )
  assert code == 0, err
  _check_same(folder, alone / '4', is_exact=True)


def test_a_host_hangs(store, tmp_path):
  folder = tmp_path / 'run'
  hangs = {1: {'HANG_IN_ROUND': '2'}}
  processes = host_processes.start_hosts(store, folder, [1, 1], fates=hangs)
  ((code, _, err),) = host_processes.ended(processes[:1])
  assert code == 3
  assert 'host 1 sent no heartbeat' in err and f'{_SAVED} 2' in err
  processes[1].send_signal(signal.SIGCONT)
  ((code, _, err),) = host_processes.ended(processes[1:])
  assert code == 3
  assert err.startswith('error: ') and len(err.splitlines()) == 1


@pytest.mark.parametrize('to_all', [False, True])
def test_a_signal_saves_the_run(store, tmp_path, to_all):
  folder = tmp_path / 'run'
  processes = host_processes.start_hosts(store, folder, [1, 1], '--rounds=300')
  for line in processes[0].stderr:
    if line.startswith('round 2/'):
      break
  for process in processes if to_all else processes[1:]:
    process.send_signal(signal.SIGTERM)
  found = host_processes.ended(processes)
  assert [code for code, _, _ in found] == [128 + signal.SIGTERM] * 2
  for _, _, err in found:
    assert 'SIGTERM: saved after round' in err.splitlines()[-1]
  saved = max((folder / 'checkpoints').iterdir()).stem
  mark = json.loads((folder / 'running.json').read_text())
  assert mark == {'until': int(saved.split('_')[1]), 'seen_before': 0}


def test_a_host_dies_before_the_first_round(store, tmp_path):
  dies = {1: {'DIE_IN_ROUND': '-1'}}
  (leader, _) = host_processes.ended(
    host_processes.start_hosts(store, tmp_path / 'run', [1, 1], fates=dies)
  )
  assert leader[0] == 3
  assert 'host 1 sent no heartbeat' in leader[2]
  assert len(leader[2].splitlines()) == 1


def test_hosts_that_differ(store, tmp_path):
  other = {1: ['--clip_norm=1']}
  found = host_processes.ended(
    host_processes.start_hosts(store, tmp_path / 'run', [1, 1], own=other)
  )
  for code, out, err in found:
    assert (code, out) == (2, '')
    assert 'Host 0 -> host 1: settings.plan.clip_norm: 0.3 -> 1.0.' in err
    assert err.startswith('error: ') and len(err.splitlines()) == 1
  assert not (tmp_path / 'run').exists()


def test_a_coordinator_that_does_not_answer(store, tmp_path):
  ((code, _, err),) = host_processes.ended(
    [
      host_processes.start(
        *(store, tmp_path / 'run', 1, '--distributed', '--connect_timeout_s=2'),
        *(f'--coordinator=127.0.0.1:{host_processes.port()}', '--num_hosts=2'),
        '--host_index=1',
        f'--cluster_secret_file={host_processes.secret_file(store)}',
      )
    ]
  )
  assert code == 2
  assert err.startswith('error: All hosts must connect within 2 s')
  assert len(err.splitlines()) == 1


def test_a_run_without_a_seed(store, tmp_path):
  folder = tmp_path / 'run'
  dies = {1: {'DIE_IN_ROUND': '3'}}
  hosts = host_processes.start_hosts(
    store, folder, [2, 2], fates=dies, seed=None
  )
  (leader, _) = host_processes.ended(hosts)
  assert leader[0] == 3, leader[2]
  shutil.copytree(folder, tmp_path / 'alone')
  # Both have the same secret seeds: other hosts were told them.
  (code, _, err), *others = host_processes.ended(
    [
      host_processes.start(store, tmp_path / 'alone', 4, seed=None),
      *host_processes.start_hosts(store, folder, [2, 2], seed=None),
    ]
  )
  assert code == 0, err
  for code, _, err in others:
    assert code == 0, err
  _check_same(folder, tmp_path / 'alone', is_exact=True)
  assert not (folder / 'secret_seeds.json').exists()


def test_a_host_with_another_secret(store, tmp_path):
  coordinator = f'127.0.0.1:{host_processes.port()}'
  found = host_processes.ended(
    [
      host_processes.start(
        *(store, tmp_path / 'run', 1),
        *host_processes.place(store, coordinator, 3, host, secret),
        '--connect_timeout_s=10',
      )
      for host, secret in enumerate(['s' * 32, 's' * 32, 'o' * 32])
    ]
  )
  for code, out, err in found:
    assert (code, out) == (2, '')
    assert err.startswith('error: Host 2 did not prove that it knows the')
    assert '--cluster_secret_file' in err and len(err.splitlines()) == 1
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  'content, mode, words',
  [
    (None, None, '--cluster_secret_file must be given with --distributed'),
    ('', None, 'cannot be read: No such file or directory. To create it'),
    ('s' * 32, 0o644, 'must be accessible to its owner alone'),
    ('s' * 31, 0o600, 'must have at least 32 bytes. Found 31.'),
  ],
)
def test_secret_files_that_are_refused(store, tmp_path, content, mode, words):
  place = ['--distributed', f'--coordinator=127.0.0.1:{host_processes.port()}']
  if content is not None:
    place.append(f'--cluster_secret_file={tmp_path / "secret"}')
  if content:
    (tmp_path / 'secret').write_text(content)
    (tmp_path / 'secret').chmod(mode)
  place += ['--num_hosts=2', '--host_index=0']
  process = host_processes.start(store, tmp_path / 'run', 1, *place)
  ((code, out, err),) = host_processes.ended([process])
  assert (code, out) == (2, '')
  assert err.startswith('error: ') and len(err.splitlines()) == 1
  assert words in err
