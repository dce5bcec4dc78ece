"""Remote workers on this machine, and what happens to them."""

import atexit
import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading

import numpy as np
from pda_fed import learning
from pda_fed import privacy
from pda_fed import runtime
from pda_fed import schedules
import pytest
import tensorflow_federated as tff

from tests.learning import linear_model

ROOT = pathlib.Path(__file__).parents[2]
HOST = 'localhost'


def _remove(folder: str, owner_pid: int) -> None:
  if os.getpid() == owner_pid:  # A test forks, and its child ends as we do.
    shutil.rmtree(folder)


@functools.cache
def _certificates(authority: str) -> pathlib.Path:
  """Certificates of an authority of that name; gone when the tests are."""
  del authority  # Another name, another authority.
  if shutil.which('openssl') is None:
    pytest.skip('openssl is not installed')
  # Not where tempfile points in a test: other tests use them too.
  folder = tempfile.mkdtemp(prefix='pda-', dir='/tmp')
  atexit.register(_remove, folder, os.getpid())
  command = ['sh', 'deploy/make_certificates.sh', folder, HOST]
  subprocess.run(command, cwd=ROOT, check=True)
  return pathlib.Path(folder)


def tls_files(name: str, authority: str = 'ours') -> runtime.TlsFiles:
  folder = _certificates(authority)
  return runtime.TlsFiles(
    cert=str(folder / f'{name}.crt'),
    key=str(folder / f'{name}.key'),
    ca=str(folder / 'ca.crt'),
  )


class Served:
  """A worker as `scripts.worker` serves it, but in this process."""

  def __init__(self, address: str = f'{HOST}:0', **options):
    options = {'tls': tls_files(HOST), 'max_concurrent_clients': 1, **options}
    self.server = runtime.WorkerServer(address, **options)
    self.address = self.server.address
    self.calls = 0
    self._hangs = threading.Event()

  def at_next_call(self, action) -> None:
    """Does something in the middle of the next round's computation."""
    pool = self.server._executors._pool
    call = type(pool).call.__get__(pool)

    def hooked(*args):
      self.calls += 1
      if self.calls == 1:
        action()
      return call(*args)

    self.calls = 0
    pool.call = hooked

  def die(self) -> None:
    """Closes all connections at once, as a killed process does."""
    self.server._server.stop(0)
    self.server._executors.close()

  def hang(self) -> None:
    """Answers nothing any more, as a stopped process does; until `stop`."""
    health = self.server._health
    service = type(health).service.__get__(health)

    def never(details):
      self._hangs.wait()
      return service(details)

    health.service = never
    self._hangs.wait()

  def stop(self) -> None:
    self._hangs.set()
    self.server.stop()


@contextlib.contextmanager
def serve(number: int, **options):
  with contextlib.ExitStack() as stack:
    found = []
    for _ in range(number):
      found.append(Served(**options))
      stack.callback(found[-1].stop)
    yield found


def connected(served, **options):
  return runtime.remote_workers(
    [s if isinstance(s, str) else s.address for s in served],
    **{'tls': tls_files('coordinator'), **options},
  )


FEATURES = 3
_RNG = np.random.default_rng(0)
_SIZES = (5, 4, 1, 3, 2)
DATASETS = [
  linear_model.make_dataset(linear_model.make_examples(_RNG, n, FEATURES), 2)
  for n in _SIZES
]
_PUBLIC = [linear_model.make_examples(_RNG, n, FEATURES) for n in (3, 6)]


@functools.cache
def pda_dpmd(noise_multiplier: float) -> tff.learning.templates.LearningProcess:
  sgd = tff.learning.optimizers.build_sgdm
  return learning.build_pda_dpmd(
    linear_model.build_model_fn(FEATURES),
    privacy.PrivacyPlan(
      population=10,
      expected_cohort=4,
      rounds=8,
      delta=1e-2,
      noise_multiplier=noise_multiplier,
      clip_norm=0.5,
    ),
    sgd(0.1),
    sgd(1.0, 0.9),
    public_data=_PUBLIC,
    alpha=schedules.constant(0.5),
    public_users_per_round=2,
    public_batch_size=2,
    noise_seed=0,
  )


def run_rounds(process, cohorts, before_round=lambda i: None):
  """The weights after some rounds; `before_round` may be told each."""
  state = process.initialize()
  for i, cohort in enumerate(cohorts):
    before_round(i)
    state = process.next(state, cohort).state
  return [np.asarray(w) for w in state.global_model_weights.trainable]
