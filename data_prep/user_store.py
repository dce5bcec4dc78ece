"""Base class of stores: users in groups, each with rows of arrays.

A store is a folder with arrays of rows, and

    user_offsets.npy     int64 [users + 1]: user i has the rows from
                         user_offsets[i] to user_offsets[i + 1]
    user_ids.bin         the users' names in UTF-8, concatenated
    user_id_offsets.npy  int64 [users + 1]: where each name begins
    manifest.json        origin of the data, counts, and sha256 of all files
                         and of itself

Users are ordered by group (private, public, validation, test) and within a
group by name. Opening a store of any size only reads the manifest and checks
the offsets; everything else is memory-mapped. This module only needs numpy.
"""

import abc
import bisect
from collections.abc import Sequence
import hashlib
import json
import os
import pathlib
import tokenize
from typing import Any, NoReturn, Union

from data_prep import assignment
from data_prep import errors
import numpy as np
from pda_fed.common import seal
from pda_fed.common import validate

USER_OFFSETS = 'user_offsets.npy'
USER_IDS = 'user_ids.bin'
USER_ID_OFFSETS = 'user_id_offsets.npy'
MANIFEST = 'manifest.json'
INDEX_FILES = (USER_OFFSETS, USER_IDS, USER_ID_OFFSETS)

_CHUNK = 2**22
# Errors of numpy, which parses the header of a file as a Python literal.
_NPY_ERRORS = (
  EOFError,
  MemoryError,
  OSError,
  OverflowError,
  RecursionError,
  SyntaxError,
  TypeError,
  ValueError,
  tokenize.TokenError,
)


def file_sha256(path: os.PathLike | str) -> str:
  """Returns the sha256 of a file, read in chunks."""
  digest = hashlib.sha256()
  with open(path, 'rb') as f:
    while chunk := f.read(_CHUNK):
      digest.update(chunk)
  return digest.hexdigest()


class _Names(Sequence):
  """The names of a range of users, decoded on access."""

  def __init__(self, text: np.ndarray, offsets: np.ndarray, users: range):
    self._text = text
    self._offsets = offsets
    self._users = users

  def __len__(self) -> int:
    return len(self._users)

  def __getitem__(self, index):
    if isinstance(index, slice):
      return _Names(self._text, self._offsets, self._users[index])
    user = self._users[index]
    start, stop = self._offsets[user : user + 2]
    name = self._text[start:stop].tobytes()
    try:
      return name.decode()
    except UnicodeDecodeError as e:
      raise errors.StoreError(
        f'{USER_IDS} is damaged: the name of user {user} must be UTF-8. Found'
        f' {name!r}. Prepare the data again.'
      ) from e

  def __repr__(self) -> str:
    return f'<names of {len(self)} users>'


