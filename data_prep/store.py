"""The token store: sentences as token ids, by user, memory-mapped.

A folder with

    tokens.npy           uint16 [sentences, 21]: bos, then 20 tokens, padded
    user_offsets.npy     int64 [users + 1]: sentences of user i are rows
                         user_offsets[i] to user_offsets[i + 1]
    user_ids.bin         the users' names in UTF-8, one after the other
    user_id_offsets.npy  int64 [users + 1]: where each name begins in it
    vocabulary.txt       a word a line; the word on line i has the id i
    manifest.json        where the data come from, counts, sha256 of all files

Users are ordered by group (private, public, validation, test) and within a
group by name. Opening reads the manifest and maps the rest, whatever the size.
This module needs numpy and nothing else.
"""

import bisect
from collections.abc import Sequence
import functools
import hashlib
import json
import os
import pathlib
from typing import Any, Union

from data_prep import errors
import numpy as np
from pda_fed import _validate
from pda_fed import models

FORMAT = 'pda_fed token store'
VERSION = 1

TOKENS = 'tokens.npy'
USER_OFFSETS = 'user_offsets.npy'
USER_IDS = 'user_ids.bin'
USER_ID_OFFSETS = 'user_id_offsets.npy'
VOCABULARY = 'vocabulary.txt'
MANIFEST = 'manifest.json'
DATA_FILES = (TOKENS, USER_OFFSETS, USER_IDS, USER_ID_OFFSETS, VOCABULARY)

_CHUNK = 2**22


def file_sha256(path: os.PathLike) -> str:
  """Returns the sha256 of a file, read in pieces."""
  digest = hashlib.sha256()
  with open(path, 'rb') as f:
    while chunk := f.read(_CHUNK):
      digest.update(chunk)
  return digest.hexdigest()


class _Names(Sequence):
  """The names of a range of users, decoded one by one."""

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
    return self._text[start:stop].tobytes().decode()

  def __repr__(self) -> str:
    return f'<names of {len(self)} users>'


class TokenStore:
  """Reads a token store.

  Attributes:
    path: Its folder.
    manifest: What manifest.json says.
    spec: The ids of the special tokens, and the number of words.
  """

  def __init__(self, path: os.PathLike):
    """Opens a store, in milliseconds whatever its size.

    Args:
      path: Its folder.

    Raises:
      StoreError: If there is no finished store, or a file of it is missing or
        not as large as the manifest says.
    """
    self.path = pathlib.Path(path)
    self.manifest = _read_manifest(self.path)
    self.spec = models.RecurrentSpec(
      num_words=self.manifest['vocabulary']['size']
    )
    for name, entry in self.manifest['files'].items():
      file = self.path / name
      size = file.stat().st_size if file.is_file() else None
      if size != entry['bytes']:
        found = 'Found none.' if size is None else f'Found {size}.'
        raise errors.StoreError(
          f'{name} of the store {self.path} must have {entry["bytes"]} bytes.'
          f' {found} Prepare the data again.'
        )
    self._tokens = self._map(TOKENS)
    self._offsets = self._map(USER_OFFSETS)
    self._id_offsets = self._map(USER_ID_OFFSETS)
    self._ids = np.asarray(np.memmap(self.path / USER_IDS, np.uint8, 'r'))

  def _map(self, name: str) -> np.ndarray:
    # As a plain array: slices of np.memmap are several times slower.
    return np.asarray(np.load(self.path / name, mmap_mode='r'))

  def __repr__(self) -> str:
    return f'TokenStore({str(self.path)!r})'

  @property
  def groups(self) -> tuple[str, ...]:
    """The names of the groups."""
    return tuple(self.manifest['groups'])

  @functools.cached_property
  def vocabulary(self) -> tuple[str, ...]:
    """The words; the word at i has the token id i + 1."""
    text = (self.path / VOCABULARY).read_text(encoding='utf-8')
    return tuple(text.removesuffix('\n').split('\n'))

  @property
  def tokens(self) -> np.ndarray:
    """All sentences, [sentences, 21], read-only."""
    return self._tokens

  def _range(self, group: str) -> range:
    _validate.one_of(self.groups, group=group)
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

  def num_sentences(self, group: str) -> np.ndarray:
    """Returns the number of sentences of each of a group's users."""
    users = self._range(group)
    return np.diff(self._offsets[users.start : users.stop + 1])

  def row_offsets(self, group: str) -> np.ndarray:
    """Returns where the sentences of a group's users begin in `tokens`.

    Args:
      group: One of `groups`.

    Returns:
      One number more than there are users: user i of the group has the rows
      from the i-th to the next.
    """
    users = self._range(group)
    return self._offsets[users.start : users.stop + 1]

  def sentences(self, user: Union[str, tuple[str, int]]) -> np.ndarray:
    """Returns a user's sentences.

    Args:
      user: A name, as `users` gives it, or (group, i) for the i-th user of a
        group, which is faster.

    Returns:
      Token ids, [sentences, 21], a read-only view of the file.

    Raises:
      KeyError: If there is no user of this name.
      IndexError: If the group has not as many users.
    """
    if isinstance(user, str):
      index = self._find(user)
    else:
      group, i = user
      index = self._range(group)[i]
    start, stop = self._offsets[index : index + 2]
    return self._tokens[start:stop]

  def _find(self, name: str) -> int:
    for group in self.groups:
      users = self.users(group)
      i = bisect.bisect_left(users, name)
      if i < len(users) and users[i] == name:
        return self._range(group)[i]
    raise KeyError(f'{self.path} has no user {name!r}.')

  def decode(self, row: np.ndarray) -> list[str]:
    """Returns a sentence's words, '<oov>' for those out of the vocabulary."""
    words = self.vocabulary
    special = {self.spec.bos, self.spec.eos, self.spec.pad}
    return [
      '<oov>' if token == self.spec.oov else words[token - 1]
      for token in row.tolist()
      if token not in special
    ]

  def verify(self) -> None:
    """Reads all files and compares them with the manifest.

    Raises:
      StoreError: If one was changed since the store was written.
    """
    for name, entry in self.manifest['files'].items():
      if file_sha256(self.path / name) != entry['sha256']:
        raise errors.StoreError(
          f'{name} of the store {self.path} does not have the sha256 of the'
          ' manifest: it was changed or damaged. Prepare the data again.'
        )


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
  try:
    manifest = json.loads((path / MANIFEST).read_text(encoding='utf-8'))
  except (FileNotFoundError, NotADirectoryError) as e:
    raise errors.StoreError(
      f'{path} is no token store: it has no {MANIFEST}. Write one with'
      ' scripts/prepare_stackoverflow.'
    ) from e
  except ValueError as e:
    raise errors.StoreError(f'{path / MANIFEST} is damaged: {e}.') from e
  if not isinstance(manifest, dict) or manifest.get('format') != FORMAT:
    raise errors.StoreError(f'{path / MANIFEST} is not of a token store.')
  if manifest['version'] != VERSION:
    raise errors.StoreError(
      f'{path} is a token store of version {manifest["version"]}; this program'
      f' reads version {VERSION}. Prepare the data again.'
    )
  return manifest


def open_store(path: os.PathLike) -> TokenStore:
  """Opens a token store; see `TokenStore`."""
  return TokenStore(path)
