"""Remote workers: the same numbers, and no door that is open."""

from concurrent import futures
import dataclasses
import pathlib
import subprocess

import grpc
import numpy as np
from pda_fed import learning
from pda_fed import privacy
from pda_fed import runtime
from pda_fed.common import workers as workers_lib
from pda_fed.runtime import executors
from pda_fed.runtime import server as server_lib
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tests.learning import linear_model
from tests.runtime import processes
from tests.runtime import remote_workers as remote


@pytest.fixture(scope='module')
def four():
  with remote.serve(4) as served:
    yield served


class TestNumbers:
  @pytest.mark.slow
  def test_two_workers_equal_the_local_one(self, four):
    process = remote.pda_dpmd(0.0)
    cohorts = [remote.DATASETS, [], remote.DATASETS[:1], remote.DATASETS]
    local = remote.run_rounds(process, cohorts)
    with remote.connected(four[:2]):
      shared = remote.run_rounds(process, cohorts)
    for a, b in zip(local, shared, strict=True):
      np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    assert np.abs(local[0]).max() > 0.01  # It has learned something.

  @pytest.mark.slow
  def test_noise_is_added_once_whatever_the_number_of_workers(self, four):
    features, sigma, clip, cohort = 20_000, 0.5, 2.0, 4
    plan = privacy.PrivacyPlan(
      population=10,
      expected_cohort=cohort,
      rounds=1,
      delta=1e-2,
      noise_multiplier=sigma,
      clip_norm=clip,
    )
    sgd = tff.learning.optimizers.build_sgdm
    process = learning.build_dp_fedavg(
      linear_model.build_model_fn(features), plan, sgd(0.1), sgd(1.0),
      noise_seed=3,
    )  # fmt: skip
    # Their updates are 0, so that noise alone moves the weights.
    zeros = np.zeros((2, features), np.float32), np.zeros((2, 1), np.float32)
    clients = [linear_model.make_dataset(zeros, 2)] * 4
    local = remote.run_rounds(process, [clients])[0]
    found = {}
    for number in (1, 2, 4):
      with remote.connected(four[:number]):
        found[number] = remote.run_rounds(process, [clients])[0]
    # With noise from each of n workers this would be sqrt(n) times as much.
    expected = sigma * clip / cohort
    for weights in (local, *found.values()):
      assert np.std(weights) == pytest.approx(expected, rel=0.03)
    for weights in found.values():  # The very same draw, even.
      np.testing.assert_array_equal(weights, local)

  def test_an_error_of_the_computation_comes_through(self, four):
    @tff.tensorflow.computation(np.float32)
    def fails(x):
      with tf.control_dependencies([tf.debugging.assert_greater(x, 1.0)]):
        return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def of_clients(values):
      return tff.federated_sum(tff.federated_map(fails, values))

    with remote.connected(four[:2]) as workers:
      with pytest.raises(
        runtime.ComputationError, match='client 3 of 4 .*: assertion failed'
      ):
        of_clients([2.0, 2.0, 2.0, 0.0])
      assert all(worker.usable for worker in workers)
      assert of_clients([2.0, 3.0]) == 5.0


_GET_EXECUTOR = '/tensorflow_federated.v0.ExecutorGroup/GetExecutor'
_CREATE_STRUCT = '/tensorflow_federated.v0.ExecutorGroup/CreateStruct'


def _of_session(server: runtime.WorkerServer, session: str) -> list[str]:
  executors = server._executors._executors
  return [key for key, e in executors.items() if e.session == session]


def _code(channel: grpc.Channel, method=server_lib.HEALTH, request=b''):
  with channel:
    try:
      channel.unary_unary(method)(request, timeout=20)
    except grpc.RpcError as e:
      return e.code()
  return grpc.StatusCode.OK


def _channel(address, ca, tls=None) -> grpc.Channel:
  with open(ca, 'rb') as f:
    root = f.read()
  cert, key, _ = tls.read() if tls else (None, None, None)
  credentials = grpc.ssl_channel_credentials(root, key, cert)
  return grpc.secure_channel(address, credentials)


