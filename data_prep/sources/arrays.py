"""Examples by user, from arrays or a table.

    np.savez_compressed('mine.npz', x=..., y=..., user=...)

`x` are images or rows of features, `y` the classes, and `user` the user of each
example. `num_classes` is optional; other arrays are not allowed. A table in a
.csv file has a header, a column of users, a column of labels, and numbers in
all other columns.
"""

import array
from collections.abc import Sequence
import csv
import io
import os
import pathlib
from typing import Optional

from data_prep import errors
from data_prep import files
from data_prep import npz
from data_prep.sources import base
import numpy as np

_ARRAYS = ('x', 'y', 'user')


class ArraySource(base.UserSource):
  """Users and their examples, in memory.

  Example: see `open_npz`.

  Attributes:
    x: Inputs, [examples, features] or [examples, height, width, channels].
    y: Classes, int32 [examples].
    num_classes: Number of classes.
    caveats: Sentences on how the number of classes was found.
  """

  def __init__(
    self,
    path: pathlib.Path,
    x: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    owners: np.ndarray,
    num_classes: Optional[np.ndarray] = None,
  ):
    """Checks the examples.

    Args:
      path: File of the examples.
      x: Inputs.
      y: Classes.
      names: The users' names, without repetition.
      owners: For each example, the index of its user in `names`.
      num_classes: Number of classes. Default: found from the labels.

    Raises:
      SourceError: If an array is invalid.
    """
    self.name = path.name
    self.x = _check_inputs(path, x)
    self.y = npz.check_labels(path, 'y', y)
    npz.check_lengths(path, x=x, y=y, user=owners)
    self.num_classes, self.caveats = npz.count_classes(
      path, int(self.y.max()), num_classes
    )
    order = np.argsort(owners, kind='stable')  # Keeps the order of the file.
    ends = np.cumsum(np.bincount(owners, minlength=len(names)))
    rows = zip(names, np.split(order, ends[:-1]), strict=True)
    self._rows = dict(sorted(rows, key=lambda user: user[0]))

  def users(self, split: str) -> base.UserCounts:
    del split  # There is only one.
    counts = [len(rows) for rows in self._rows.values()]
    return base.UserCounts(
      ids=tuple(self._rows), num_sentences=np.array(counts, np.int64)
    )

  def rows(self, user: str, start: int, stop: int) -> np.ndarray:
    """Returns the indices of examples of a user in `x` and `y`.

    Args:
      user: The user's id.
      start: First example, counted within the user's examples.
      stop: One past the last example.
    """
    return self._rows[user][start:stop]


def _check_inputs(path: pathlib.Path, x: np.ndarray) -> np.ndarray:
  if x.dtype.kind not in 'biuf' or x.ndim not in (2, 3, 4) or not x.size:
    raise errors.SourceError(
      f'{path}: x must be a non-empty array of numbers, [examples,'
      f' features] or [examples, height, width, channels]. Found {x.dtype} of'
      f' the shape {x.shape}.'
    )
  if x.ndim > 2:
    x = npz.with_channels(path, 'x', x)
  is_long = x.dtype.kind == 'f' and x.dtype.itemsize > 4
  dtype = np.dtype(np.float32) if is_long else x.dtype
  with np.errstate(over='ignore'):
    x = x.astype(dtype.newbyteorder('<'), copy=False)
  if x.dtype.kind == 'f':
    is_finite = np.isfinite(x).reshape(len(x), -1).all(1)
    if not is_finite.all():
      row = int(np.argmin(is_finite))
      raise errors.SourceError(
        f'{path}: x must be finite. Found nan, inf or a number too large for'
        f' {x.dtype} in row {row}.'
      )
  return x


def open_npz(path: os.PathLike | str) -> ArraySource:
  """Opens an .npz file.

  Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   np.savez(
    ...     f'{folder}/mine.npz', x=np.eye(3), y=[0, 1, 1], user=[7, 8, 7],
    ...   )
    ...   source = open_npz(f'{folder}/mine.npz')
    >>> source.users('train').ids, source.num_classes
    (('7', '8'), 2)

  Args:
    path: A file with the arrays `x`, `y`, `user` and optionally `num_classes`.

  Returns:
    The source.

  Raises:
    SourceError: If the file is missing or damaged, or an array is invalid.
  """
  path = pathlib.Path(path)
  arrays = npz.read_arrays(path, (*_ARRAYS, npz.CLASSES))
  for name in _ARRAYS:
    if name not in arrays:
      found = ', '.join(arrays) or 'none'
      raise errors.SourceError(
        f'{path} must hold the array {name}. Found {found}.'
      )
  user = arrays['user']
  if user.dtype.kind not in 'iuUS' or user.ndim != 1:
    raise errors.SourceError(
      f'{path}: user must be a vector of integers or strings. Found'
      f' {user.dtype} of the shape {user.shape}.'
    )
  values, owners = np.unique(user, return_inverse=True)
  try:
    names = [
      v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()
    ]
    ''.join(names).encode()
  except ValueError as e:
    raise errors.SourceError(f'{path}: user must be in UTF-8: {e}.') from e
  return ArraySource(
    path, arrays['x'], arrays['y'], names, owners, arrays.get(npz.CLASSES)
  )


def open_csv(path: os.PathLike | str) -> ArraySource:
  """Opens a table in a .csv file.

  Example:

  ```
  source = open_csv('mine.csv')  # user,label,height,width
  ```

  Args:
    path: A UTF-8 file, plain, .gz or .xz. Its first row names the columns:
      `user`, `label`, and the features.

  Returns:
    The source.

  Raises:
    SourceError: If the file is missing or damaged, or a row is invalid.
  """
  path = pathlib.Path(path)
  names: dict[str, int] = {}
  owners, labels, cells = array.array('q'), array.array('q'), array.array('f')
  try:
    with files.opened(path) as f:
      text = io.TextIOWrapper(f, encoding='utf-8-sig', newline='')
      rows = csv.reader(text, strict=True)
      header = next(rows, [])
      if header.count('user') != 1 or header.count('label') != 1:
        raise errors.SourceError(
          f'{path} must have a header with one column user and one column'
          f' label. Found {", ".join(header) or "an empty file":.200}.'
        )
      user, label = header.index('user'), header.index('label')
      features = [i for i in range(len(header)) if i not in (user, label)]
      for row in filter(None, rows):  # Skips blank lines.
        try:
          if len(row) != len(header):
            raise ValueError(f'{len(row)} cells')
          labels.append(int(row[label]))
          cells.extend([float(row[i]) for i in features])
        except (OverflowError, ValueError) as e:
          raise errors.SourceError(
            f'{path}, line {rows.line_num}, must have {len(header)} cells: an'
            f' integer as label, and numbers as features. Found: {e}.'
          ) from e
        owners.append(names.setdefault(row[user], len(names)))
  except (UnicodeDecodeError, csv.Error) as e:
    raise errors.SourceError(f'{path} must be a CSV file in UTF-8: {e}.') from e
  return ArraySource(
    path,
    np.array(cells, np.float32).reshape(len(labels), len(features)),
    np.array(labels, np.int64),
    tuple(names),
    np.array(owners, np.int64),
  )
