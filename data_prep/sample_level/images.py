"""Images or a table from arrays in an .npz file.

    np.savez_compressed('mine.npz', train_images=..., train_labels=...,
                        test_images=..., test_labels=...)

Public images from another source may be added as `public_images` and
`public_labels`; all training images are then private. `num_classes` is
optional; other arrays are not allowed. A table has `train_inputs` instead of
`train_images`, and so on.
"""

import hashlib
import os
import pathlib
from typing import Optional

from data_prep import errors
from data_prep import npz
from data_prep.sample_level import base
import numpy as np

_PARTS = ('train', 'test', 'public')
# How inputs are called in the names of arrays.
_INPUTS = {'images': 'images', 'table': 'inputs'}
# Not how many training inputs: the count would be exact.
_OVERLAPS = {
  'train': 'Some public {0} are among the training {0}: epsilon does not cover'
  ' what these reveal.',
  'test': '{1:,} public {0} are among the test {0}: these are not new to the'
  ' model.',
}


def _names(dataset: str, part: str) -> tuple[str, str]:
  return f'{part}_{_INPUTS[dataset]}', f'{part}_labels'


def _part(
  path: pathlib.Path, dataset: str, arrays: dict[str, np.ndarray], part: str
) -> Optional[base.Examples]:
  """Returns the examples of a part; None if there are no public ones."""
  names = _names(dataset, part)
  missing = [name for name in names if name not in arrays]
  if part == 'public' and len(missing) == 2:
    return None
  if missing:
    found = ', '.join(arrays) or 'none of them'
    raise errors.SourceError(
      f'{path} must hold the array {missing[0]}. Found {found}.'
    )
  inputs, labels = (arrays[name] for name in names)
  is_table = dataset == 'table'
  if not is_table and inputs.dtype != np.uint8:
    raise errors.SourceError(
      f'{path}: {names[0]} must have the type uint8, from 0 to 255. Found'
      f' {inputs.dtype}.'
    )
  inputs = npz.check_inputs(
    path, names[0], inputs, (2,) if is_table else (3, 4)
  )
  labels = npz.check_labels(path, names[1], labels)
  npz.check_lengths(path, **dict(zip(names, (inputs, labels), strict=True)))
  return base.Examples(
    inputs.astype(np.float32) if is_table else inputs, labels
  )


def load_images(path: os.PathLike | str) -> base.SampleLevelData:
  """Reads your own images from an .npz file.

  Example:

    >>> import tempfile
    >>> images, labels = np.zeros([6, 8, 8], np.uint8), np.arange(6) % 3
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   np.savez(
    ...     f'{folder}/images.npz', train_images=images, train_labels=labels,
    ...     test_images=images, test_labels=labels, num_classes=3,
    ...   )
    ...   data = load_images(folder)
    >>> data.train.inputs.shape, data.num_classes
    ((6, 8, 8, 1), 3)

  Args:
    path: The file, or a folder that holds it as `images.npz`. Its arrays are
      `train_images`, `train_labels`, `test_images` and `test_labels`, with
      images in uint8. Optional are `public_images` and `public_labels`, from
      another source, and `num_classes`. Without the latter, the labels are
      counted.

  Returns:
    The data.

  Raises:
    SourceError: If the file is missing or damaged, or an array is invalid.
  """
  return _load(pathlib.Path(path), 'images')


def load_table(path: os.PathLike | str) -> base.SampleLevelData:
  """Reads your own table, with a row of numbers for each example.

  Example:

    >>> import tempfile
    >>> rows, labels = np.zeros([6, 4]), np.arange(6) % 3
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   np.savez(
    ...     f'{folder}/table.npz', train_inputs=rows, train_labels=labels,
    ...     test_inputs=rows, test_labels=labels, num_classes=3,
    ...   )
    ...   data = load_table(folder)
    >>> data.train.inputs.shape, data.train.inputs.dtype.name
    ((6, 4), 'float32')

  Args:
    path: The file, or a folder that holds it as `table.npz`. Its arrays are
      those of `load_images`, but named `train_inputs` instead of `train_images`
      and so on. Inputs are [examples, features], finite floats or integers.

  Returns:
    The data, in float32.

  Raises:
    SourceError: If the file is missing or damaged, or an array is invalid.
  """
  return _load(pathlib.Path(path), 'table')


def _load(path: pathlib.Path, dataset: str) -> base.SampleLevelData:
  path = path / f'{dataset}.npz' if path.is_dir() else path
  known = (*(name for part in _PARTS for name in _names(dataset, part)),)
  arrays = npz.read_arrays(path, (*known, npz.CLASSES))
  parts = {part: _part(path, dataset, arrays, part) for part in _PARTS}
  there = {name: part for name, part in parts.items() if part is not None}
  shape = there['train'].inputs.shape[1:]
  for name, part in there.items():
    if part.inputs.shape[1:] != shape:
      inputs = _INPUTS[dataset]
      raise errors.SourceError(
        f'{path}: {name}_{inputs} must have the shape {shape}, like'
        f' train_{inputs}. Found {part.inputs.shape[1:]}.'
      )
  largest = max(int(part.targets.max()) for part in there.values())
  num_classes, caveats = npz.count_classes(
    path, largest, arrays.get(npz.CLASSES)
  )
  return base.SampleLevelData(
    name=dataset,
    train=parts['train'],
    test=parts['test'],
    public=parts['public'],
    num_classes=num_classes,
    caveats=(*_overlaps(there, _INPUTS[dataset]), *caveats),
  )


def _overlaps(parts: dict[str, base.Examples], inputs: str) -> list[str]:
  """Returns caveats on public inputs that are also private or test inputs."""
  if 'public' not in parts:
    return []
  public = _digests(parts['public'].inputs)
  return [
    what.format(inputs, len(found))
    for part, what in _OVERLAPS.items()
    if (found := public & _digests(parts[part].inputs))
  ]


def _digests(inputs: np.ndarray) -> set[bytes]:
  return {hashlib.blake2b(one, digest_size=16).digest() for one in inputs}