class TestTls:
  @pytest.mark.parametrize('method', [server_lib.HEALTH, _GET_EXECUTOR])
  @pytest.mark.parametrize(
    'who, allowed',
    [
      ('coordinator', True),
      ('no certificate', False),
      ('certificate of another CA', False),
      ("worker's certificate", False),
      ('plain text', False),
    ],
  )
  def test_only_a_coordinator_of_our_ca_is_let_in(
    self, four, who, allowed, method
  ):
    address = four[0].address
    ca = remote.tls_files(remote.HOST).ca
    if who == 'plain text':
      code = _code(grpc.insecure_channel(address), method)
    else:
      tls = {
        'coordinator': remote.tls_files('coordinator'),
        'no certificate': None,
        'certificate of another CA': remote.tls_files('coordinator', 'theirs'),
        "worker's certificate": remote.tls_files(remote.HOST),
      }[who]
      code = _code(_channel(address, ca, tls), method)
    if allowed:
      assert code is grpc.StatusCode.OK
    else:
      assert code is grpc.StatusCode.UNAVAILABLE

  def test_a_worker_of_another_ca_or_name_is_not_believed(self, four):
    ours = remote.tls_files('coordinator')
    theirs = remote.tls_files('coordinator', 'theirs').ca
    address = four[0].address
    assert _code(_channel(address, theirs, ours)) is (
      grpc.StatusCode.UNAVAILABLE
    )
    # Its certificate is for localhost.
    numeric = address.replace(remote.HOST, '127.0.0.1')
    assert _code(_channel(numeric, ours.ca, ours)) is (
      grpc.StatusCode.UNAVAILABLE
    )

  def test_who_is_refused_is_told(self, four):
    with pytest.raises(
      runtime.WorkerStartError, match='localhost.* cannot be reached'
    ):
      with remote.connected(
        four[:1], tls=remote.tls_files('coordinator', 'theirs'), timeout_s=1
      ):
        pass

  def test_other_services_are_not_there(self, four):
    tls = remote.tls_files('coordinator')
    channel = _channel(four[0].address, tls.ca, tls)
    assert _code(channel, '/grpc.health.v1.Health/Check') is (
      grpc.StatusCode.UNIMPLEMENTED
    )


def test_names_in_certificates(tmp_path):
  def make(*names):
    command = ['sh', 'deploy/make_certificates.sh', str(tmp_path), *names]
    return subprocess.run(command, cwd=remote.ROOT, capture_output=True)

  def names_in(name):
    command = ['openssl', 'x509', '-noout', '-ext', 'subjectAltName', '-in']
    found = subprocess.run(
      [*command, f'{tmp_path / name}.crt'], check=True, capture_output=True
    )
    return found.stdout.decode().split()[-1]

  assert make('b.lan', 'n1.r2.d3.z4', '10.0.0.7').returncode == 0
  assert names_in('b.lan') == 'DNS:b.lan'
  assert names_in('n1.r2.d3.z4') == 'DNS:n1.r2.d3.z4'
  assert names_in('10.0.0.7') == 'Address:10.0.0.7'
  authority = (tmp_path / 'ca.crt').read_bytes()
  for name in ('ca', 'coordinator'):
    assert make(name).returncode == 2
  assert (tmp_path / 'ca.crt').read_bytes() == authority


