"""Base class of stores: users in groups, each with rows of arrays.

A store is a folder with files of rows, and

    user_offsets.npy     int64 [users + 1]: user i has the rows from
                         user_offsets[i] to user_offsets[i + 1]
    user_ids.bin         the users' names in UTF-8, concatenated
    user_id_offsets.npy  int64 [users + 1]: where each name begins
    manifest.json        origin of the data, counts, and sha256 of all files
                         and of itself

Users are ordered by group (private, public, validation, test) and within a
group by name. Opening a store reads the manifest and the index of users, and
compares their checksums. Rows are memory-mapped. This module only needs numpy.
"""

import abc
import bisect
import hashlib
import itertools
import json
import math
import mmap
import os
import pathlib
from typing import Any, NoReturn, Union

from data_prep import errors
import numpy as np
from pda_fed.common import seal
from pda_fed.common import validate

USER_OFFSETS = 'user_offsets.npy'
USER_IDS = 'user_ids.bin'
USER_ID_OFFSETS = 'user_id_offsets.npy'
INDEX_FILES = (USER_OFFSETS, USER_IDS, USER_ID_OFFSETS)
OFFSET_DTYPE = np.dtype('<i8')
MANIFEST = 'manifest.json'

_CHUNK = 2**22


def file_sha256(path: os.PathLike | str) -> str:
  """Returns the sha256 of a file, read in chunks."""
  digest = hashlib.sha256()
  with open(path, 'rb') as f:
    while chunk := f.read(_CHUNK):
      digest.update(chunk)
  return digest.hexdigest()


