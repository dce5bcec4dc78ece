"""What hosts must have in common, and how a state travels."""

import dataclasses
from unittest import mock

import jax
import numpy as np
from pda_fed import privacy
from pda_fed.common import typed
from pda_fed.runs import hosts
from pda_fed.runs.engines import distributed
from pda_fed.runs.engines import jax_federated
import pytest

from tests.runs import tiny_users


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return tiny_users.prepare_table(tmp_path_factory.mktemp('users') / 'store')


@pytest.fixture
def config(data_dir):
  return tiny_users.make_run(data_dir, engine='jax')


def _facts(run, **values):
  """What a host with other settings says of itself."""
  found = {}
  hosts_of_test = mock.Mock(agree=found.update)
  run = dataclasses.replace(run, spec=run.spec.with_values(values))
  distributed.agree(hosts_of_test, run)
  return found


def test_what_hosts_must_have_in_common(config, tmp_path, monkeypatch):
  first = _facts(config)
  for values, lines in (
    ({}, []),
    ({'server.momentum': 0.5}, ['settings.server.momentum: None -> 0.5']),
    ({'seed': 5}, ['settings.seed: 0 -> 5']),
    ({'data_dir': '/elsewhere'}, []),  # Each host's own affair.
  ):
    assert typed.differences(first, _facts(config, **values)) == lines
  (tmp_path / 'a.py').write_text('x = 1\n')
  monkeypatch.setattr(distributed.pda_fed, '__file__', str(tmp_path / 'b.py'))
  (line,) = typed.differences(first, _facts(config))
  assert line.startswith('code.sha256: ')


@pytest.mark.parametrize(
  'changes, num_hosts, words',
  [
    ({'engine': 'tff'}, 2, 'engine must be jax with --dist.* Found .tff.'),
    ({}, 3, 'num_hosts must be at most 2, the expected users .* Found 3.'),
    ({'audit': 'copy'}, 2, 'audit must not use a copy'),
  ],
)
def test_runs_that_cannot_be_spread(config, changes, num_hosts, words):
  distributed.check(config, 2)
  spec = config.spec.with_values(changes)
  with pytest.raises(ValueError, match=words):
    distributed.check(dataclasses.replace(config, spec=spec), num_hosts)


def test_a_state_travels_unchanged():
  """Also what a sum with the zeros of other hosts would change."""
  arrays = {
    'a': np.float32([[-0.0, np.nan], [1e-45, -np.inf]]),
    'b': np.asarray(2.5, np.float64),
  }

  class Engine:
    to_arrays = staticmethod(dict)
    from_arrays = staticmethod(lambda found, round_num: found)

  found = distributed._spread(Engine, arrays, 0)
  for name, array in arrays.items():
    assert found[name].tobytes() == array.tobytes()
    assert found[name].shape == array.shape and found[name].dtype == array.dtype


@pytest.mark.parametrize(
  'error, kind, words',
  [
    (RuntimeError('RESOURCE_EXHAUSTED: Memory.'), hosts.HostError, 'lower --c'),
    (ValueError('UNKNOWN: Gloo failed'), hosts.HostError, 'Another host is l'),
    (ValueError('ours'), ValueError, '^ours$'),
  ],
)
def test_errors_in_a_round(error, kind, words):
  class Engine:
    def run_rounds(self, *arguments):
      raise error

  step = {'first_round': 0, 'num_rounds': 1, 'is_new': False}
  with pytest.raises(kind, match=words):
    distributed._run_rounds(Engine(), None, step)


def test_a_host_reads_its_own_clients_alone(config, monkeypatch):
  """The memory of a host does not grow with the users of other hosts."""
  spec = config.spec.with_values({'clients_per_chunk': 1})
  plan = dataclasses.replace(config.plan, expected_cohort=12)
  config = dataclasses.replace(config, plan=plan, spec=spec)
  seeds = privacy.SeedStreams(0)
  read, bytes_of = {}, {}
  for name, own in (('all', [0, 1, 2, 3]), ('one', [1])):
    engine = jax_federated.JaxEngine(config, seeds)
    engine._devices = engine._devices[:1] * 4
    engine._own_devices = own
    rows = []
    load = engine._load
    monkeypatch.setattr(
      engine,
      '_load',
      lambda group, users, places, n, load=load, rows=rows: (
        rows.extend(users[places]) or load(group, users, places, n)
      ),
    )
    inputs = engine._inputs(range(1), 1)
    read[name] = sorted(int(user) for user in rows)
    arrays = jax.tree_util.tree_leaves(inputs.private)
    bytes_of[name] = sum(np.asarray(array).nbytes for array in arrays)
  assert len(read['one']) <= len(read['all']) / 4 + 2
  assert set(read['one']) < set(read['all'])
  assert bytes_of['one'] == bytes_of['all'] / 4


def test_memory_that_is_short_on_one_host_is_not_met_by_smaller_chunks(
  config, monkeypatch
):
  spec = config.spec.with_values({'clients_per_chunk': 4})
  config = dataclasses.replace(config, spec=spec)
  engine = jax_federated.JaxEngine(config, privacy.SeedStreams(0))
  engine._devices = engine._devices[:1] * 2
  engine._own_devices = [0]

  def run(*arguments):
    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory.')

  monkeypatch.setattr(engine._trainer, 'run', run)
  with pytest.raises(RuntimeError, match='RESOURCE_EXHAUSTED'):
    engine.run_rounds(engine.initialize(), 0, 1)
