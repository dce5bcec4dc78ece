"""Devices that share the examples of a step: numbers of one device, one noise.

One process with four devices computes everything; the tests compare.
"""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed.jax import devices as devices_lib
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
import pytest

from tests.jax import small_models

_ROUNDS = 3
_PLAIN = small_models.step_settings(0.3, optimizer=optax.sgd(1.0, 0.5))
# An image is varied by its place in the batch.
_MICRO = dataclasses.replace(_PLAIN, augmentation='all', microbatch_size=2)
# By name: settings, rows of a batch, whether they are examples, and the numbers
# of devices. Of five rows the last of four devices gets none.
_CASES = {
  'a batch': (_PLAIN, 5, True, (1, 2, 4)),
  'noise alone': (_PLAIN, 5, False, (1, 2, 4)),
  'microbatches': (_MICRO, 10, True, (1, 2)),
}


def _inputs(rows, is_present):
  rng = np.random.default_rng(0)
  return pda_jax.StepInputs(
    round_num=np.arange(_ROUNDS, dtype=np.int32),
    rows=rng.integers(0, 5, (_ROUNDS, rows)),
    present=np.arange(rows) < is_present * np.array([[rows], [rows - 1], [1]]),
    learning_rate=np.full(_ROUNDS, 0.5, np.float32),
    epoch=np.zeros(_ROUNDS, np.int32),
  )


@functools.cache
def _trainer(settings, devices):
  model, *examples = small_models.create('narrow')
  standard = augmentation.Standardization(np.zeros(2), np.ones(2))
  trainer = pda_jax.SampleTrainer(model, settings, standard, devices)
  return model, pda_jax.ExampleArrays(*examples), trainer


def _run(case, devices):
  """Returns all numbers after two calls, and how often it was compiled."""
  settings, rows, is_present, _ = _CASES[case]
  model, examples, trainer = _trainer(settings, devices)
  state = trainer.init(small_models.params_of(model))
  data = pda_jax.TrainingArrays(examples)
  inputs = _inputs(rows, is_present)
  key = pda_jax.noise_key(7)
  state, _ = trainer.run(state, data, inputs, 2, 1.0, key)
  found = trainer.run(state, data, inputs, _ROUNDS, 1.0, key)
  return jax.tree_util.tree_leaves(found), trainer._one._cache_size()


def compute_all(path):
  """Writes what the tests compare."""
  found = {}
  devices = tuple(jax.devices())
  with small_models.quick_compilation():
    for case, (*_, counts) in _CASES.items():
      for count in counts:
        arrays, programs = _run(case, devices[:count])
        if count > 1:
          assert all(len(a.devices()) == count for a in arrays)
          assert programs == 1
        found |= {f'{case}/{count}/{i}': a for i, a in enumerate(arrays)}
  whose = devices_lib.run_on_each(
    lambda x: x + jax.lax.axis_index(devices_lib.AXIS), devices
  )(np.array([7.0, np.nan]))
  found['whose'] = np.stack([s.data for s in whose.addressable_shards])
  np.savez(path, **found)


@pytest.fixture(name='found', scope='module')
def fixture_found(tmp_path_factory):
  path = tmp_path_factory.mktemp('devices') / 'found.npz'
  flags = os.environ.get('XLA_FLAGS', '')
  flags += ' --xla_force_host_platform_device_count=4'
  code = (
    'import sys; from tests.jax.sample_level import devices_test;'
    ' devices_test.compute_all(sys.argv[1])'
  )
  environment = {'PYTHONPATH': '.', 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
  subprocess.run(
    [sys.executable, '-c', code, str(path)],
    env=os.environ | environment,
    check=True,
  )
  with np.load(path) as arrays:
    return dict(arrays)


@pytest.mark.parametrize(
  ('case', 'count'),
  [(c, n) for c, (*_, counts) in _CASES.items() for n in counts[1:]],
)
def test_devices_share_examples(found, case, count):
  expected = [a for n, a in found.items() if n.startswith(f'{case}/1/')]
  ours = [a for n, a in found.items() if n.startswith(f'{case}/{count}/')]
  # Weights, momentum and metrics; the noise of one key is in all of them.
  for a, e in zip(ours, expected, strict=True):
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)
    if case == 'noise alone':
      np.testing.assert_array_equal(a, e)
  assert np.abs(expected[0]).max() > 0.1


def test_what_the_first_device_found_is_that_of_all(found):
  np.testing.assert_array_equal(found['whose'], [[7, np.nan]] * 4)


@pytest.mark.parametrize(
  ('room', 'num_devices', 'microbatch', 'size'),
  [
    (8, 2, None, 4),
    (5, 4, None, 2),  # The last device has padding alone.
    (2, 4, None, 1),
    (8, 2, 3, 6),
    (9, 3, 1, 3),
    (4, 2, 50, 2),
  ],
)
def test_shares_are_the_batch(room, num_devices, microbatch, size):
  inputs = _inputs(room, True)
  step = inputs._replace(rows=inputs.rows[0], present=inputs.present[1])
  parts = [
    batches_lib.share_of(step, place, num_devices, microbatch)
    for place in range(num_devices)
  ]
  assert [p.start for p in parts] == [size * i for i in range(num_devices)]
  assert all(len(p.rows) == len(p.present) == size for p in parts)
  rows = np.concatenate([p.rows for p in parts])
  present = np.concatenate([p.present for p in parts])
  np.testing.assert_array_equal(rows[:room], step.rows)
  np.testing.assert_array_equal(present[:room], step.present)
  assert not present[room:].any()
