"""Hosts of a run: what they prove, on what they agree, and what they send."""

from concurrent import futures
import signal
import threading

from pda_fed import privacy
from pda_fed.common import signals
from pda_fed.runs import hosts as hosts_lib
from pda_fed.runs.engines import distributed
import pytest

from tests import fake_engine

_SECRET = b's' * 32


class _Store:
  """A key-value store as that of JAX's coordination service."""

  def __init__(self):
    self.values = {}
    self._changed = threading.Condition()

  def key_value_set(self, key, value, allow_overwrite):
    del allow_overwrite
    with self._changed:
      self.values[key] = value
      self._changed.notify_all()

  def key_value_dir_get(self, prefix):
    with self._changed:
      return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]

  def blocking_key_value_get(self, key, timeout_in_ms):
    with self._changed:
      if not self._changed.wait_for(lambda: key in self.values, 0.05):
        raise RuntimeError(f'DEADLINE_EXCEEDED: {timeout_in_ms}')
      return self.values[key]


def _together(*functions):
  """What functions return, called at once, or their errors."""
  with futures.ThreadPoolExecutor() as pool:
    done = [pool.submit(function) for function in functions]
  return [f.exception() or f.result() for f in done]


def _connect(*secrets_of_hosts, store=None, timeout_s=20):
  """Hosts that know these secrets; nobody is there for None."""
  store, count = store or _Store(), len(secrets_of_hosts)
  return _together(
    *(
      lambda i=i, s=s: hosts_lib.Hosts(store, i, count, s, timeout_s=timeout_s)
      for i, s in enumerate(secrets_of_hosts)
      if s is not None
    )
  )


def test_hosts_agree_or_name_the_first_difference():
  hosts = _connect(_SECRET, _SECRET, _SECRET)
  same = {'clip': 1.0, 'jax': '1'}
  assert _together(*(lambda h=h: h.agree(same) for h in hosts)) == [None] * 3
  facts = [same, same, {'clip': 2.0, 'jax': '2'}]
  for error in _together(
    *(lambda h=h, f=f: h.agree(f) for h, f in zip(hosts, facts, strict=True))
  ):
    assert str(error).endswith('Host 0 -> host 2: clip: 1.0 -> 2.0.')


@pytest.mark.parametrize('wrong, seen', [(0, [1, 0, 0]), (2, [2, 2, 0])])
def test_a_host_with_another_secret(wrong, seen):
  given = [_SECRET] * 3
  given[wrong] = b'w' * 32
  for error, host in zip(_connect(*given), seen, strict=True):
    assert isinstance(error, ValueError)
    assert str(error).startswith(f'Host {host} did not prove that it knows the')


def test_a_stranger_in_place_of_a_host():
  """Who says what an earlier run said, or nothing, or under another name."""
  earlier, echo, silent = _Store(), _Store(), _Store()
  _connect(_SECRET, _SECRET, store=earlier)
  echo.values = {k: v for k, v in earlier.values.items() if k.endswith('/1')}
  for store in (echo, silent):
    (error,) = _connect(_SECRET, None, store=store, timeout_s=0.2)
    assert str(error).startswith('Host 1 did not prove that it knows the')

  class Mirror(_Store):
    """Says as host 1 what host 0 says."""

    def key_value_set(self, key, value, allow_overwrite):
      super().key_value_set(key, value, allow_overwrite)
      super().key_value_set(key.replace('/0', '/1'), value, allow_overwrite)

  (error,) = _connect(_SECRET, None, store=Mirror())
  assert str(error).startswith('Host 1 did not prove that it knows the')


def test_a_message_that_another_wrote():
  store = _Store()
  leader, follower = _connect(_SECRET, _SECRET, store=store)
  leader.lead(first_round=0)
  leader.lead(first_round=1)
  values = store.values
  values['pda_fed/step/0/0'], values['pda_fed/step/1/0'] = (
    values['pda_fed/step/1/0'],
    values['pda_fed/step/0/0'],
  )
  with pytest.raises(ValueError, match='Host 0 did not prove'):
    follower.follow(signals.StopSignals())


class _Opener:
  """Opens engines, and keeps them."""

  def __init__(self):
    self.engines = []

  def __call__(self, run, seeds):
    return fake_engine.Opener(self._open)(run, seeds)

  def _open(self, run, seeds):
    self.engines.append(fake_engine.FakeEngine(run, seeds))
    return self.engines[-1]


