"""The program that packs CIFAR-10."""

import pathlib
import subprocess
import sys

from data_prep import central
import numpy as np

_ROOT = pathlib.Path(__file__).parents[2]
_IMAGES = 10_000


def _run(*arguments):
  return subprocess.run(
    [sys.executable, '-m', 'scripts.pack_images', *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )


def test_packs_without_loss(tmp_path):
  folder = tmp_path / 'data' / 'cifar-10-batches-bin'
  folder.mkdir(parents=True)
  # As many images as there are, but few different ones: quick to pack.
  records = np.zeros((_IMAGES, 1 + 3072), np.uint8)
  for i, name in enumerate(
    [*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch']
  ):
    records[:, 0] = np.arange(_IMAGES) % 10
    records[:, 1 + i] = np.arange(_IMAGES) % 251
    (folder / f'{name}.bin').write_bytes(records.tobytes())
  packed = tmp_path / 'packed' / 'cifar-10'
  done = _run(f'--data_dir={tmp_path}/data', f'--output_dir={packed}')
  assert done.returncode == 0, done.stderr
  assert 'train: 50,000 images' in done.stdout
  assert 'test: 10,000 images' in done.stdout
  assert (
    central.load_cifar10(tmp_path / 'packed').sha256
    == central.load_cifar10(tmp_path / 'data').sha256
  )


def test_what_is_missing_is_named(tmp_path):
  done = _run('--data_dir=x')
  assert done.returncode == 2
  assert '--output_dir must be given' in done.stderr
  done = _run(f'--data_dir={tmp_path}', f'--output_dir={tmp_path}/packed')
  assert done.returncode != 0
  assert 'data_batch_1' in done.stderr
