"""The example store: inputs and classes, by user, memory-mapped.

A folder with the files of `data_prep.user_store`, and

    x.npy  [examples, height, width, channels] or [examples, features], with the
           source's dtype
    y.npy  int32 [examples]: classes

The manifest has the mean and scale of each channel or feature, computed on
public users only: standardising reveals nothing about private users. This
module only needs numpy.
"""

from typing import Any

from data_prep import user_store
import numpy as np
from pda_fed.common import validate

FORMAT = 'pda_fed example store'
X = 'x.npy'
Y = 'y.npy'
LABEL_DTYPE = np.dtype('<i4')


class ExampleStore(user_store.UserStore):
  """Reads an example store.

  Example:

  ```
  store = ExampleStore('data/mine')
  name = store.users('private')[0]
  x, y = store.examples(name)  # float32, standardised, and int32
  ```

  Attributes:
    path: Folder of the store.
    manifest: Content of manifest.json.
    input_shape: Shape of one input: (height, width, channels) or (features,).
    num_classes: Number of classes.
  """

  FORMAT = FORMAT
  KIND = 'an example store'
  VERSION = 1
  UNIT = 'examples'
  DATA_FILES = (X, Y, *user_store.INDEX_FILES)

  def _check_kind(self, manifest: dict[str, Any]) -> None:
    self.num_classes = manifest['classes']['number']
    validate.integers(2, num_classes=self.num_classes)
    self.input_shape = tuple(manifest['inputs']['shape'])
    validate.one_of((1, 3), dimensions=len(self.input_shape))
    for size in self.input_shape:
      validate.integers(1, shape=size)
    self._mean, self._scale = (
      np.array(manifest['inputs'][name], np.float32)
      for name in ('mean', 'scale')
    )
    for array in (self._mean, self._scale):
      validate.one_of((self.input_shape[-1:],), shape=array.shape)
      validate.one_of((True,), finite=bool(np.isfinite(array).all()))
    validate.positive(scale=float(self._scale.min()))

  def _map_rows(self) -> int:
    self._x, self._y = self._map(X), self._map(Y)
    dtype = self.manifest['inputs']['dtype']
    if (
      self._x.shape[1:] != self.input_shape
      or self._x.dtype.str != dtype
      or not self._x.flags.c_contiguous
    ):
      self._fail(
        X,
        f'must be {dtype} [examples, *{list(self.input_shape)}]. Found'
        f' {self._x.dtype.str} {list(self._x.shape)}.',
      )
    if self._y.shape != self._x.shape[:1] or self._y.dtype != LABEL_DTYPE:
      self._fail(
        Y,
        f'must be int32 [{len(self._x)}]. Found {self._y.dtype}'
        f' {list(self._y.shape)}.',
      )
    return len(self._x)

  @property
  def row_shapes(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
    return (self.input_shape, np.dtype(np.float32)), ((), LABEL_DTYPE)

  def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
    x = self._x[start:stop].astype(np.float32)
    x -= self._mean
    x /= self._scale
    return x, self._y[start:stop]