class UserStore(abc.ABC):
  """Reads the users of a store. Subclasses read their rows.

  Example: see `TokenStore` and `ExampleStore`.

  Attributes:
    path: Folder of the store.
    manifest: Content of manifest.json.
  """

  FORMAT: str  # Value of `format` in the manifest.
  KIND: str  # Name in messages, with an article.
  VERSION: int
  UNIT: str  # Name of a row, in the plural.
  DATA_FILES: tuple[str, ...]

  def __init__(self, path: os.PathLike | str):
    """Opens a store, in milliseconds for any size.

    Args:
      path: Folder of the store.

    Raises:
      StoreError: If there is no finished store, or a file is missing, has
        another size than in the manifest, or contradicts another file.
    """
    self.path = pathlib.Path(path)
    self.manifest = self._read_manifest()
    for name, entry in self.manifest['files'].items():
      file = self.path / name
      size = file.stat().st_size if file.is_file() else None
      if size != entry['bytes']:
        found = 'none' if size is None else size
        self._fail(name, f'must have {entry["bytes"]} bytes. Found {found}.')
    num_rows = self._map_rows()
    users = self.manifest['users']
    self._ids = self._map(USER_IDS)
    self._offsets = self._map_offsets(USER_OFFSETS, users, num_rows)
    self._id_offsets = self._map_offsets(USER_ID_OFFSETS, users, self._ids.size)

  @abc.abstractmethod
  def _map_rows(self) -> int:
    """Maps the arrays of rows; returns the number of rows."""

  @abc.abstractmethod
  def _check_kind(self, manifest: dict[str, Any]) -> None:
    """Raises if the manifest lacks an entry of this kind of store."""

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

  def _map(self, name: str) -> np.ndarray:
    path = self.path / name
    try:
      if path.suffix == '.npy':
        # Not np.load, which treats a file with another start as a zip file.
        array = np.lib.format.open_memmap(path, mode='r')
      else:
        array = np.memmap(path, np.uint8, 'r')
    except _NPY_ERRORS as e:
      self._fail(name, f'cannot be read: {e}.')
    # A plain array: slices of np.memmap are several times slower.
    return np.asarray(array)

  def _map_offsets(self, name: str, users: int, end: int) -> np.ndarray:
    """Returns valid offsets: invalid ones would mix up users' rows."""
    offsets = self._map(name)
    if offsets.dtype != np.dtype('<i8') or offsets.shape != (users + 1,):
      self._fail(
        name,
        f'must be int64 [{users + 1}]. Found {offsets.dtype}'
        f' {list(offsets.shape)}.',
      )
    if (offsets[0], offsets[-1]) != (0, end):
      self._fail(
        name,
        f'must run from 0 to {end}. Found {offsets[0]} to {offsets[-1]}.',
      )
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
      i = int(falls[0])
      self._fail(
        name,
        f'must not decrease. Found {offsets[i]}, then {offsets[i + 1]}, at'
        f' {i}.',
      )
    return offsets

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

  def users(self, group: str) -> Sequence[str]:
    """Returns the names of a group's users, ascending.

    Args:
      group: One of `groups`.

    Raises:
      ValueError: If there is no such group.
    """
    return _Names(self._ids, self._id_offsets, self._range(group))

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
    return self.read(*self._rows(user))

  def _rows(self, user: Union[str, tuple[str, int]]) -> np.ndarray:
    if isinstance(user, str):
      index = self._find(user)
    else:
      group, i = user
      index = self._range(group)[i]
    return self._offsets[index : index + 2]

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
    for name, entry in self.manifest['files'].items():
      try:
        digest = file_sha256(self.path / name)
      except OSError as e:
        self._fail(name, f'cannot be read: {e}.')
      if digest != entry['sha256']:
        self._fail(
          name,
          'does not have the sha256 of the manifest: it was changed.',
        )

  def _read_manifest(self) -> dict[str, Any]:
    manifest = load_manifest(self.path)
    path = self.path / MANIFEST
    if manifest.get('format') != self.FORMAT:
      raise errors.StoreError(f'{path} is not the manifest of {self.KIND}.')
    version = manifest.get('version')
    if version != self.VERSION:
      raise errors.StoreError(
        f'{self.path} is {self.KIND} of version {version!r}; this'
        f' program reads version {self.VERSION}. Prepare the data again.'
      )
    try:
      self._check_manifest(manifest)
      return seal.unseal(manifest)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
      raise errors.StoreError(
        f'{path} is damaged: {e!r}. Prepare the data again.'
      ) from e

  def _check_manifest(self, manifest: dict[str, Any]) -> None:
    """Raises if an entry is missing, or entries contradict each other."""
    # Any error that Python raises for a value of the wrong type is fine.
    self._check_kind(manifest)
    for name in self.DATA_FILES:
      validate.integers(0, bytes=manifest['files'][name]['bytes'])
      str.encode(manifest['files'][name]['sha256'])
    validate.integers(0, users=manifest['users'])
    validate.one_of((assignment.GROUPS,), groups=tuple(manifest['groups']))
    end = 0
    for name, group in manifest['groups'].items():
      validate.integers(0, **{f'users of {name}': group['users']})
      validate.one_of((end,), **{f'first_user of {name}': group['first_user']})
      validate.integers(0, **group[f'{self.UNIT}_per_user'])
      end += group['users']
    validate.one_of((end,), users=manifest['users'])


def load_manifest(path: os.PathLike | str) -> dict[str, Any]:
  """Reads the manifest of a store without checking its entries.

  Args:
    path: Folder of the store.

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