class TestDoors:
  def test_a_port_needs_tls(self):
    with pytest.raises(ValueError, match='127.0.0.1:0 must be protected'):
      runtime.WorkerServer('127.0.0.1:0')
    with pytest.raises(ValueError, match='must be protected'):
      with runtime.remote_workers(['127.0.0.1:1']):
        pass

  def test_insecure_is_a_warning_on_both_sides(self):
    with pytest.warns(RuntimeWarning, match='can run programs'):
      server = runtime.WorkerServer('127.0.0.1:0', insecure=True)
    with pytest.warns(RuntimeWarning, match='in the clear'):
      with runtime.remote_workers([server.address], insecure=True) as workers:
        assert workers[0].usable
    server.stop()

  def test_a_unix_socket_is_for_this_user_and_for_one_worker(self, short_path):
    path = short_path / 'w.sock'
    server = runtime.WorkerServer(f'unix:{path}')
    assert path.stat().st_mode & 0o777 == 0o600
    with runtime.remote_workers([server.address]) as workers:
      assert workers[0].usable
    with pytest.raises(runtime.WorkerStartError, match='Another worker'):
      runtime.WorkerServer(f'unix:{path}')
    server.stop()
    runtime.WorkerServer(f'unix:{path}').stop()

  def test_a_port_is_for_one_worker(self):
    tls = remote.tls_files(remote.HOST)
    server = runtime.WorkerServer('localhost:0', tls=tls)
    with pytest.raises(runtime.WorkerStartError, match='Cannot listen'):
      runtime.WorkerServer(server.address, tls=tls)
    server.stop()

  def test_broken_tls_files(self, tmp_path):
    broken = tmp_path / 'broken'
    broken.write_text('-----BEGIN CERTIFICATE-----')
    tls = workers_lib.TlsFiles(
      cert=str(broken), key=str(broken), ca=str(broken)
    )
    with pytest.raises(runtime.WorkerStartError, match='Cannot listen'):
      runtime.WorkerServer('127.0.0.1:0', tls=tls)
    with pytest.raises(runtime.WorkerStartError, match='cannot be reached'):
      with runtime.remote_workers(['127.0.0.1:1'], tls=tls, timeout_s=1):
        pass

  def test_a_worker_of_another_version_is_refused(
    self, short_path, monkeypatch
  ):
    theirs = {**server_lib.versions(), 'tensorflow-federated': '0.86.0'}
    with monkeypatch.context() as patch:
      patch.setattr(server_lib, 'versions', lambda: theirs)
      server = runtime.WorkerServer(f'unix:{short_path}/w.sock')
    with pytest.raises(
      runtime.WorkerVersionError, match='0.87.0.*Found.*federated 0.86.0'
    ):
      with runtime.remote_workers([server.address]):
        pass
    server.stop()

  def test_what_is_no_worker_of_ours_is_refused(self, short_path):
    other = grpc.server(futures.ThreadPoolExecutor(1))
    address = f'unix:{short_path}/other.sock'
    other.add_insecure_port(address)
    other.start()
    with pytest.raises(runtime.WorkerVersionError, match='scripts.worker'):
      with runtime.remote_workers([address]):
        pass
    other.stop(0)

  def test_what_a_dead_coordinator_left_is_removed(self, short_path):
    server = runtime.WorkerServer(f'unix:{short_path}/w.sock', lease_s=0.5)
    # As a program that asks for an executor, and is killed.
    with runtime.remote_workers([server.address], timeout_s=60) as workers:
      connection = workers[0]._connection
      connection._factory.create_executor({tff.CLIENTS: 1})
      (executor,) = _of_session(server, connection.session)
      # Nothing is heard of it: its next sign of life is 15 s away.
      assert processes.wait_until(
        lambda: not _of_session(server, connection.session), 60
      )

      request = executor_pb2.CreateStructRequest(
        executor=executor_pb2.ExecutorId(id=executor)
      )

      def is_gone():
        channel = grpc.insecure_channel(server.address)
        code = _code(channel, _CREATE_STRUCT, request.SerializeToString())
        # TFF takes this as a reason to make another executor and try again.
        return code is grpc.StatusCode.FAILED_PRECONDITION

      assert processes.wait_until(is_gone, 60)
    server.stop()

  @pytest.mark.slow
  def test_lost_and_found_again_it_leaves_nothing(self, short_path):
    server = runtime.WorkerServer(f'unix:{short_path}/w.sock', lease_s=4.0)
    with runtime.remote_workers([server.address], timeout_s=4) as (found,):
      for _ in range(2):
        connection = found._connection
        thread = connection._context._async_runner._thread
        assert _total([1.0, 2.0]) == 3.0
        found._lose(connection, 'is out of reach')
        assert not thread.is_alive()
        assert _of_session(server, connection.session)
        # Its successor's signs of life do not keep what it has left there.
        assert processes.wait_until(
          lambda c=connection: not _of_session(server, c.session), 60
        )
        assert processes.wait_until(lambda: found.usable, 60)
    server.stop()

  @pytest.mark.slow
  def test_of_the_right_version_it_is_used_again(self, short_path):
    server = runtime.WorkerServer(f'unix:{short_path}/w.sock')
    with runtime.remote_workers([server.address], timeout_s=8) as (found,):
      health = server._health.answer
      with pytest.warns(RuntimeWarning, match='must have the same') as seen:
        server._health.answer = health.replace(
          b'"protocol": 2', b'"protocol": 0'
        )
        # It is lost first and warned of then, by the thread that watches.
        assert processes.wait_until(
          lambda: any('must have' in str(w.message) for w in seen), 60
        )
      assert not found.usable
      server._health.answer = health
      assert processes.wait_until(lambda: found.usable, 60)
      assert _total([1.0, 2.0]) == 3.0
    server.stop()


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _total(values):
  return tff.federated_sum(values)