def _run(hosts, seeds, opener):
  """Some rounds on two hosts; returns the weights and how host 1 ended."""
  run = fake_engine.make_run(seed=None)

  def lead():
    with distributed.leading(hosts[0], opener)(run, seeds) as engine:
      state, _ = engine.run_rounds(engine.initialize(), 0, 2)
      state, _ = engine.run_rounds(state, 2, 1)
      engine.run_rounds(engine.initialize(), 5, 1)
    hosts[0].lead(line='The disk is full.', exit_code=7)

  return _together(lead, lambda: distributed.follow(hosts[1], run, opener))


def test_hosts_compute_the_same_rounds_and_seeds_are_never_sent():
  store, opener = _Store(), _Opener()
  hosts = _connect(_SECRET, _SECRET, store=store)
  seeds = hosts[0].seeds()
  led, followed = _run(hosts, seeds, opener)
  assert led is None
  assert followed == ('The disk is full.', 7)
  first, second = opener.engines
  assert first.rounds_run == second.rounds_run == [0, 1, 2, 5]
  assert first.seeds.as_dict() == second.seeds.as_dict() == seeds.as_dict()
  sent = '\n'.join(store.values.values())
  assert seeds.nonce in sent and 's' * 32 not in sent
  for name, seed in seeds.as_dict().items():
    assert name == 'nonce' or str(seed) not in sent
  # The state travels at the start, and when the loop has another one.
  steps = [store.values[f'pda_fed/step/{i}/0'] for i in (1, 2, 3)]
  assert ['"is_new": true' in step for step in steps] == [True, False, True]


def test_seeds_of_another_secret_are_refused():
  given = [privacy.SeedStreams(), privacy.SeedStreams.derived(b'w' * 32)]
  for seeds in given:
    (leader,) = _connect(_SECRET)
    with pytest.raises(ValueError, match='with which the run began'):
      with distributed.leading(leader, _Opener())(
        fake_engine.make_run(), seeds
      ):
        pass


def test_a_signal_to_a_host_stops_host_0():
  leader, follower = _connect(_SECRET, _SECRET)
  stop = signals.StopSignals()
  stop.signum = signal.SIGINT
  with signals.StopSignals() as of_leader:
    leader.lead(first_round=0)
    assert of_leader.signum is None
    follower.follow(stop)
    leader.lead(first_round=1)
    assert of_leader.signum == signal.SIGTERM


def test_a_secret_is_read(tmp_path):
  path, link = tmp_path / 'secret', tmp_path / 'link'
  path.touch(mode=0o600)
  path.write_bytes(b' ' + _SECRET + b'\n')
  path.chmod(0o400)
  link.symlink_to(path)  # As Kubernetes mounts secrets.
  assert hosts_lib.read_secret(path) == hosts_lib.read_secret(link) == _SECRET


@pytest.mark.parametrize(
  'content, mode, words',
  [
    (_SECRET, 0o640, r'owner alone \(mode 0600 or 0400\). Found 0640.'),
    (_SECRET, 0o604, 'Found 0604.'),
    (b'x' * 31 + b' \n', 0o600, '32 bytes. Found 31. To create it: .*openssl'),
    (None, None, 'cannot be read: No such file'),
  ],
)
def test_secrets_that_are_refused(tmp_path, content, mode, words):
  path, link = tmp_path / 'secret', tmp_path / 'link'
  if content is not None:
    path.write_bytes(content)
    path.chmod(mode)
  link.symlink_to(path)
  for name in (path, link):
    with pytest.raises(ValueError, match=words):
      hosts_lib.read_secret(name)


@pytest.mark.parametrize(
  'place, words',
  [
    (('a', 2, 0), 'coordinator must be HOST:PORT'),
    (('192.0.2.1:8476', 2, 0), 'coordinator must be an address of host 0'),
    (('a:1', 2, None), 'must be given if the cluster does not'),
  ],
)
def test_places_that_are_refused(monkeypatch, place, words):
  monkeypatch.delenv('SLURM_JOB_ID', raising=False)
  with pytest.raises(ValueError, match=words):
    hosts_lib.connect(_SECRET, *place)


def test_a_cluster_says_where_a_host_is(monkeypatch):
  """And JAX listens at the coordinator's address, not on all of host 0."""
  job = {'JOB_ID': '77', 'STEP_NODELIST': 'node[03-06]', 'NTASKS': '4'}
  for name, value in {**job, 'PROCID': '2', 'LOCALID': '0'}.items():
    monkeypatch.setenv(f'SLURM_{name}', value)
  found = []

  def initialize(*place, coordinator_bind_address, **options):
    del options
    found.append((*place, coordinator_bind_address))
    raise RuntimeError('enough')

  monkeypatch.setattr('jax.distributed.initialize', initialize)
  with pytest.raises(RuntimeError, match='enough'):
    hosts_lib.connect(_SECRET)
  ((address, *place, bound),) = found
  assert address.startswith('node03:') and address == bound
  assert place == [4, 2]
