"""Classes of data sets for sample-level training."""

import dataclasses
import functools
import hashlib
from typing import Optional

import numpy as np


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples and their targets.

  Example:

    >>> len(Examples(np.zeros([3, 8, 8, 1], np.uint8), np.zeros(3, np.int32)))
    3

  Attributes:
    inputs: Images, uint8 [examples, height, width, channels]; rows of a table,
      float32 [examples, features]; or token ids of sequences, uint16 [examples,
      time].
    targets: Classes, int32 [examples], or next tokens, uint16 [examples, time].
  """

  inputs: np.ndarray
  targets: np.ndarray

  def __post_init__(self):
    if len(self.inputs) != len(self.targets):
      raise ValueError(
        f'targets must be as many as inputs, {len(self.inputs)}. Found'
        f' {len(self.targets)}.'
      )

  def __len__(self) -> int:
    return len(self.inputs)

  def take(self, rows: np.ndarray) -> 'Examples':
    """Returns the examples of some rows."""
    return Examples(self.inputs[rows], self.targets[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class SampleLevelData:
  """A data set as it is published.

  Example: see `load_digits`.

  Attributes:
    name: Name of the data set in results.
    train: Training examples, to be split into private and public ones.
    test: Examples for the final test.
    num_classes: Number of classes, or of words in the vocabulary.
    validation: The data set's own validation examples, if it has any.
    public: The data set's own public examples, if it has any. All training
      examples are then private.
    vocabulary: For text, the words in the order of their ids.
    caveats: Sentences on what epsilon does not cover.
  """

  name: str
  train: Examples
  test: Examples
  num_classes: int
  validation: Optional[Examples] = None
  public: Optional[Examples] = None
  vocabulary: Optional[tuple[str, ...]] = None
  caveats: tuple[str, ...] = ()

  @property
  def is_text(self) -> bool:
    return self.vocabulary is not None

  @property
  def unit(self) -> str:
    """Name of one record."""
    return 'sequence' if self.is_text else 'example'

  @functools.cached_property
  def sha256(self) -> str:
    """sha256 of all arrays."""
    digest = hashlib.sha256()
    for part in (self.train, self.test, self.validation, self.public):
      for array in () if part is None else (part.inputs, part.targets):
        digest.update(f'{array.dtype.str}{array.shape}'.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
