"""Cores and GPUs for processes side by side, of machines that are made up."""

import pathlib
import subprocess
import sys
import types

from pda_fed.compare import slots
import pytest

_CORES = [7, 2, 11, 3, 5]


@pytest.mark.parametrize(
  'num_processes, shares',
  [
    (1, [{2, 3, 5, 7, 11}]),
    (2, [{2, 5, 11}, {3, 7}]),
    (5, [{2}, {3}, {5}, {7}, {11}]),
    (6, [{2, 3, 5, 7, 11}] * 6),
  ],
)
def test_cores_are_shared_out(num_processes, shares):
  found = slots.make(num_processes, 99, _CORES)
  assert [slot.cores for slot in found] == shares


@pytest.mark.parametrize(
  'environ, found',
  [
    ({}, ('0', '1', '2')),
    ({'CUDA_VISIBLE_DEVICES': '2, 0'}, ('2', '0')),
    ({'CUDA_VISIBLE_DEVICES': 'GPU-8f,MIG-1/2/3'}, ('GPU-8f', 'MIG-1/2/3')),
    ({'CUDA_VISIBLE_DEVICES': ''}, ()),
    ({'CUDA_VISIBLE_DEVICES': '-1'}, ()),
    ({'CUDA_VISIBLE_DEVICES': '1,-1,2'}, ('1',)),
    ({'JAX_PLATFORMS': 'cpu'}, ()),
    ({'JAX_PLATFORMS': 'cuda,cpu'}, ('0', '1', '2')),
    ({'JAX_PLATFORMS': ''}, ('0', '1', '2')),
  ],
)
def test_gpus_of_an_environment(monkeypatch, environ, found):
  monkeypatch.setattr(slots.os, 'environ', environ)
  monkeypatch.setattr(slots, '_count_gpus', lambda: 3)
  monkeypatch.setattr(slots, '_jax_has_cuda', lambda: True)
  assert slots.gpus() == found
  # A JAX for the CPU alone leaves them idle.
  monkeypatch.setattr(slots, '_jax_has_cuda', lambda: False)
  assert slots.gpus() == ()


@pytest.mark.parametrize(
  'num_processes, num_jobs, gpus, expected',
  [
    (0, 99, '', [(None, 1)] * 5),  # One for each core.
    (0, 2, '', [(None, 1)] * 2),
    (0, 99, '01', [('0', 1), ('1', 1)]),
    (0, 1, '01', [('0', 1)]),
    (1, 99, '01', [('0', 1)]),
    (3, 99, '01', [('0', 2), ('1', 1), ('0', 2)]),
    (4, 99, '0', [('0', 4)] * 4),
    (0, 0, '01', [('0', 1)]),
  ],
)
def test_each_process_has_one_gpu(num_processes, num_jobs, gpus, expected):
  found = slots.make(num_processes, num_jobs, _CORES, list(gpus))
  assert [(slot.gpu, slot.sharers) for slot in found] == expected


def test_environments_of_processes():
  before = {'HOME': '/x', 'CUDA_VISIBLE_DEVICES': '4,5'}
  assert slots.Slot(frozenset()).environment(before) == before
  alone = slots.Slot(frozenset(), '5').environment(before)
  assert alone == {'HOME': '/x', 'CUDA_VISIBLE_DEVICES': '5'}
  found = slots.Slot(frozenset(), '5', 3).environment(before)
  assert found == {**alone, 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.25'}
  # What the user has said of memory stays.
  for name in ('MEM_FRACTION', 'PREALLOCATE'):
    given = {**before, f'XLA_PYTHON_CLIENT_{name}': '0.1'}
    found = slots.Slot(frozenset(), '5', 3).environment(given)
    assert found == {**given, 'CUDA_VISIBLE_DEVICES': '5'}


def _fake_machine(monkeypatch, files, listed=None):
  paths = [pathlib.Path('/dev') / name for name in files]
  monkeypatch.setattr(pathlib.Path, 'glob', lambda self, pattern: paths)
  program = None if listed is None else '/bin/nvidia-smi'
  monkeypatch.setattr(slots.shutil, 'which', lambda name: program)
  done = types.SimpleNamespace(stdout=listed)
  monkeypatch.setattr(subprocess, 'run', lambda *args, **options: done)


@pytest.mark.parametrize(
  'files, listed, count',
  [
    ([], None, 0),
    (['nvidia0', 'nvidia3', 'nvidia-uvm', 'nvidiactl', 'nvidia12'], None, 3),
    (['nvidiactl'], 'GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200', 2),
    ([], 'NVIDIA-SMI has failed because it could not talk to the driver.', 0),
  ],
)
def test_gpus_of_a_machine(monkeypatch, files, listed, count):
  _fake_machine(monkeypatch, files, listed)
  assert slots._count_gpus() == count


@pytest.mark.parametrize(
  'plugin, is_there', [('xla_cuda12', True), ('mlx', False), (None, False)]
)
def test_the_plugin_is_found_without_jax(
  monkeypatch, tmp_path, plugin, is_there
):
  if plugin is not None:
    (tmp_path / 'jax_plugins' / plugin).mkdir(parents=True)
    (tmp_path / 'jax_plugins' / plugin / '__init__.py').touch()
  monkeypatch.setattr(sys, 'path', [str(tmp_path)])
  monkeypatch.delitem(sys.modules, 'jax_plugins', raising=False)
  assert slots._jax_has_cuda() == is_there
