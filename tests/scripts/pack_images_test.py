"""The program that packs CIFAR-10."""

import pathlib
import subprocess
import sys

from data_prep import sample_level
import numpy as np

_ROOT = pathlib.Path(__file__).parents[2]
# CIFAR-10 itself has 10,000 images in a file.
_PROGRAM = """
import functools
from data_prep import sample_level
from scripts.lib import cli, pack_images

sample_level.load_cifar10 = functools.partial(
  sample_level.load_cifar10, images_per_batch=20
)
cli.run(pack_images.main)
"""


def _run(*arguments):
  return subprocess.run(
    [sys.executable, '-c', _PROGRAM, *arguments],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )


def test_packs_without_loss(tmp_path):
  folder = tmp_path / 'data' / 'cifar-10-batches-bin'
  folder.mkdir(parents=True)
  rng = np.random.default_rng(0)
  for name in [*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch']:
    records = rng.integers(0, 256, (20, 1 + 3072)).astype(np.uint8)
    records[:, 0] %= 10
    (folder / f'{name}.bin').write_bytes(records.tobytes())
  packed = tmp_path / 'packed' / 'cifar-10'
  done = _run(f'--data_dir={tmp_path}/data', f'--output_dir={packed}')
  assert done.returncode == 0, done.stderr
  assert 'train: 100 images' in done.stdout
  assert 'test: 20 images' in done.stdout
  original = sample_level.load_cifar10(tmp_path / 'data', images_per_batch=20)
  assert (
    sample_level.load_cifar10(tmp_path / 'packed').sha256 == original.sha256
  )


def test_what_is_missing_is_named(tmp_path):
  done = _run('--data_dir=x')
  assert done.returncode == 2
  assert '--output_dir must be given' in done.stderr
  done = _run(f'--data_dir={tmp_path}', f'--output_dir={tmp_path}/packed')
  assert done.returncode != 0
  assert 'data_batch_1' in done.stderr