class UserStore(abc.ABC):
  """Reads the users of a store. Subclasses read their rows.

  Example: see `TokenStore` and `ExampleStore`.

  Attributes:
    path: Folder of the store.
    manifest: Content of manifest.json.
  """

  FORMAT: str  # Value of `format` in the manifest.
  VERSION: int
  UNIT: str  # Name of a row, in the plural.
  ROW_FILES: tuple[str, ...]  # The only files that are not read on opening.
  DATA_FILES: tuple[str, ...]

  def __init__(self, path: os.PathLike | str):
    """Opens a store, in milliseconds for a hundred thousand users.

    Args:
      path: Folder of the store.

    Raises:
      StoreError: If there is no finished store, a file is missing or has
        another size than in the manifest, or the manifest, the index of users
        or the vocabulary was changed. `verify` checks the rows as well.
    """
    self.path = pathlib.Path(path)
    self.manifest = self._check_manifest(load_manifest(path))
    for name, entry in self.manifest['files'].items():
      file = self.path / name
      size = file.stat().st_size if file.is_file() else None
      if size != entry['bytes']:
        found = 'none' if size is None else size
        self._fail(name, f'must have {entry["bytes"]} bytes. Found {found}.')
      if name not in self.ROW_FILES:
        self._verify_file(name)
    self._names: dict[str, tuple[str, ...]] = {}
    num_offsets = (self.manifest['users'] + 1,)
    self._ids = (self.path / USER_IDS).read_bytes()
    self._offsets, self._id_offsets = (
      self._map(name, OFFSET_DTYPE, num_offsets)
      for name in (USER_OFFSETS, USER_ID_OFFSETS)
    )

  @property
  @abc.abstractmethod
  def row_shapes(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
    """Shape and dtype of a row, for each array that `read` returns."""

  @abc.abstractmethod
  def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
    """Returns rows in the form that models take.

    Args:
      start: First row, counted as in `row_offsets`.
      stop: One past the last row.

    Returns:
      Arrays of `stop - start` rows, with the shapes of `row_shapes`.
    """

  def _fail(self, name: str, what: str) -> NoReturn:
    raise errors.StoreError(
      f'{name} of the store {self.path} {what} Prepare the data again.'
    )

  def _check_manifest(self, manifest: dict[str, Any]) -> dict[str, Any]:
    path = self.path / MANIFEST
    if manifest.get('format') != self.FORMAT:
      raise errors.StoreError(f'{path} is not the manifest of a {self.FORMAT}.')
    if manifest.get('version') != self.VERSION:
      raise errors.StoreError(
        f'{self.path} is a {self.FORMAT} of version'
        f' {manifest.get("version")!r}; this program reads version'
        f' {self.VERSION}. Prepare the data again.'
      )
    try:
      return seal.unseal(manifest)
    except ValueError as e:
      raise errors.StoreError(
        f'{path} is damaged: {e}. Prepare the data again.'
      ) from e

  def _map(
    self, name: str, dtype: np.dtype, shape: tuple[int, ...]
  ) -> np.ndarray:
    """Maps an array by its shape in the manifest, not in its own header."""
    count = math.prod(shape)
    start = self.manifest['files'][name]['bytes'] - count * dtype.itemsize
    with open(self.path / name, 'rb') as f:
      content = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(content, dtype, count, start).reshape(shape)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({str(self.path)!r})'

  @property
  def groups(self) -> tuple[str, ...]:
    """The names of the groups."""
    return tuple(self.manifest['groups'])

  def _range(self, group: str) -> range:
    validate.one_of(self.groups, group=group)
    entry = self.manifest['groups'][group]
    return range(entry['first_user'], entry['first_user'] + entry['users'])

  def users(self, group: str) -> tuple[str, ...]:
    """Returns the names of a group's users, ascending.

    Args:
      group: One of `groups`.

    Raises:
      ValueError: If there is no such group.
    """
    if group not in self._names:
      users = self._range(group)
      ends = self._id_offsets[users.start : users.stop + 1].tolist()
      self._names[group] = tuple(
        self._ids[start:stop].decode()
        for start, stop in itertools.pairwise(ends)
      )
    return self._names[group]

  def num_examples(self, group: str) -> np.ndarray:
    """Returns the number of rows of each of a group's users."""
    return np.diff(self.row_offsets(group))

  def row_offsets(self, group: str) -> np.ndarray:
    """Returns the offsets of the rows of a group's users.

    Args:
      group: One of `groups`.

    Returns:
      One more number than there are users: user i of the group has the rows
      from number i to number i + 1.
    """
    users = self._range(group)
    return self._offsets[users.start : users.stop + 1]

  def examples(
    self, user: Union[str, tuple[str, int]]
  ) -> tuple[np.ndarray, ...]:
    """Returns a user's rows, in the form of `read`.

    Args:
      user: A name from `users`, or (group, i) for user i of a group, which is
        faster.

    Raises:
      KeyError: If there is no user with this name.
      IndexError: If the group has fewer users.
    """
    if isinstance(user, str):
      index = self._find(user)
    else:
      group, i = user
      index = self._range(group)[i]
    return self.read(*self._offsets[index : index + 2])

  def _find(self, name: str) -> int:
    for group in self.groups:
      users = self.users(group)
      i = bisect.bisect_left(users, name)
      if i < len(users) and users[i] == name:
        return self._range(group)[i]
    raise KeyError(f'{self.path} has no user {name!r}.')

  def verify(self) -> None:
    """Reads all files and compares them with the manifest.

    Raises:
      StoreError: If a file was changed since the store was written.
    """
    for name in self.manifest['files']:
      self._verify_file(name)

  def _verify_file(self, name: str) -> None:
    try:
      digest = file_sha256(self.path / name)
    except OSError as e:
      self._fail(name, f'cannot be read: {e}.')
    if digest != self.manifest['files'][name]['sha256']:
      self._fail(
        name, 'does not have the sha256 of the manifest: it was changed.'
      )


def load_manifest(path: os.PathLike | str) -> dict[str, Any]:
  """Reads the manifest of a store without checking its entries.

  Raises:
    StoreError: If there is no manifest.
  """
  file = pathlib.Path(path) / MANIFEST
  try:
    manifest = json.loads(file.read_text(encoding='utf-8'))
  except (FileNotFoundError, NotADirectoryError) as e:
    raise errors.StoreError(
      f'{path} is neither a token store nor an example store: it has no'
      f' {MANIFEST}. Write a store with scripts/prepare_users.'
    ) from e
  except (OSError, RecursionError, ValueError) as e:
    raise errors.StoreError(f'{file} is damaged: {e}.') from e
  if not isinstance(manifest, dict):
    raise errors.StoreError(f'{file} is not the manifest of a store.')
  return manifest
