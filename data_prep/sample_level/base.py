"""Examples with targets: what all data sets of sample-level training are."""

import dataclasses
import functools
import hashlib
from typing import Optional

import numpy as np


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples and what to predict of them.

  Example:

    >>> len(Examples(np.zeros([3, 8, 8, 1], np.uint8), np.zeros(3, np.int32)))
    3

  Attributes:
    inputs: uint8 [examples, height, width, channels] of images, float32
      [examples, features] of a table, or token ids, uint16 [examples, time], of
      sequences.
    targets: Classes, int32 [examples], or next tokens, uint16 [examples, time].
  """

  inputs: np.ndarray
  targets: np.ndarray

  def __post_init__(self):
    if len(self.inputs) != len(self.targets):
      raise ValueError(
        'targets must be as many as inputs, '
        f'{len(self.inputs)}. Found {len(self.targets)}.'
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
    name: In results.
    train: What is split into private and public examples.
    test: For the end.
    num_classes: Classes, or words of the vocabulary.
    validation: Where the data set has its own.
    public: Likewise: all training examples are then private.
    vocabulary: Of text, the words by their ids.
    caveats: What epsilon does not cover, in sentences.
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
    """What one record is."""
    return 'sequence' if self.is_text else 'example'

  @functools.cached_property
  def sha256(self) -> str:
    """Of all numbers: other data have another one."""
    digest = hashlib.sha256()
    for part in (self.train, self.test, self.validation, self.public):
      for array in () if part is None else (part.inputs, part.targets):
        digest.update(f'{array.dtype.str}{array.shape}'.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
