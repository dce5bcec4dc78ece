"""Loads data sets for sample-level training: images, tables and text.

    data = sample_level.load_data('cifar10', 'data')
    config = sample_level.SplitConfig(public_examples=2000)
    split = sample_level.split_examples(data, config)
    split.private, split.public, split.validation, split.test

Files are read in their authors' formats.
"""

import os
from typing import Optional

from data_prep.sample_level.base import Examples
from data_prep.sample_level.base import SampleLevelData
from data_prep.sample_level.images import load_images
from data_prep.sample_level.images import load_table
from data_prep.sample_level.published import load_cifar10
from data_prep.sample_level.published import load_digits
from data_prep.sample_level.published import load_emnist
from data_prep.sample_level.splits import data_hash
from data_prep.sample_level.splits import Split
from data_prep.sample_level.splits import split_examples
from data_prep.sample_level.splits import SplitConfig
from data_prep.sample_level.wikitext import load_public_text
from data_prep.sample_level.wikitext import load_wikitext
from pda_fed.common import validate

__all__ = [
  'DATASETS',
  'SampleLevelData',
  'Examples',
  'Split',
  'SplitConfig',
  'data_hash',
  'load_cifar10',
  'load_data',
  'load_digits',
  'load_emnist',
  'load_images',
  'load_public_text',
  'load_table',
  'load_wikitext',
  'split_examples',
]

_LOADERS = {
  'cifar10': load_cifar10,
  'emnist': load_emnist,
  'wikitext2': load_wikitext,
  'images': load_images,
  'table': load_table,
}
DATASETS = ('digits', *_LOADERS)


def load_data(
  name: str, data_dir: Optional[os.PathLike | str] = None, **options
) -> SampleLevelData:
  """Loads a data set by name.

  Example:

    >>> len(load_data('digits').test)
    360

  Args:
    name: One of `DATASETS`.
    data_dir: Folder of the data set's files; None for the digits.
    **options: Keyword arguments of the data set's loader.

  Returns:
    The data, before any split into private and public examples.

  Raises:
    SourceError: If files are missing or incomplete.
    ValueError: If the data set is unknown, its `data_dir` is missing, or a
      `data_dir` is given for the digits.
  """
  validate.one_of(DATASETS, dataset=name)
  if name == 'digits':
    if data_dir is not None:
      raise ValueError(
        'data_dir must not be given for the digits, which come with'
        f' scikit-learn. Found {os.fspath(data_dir)!r}. Give dataset as well.'
      )
    return load_digits()
  if data_dir is None:
    raise ValueError(
      f'data_dir must be given for the data set {name!r}: the folder of its'
      ' files.'
    )
  return _LOADERS[name](data_dir, **options)