class _Channel:
  """Answers, or not, and notes what it was asked."""

  def __init__(self):
    self.asked = []
    self.answers = True

  def unary_unary(self, method, **options):
    del options

    def call(request, **options):
      del request, options
      self.asked.append(method)
      if not self.answers:
        raise grpc.RpcError()

    return call


def test_tidying_goes_on_when_the_worker_answers_again():
  inner = _Channel()
  channel = executors._QuietChannel(inner)
  compute = channel.unary_unary('/Compute')
  dispose = channel.unary_unary('/Dispose')
  dispose(b'')
  inner.answers = False
  dispose(b'')
  dispose(b'')  # Not asked.
  with pytest.raises(grpc.RpcError):
    compute(b'')
  dispose(b'')  # Not asked.
  inner.answers = True
  compute(b'')
  dispose(b'')
  assert inner.asked == [
    '/Dispose', '/Dispose', '/Compute', '/Compute', '/Dispose'
  ]  # fmt: skip


@pytest.mark.parametrize(
  'addresses, options, message',
  [
    ([], {}, 'at least one address'),
    (['a'], {}, "Found 'a'"),
    (['a:0'], {}, "Found 'a:0'"),
    (['a:70000'], {}, "Found 'a:70000'"),
    (['dns:///a:1'], {}, 'Found'),
    (['unix:w.sock'], {}, "Found 'unix:w.sock'"),
    (['unix:/' + 200 * 'a'], {}, 'at most 107 plain'),
    (['unix:/a#b'], {}, 'plain characters'),
    (['unix:/a', 'unix:/a'], {}, 'must be different'),
    (['unix:/a'], {'timeout_s': 0}, 'worker_timeout_s must be positive'),
  ],
)
def test_bad_settings(addresses, options, message):
  with pytest.raises(ValueError, match=message):
    with runtime.remote_workers(addresses, **options):
      pass


def test_half_of_the_tls_files():
  with pytest.raises(ValueError, match="tls_key must be a file. Found ''"):
    workers_lib.TlsFiles.from_flags(
      str(pathlib.Path(__file__)), None, str(pathlib.Path(__file__))
    )


@pytest.mark.parametrize('text', ['', 'no certificate'])
def test_tls_files_without_pem(tmp_path, text):
  # In an empty certificate's place, gRPC would end this very program.
  files = dataclasses.asdict(remote.tls_files('coordinator'))
  (tmp_path / 'file').write_text(text)
  for name in files:
    with pytest.raises(ValueError, match=f'tls_{name} must be a PEM file'):
      workers_lib.TlsFiles(**{**files, name: str(tmp_path / 'file')})
  mine = tmp_path / 'mine'
  mine.write_bytes(pathlib.Path(files['cert']).read_bytes())
  tls = workers_lib.TlsFiles(**{**files, 'cert': str(mine)})
  mine.write_text(text)  # It is read again with each new connection.
  with pytest.raises(ValueError, match='tls_cert must be a PEM file'):
    tls.read()
