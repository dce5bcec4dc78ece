"""The token store: sentences as token ids, by user, memory-mapped.

A folder with

    tokens.npy           uint16 [sentences, 21]: bos, then 20 tokens, padded
    user_offsets.npy     int64 [users + 1]: sentences of user i are rows
                         user_offsets[i] to user_offsets[i + 1]
    user_ids.bin         the users' names in UTF-8, one after the other
    user_id_offsets.npy  int64 [users + 1]: where each name begins in it
    vocabulary.txt       a word a line; the word on line i has the id i
    manifest.json        where the data come from, counts, sha256 of all files
                         and of itself

Users are ordered by group (private, public, validation, test) and within a
group by name. Opening reads the manifest, checks the offsets and maps the rest,
whatever the size.
This module needs numpy and nothing else.
"""

import bisect
from collections.abc import Sequence
import functools
import hashlib
import json
import os
import pathlib
import tokenize
from typing import Any, NoReturn, Union

from data_prep import assignment
from data_prep import encoding
from data_prep import errors
import numpy as np
from pda_fed import models
from pda_fed.common import seal
from pda_fed.common import validate

FORMAT = 'pda_fed token store'
VERSION = 2
_FIRST_SEALED_VERSION = 2  # Before it, manifests had no checksum.

TOKENS = 'tokens.npy'
USER_OFFSETS = 'user_offsets.npy'
USER_IDS = 'user_ids.bin'
USER_ID_OFFSETS = 'user_id_offsets.npy'
VOCABULARY = 'vocabulary.txt'
MANIFEST = 'manifest.json'
DATA_FILES = (TOKENS, USER_OFFSETS, USER_IDS, USER_ID_OFFSETS, VOCABULARY)

_CHUNK = 2**22
# numpy parses the header of a file as a literal of Python.
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


class TokenStore:
  """Reads a token store.

  Example:

  ```
  store = TokenStore('data/synthetic')
  name = store.users('private')[0]
  store.decode(store.sentences(name)[0])  # ['<bos>', 'the', ...]
  ```

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
      StoreError: If there is no finished store, or a file of it is missing,
        not as large as the manifest says, or contradicts another.
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
        found = 'none' if size is None else size
        self._fail(name, f'must have {entry["bytes"]} bytes. Found {found}.')
    users = self.manifest['users']
    self._tokens = self._map(TOKENS)
    row = (encoding.ROW_LENGTH,)
    if (
      self._tokens.shape[1:] != row
      or self._tokens.dtype != encoding.TOKEN_DTYPE
      or not self._tokens.flags.c_contiguous
    ):
      self._fail(
        TOKENS,
        f'must be {encoding.TOKEN_DTYPE} [sentences, {encoding.ROW_LENGTH}].'
        f' Found {self._tokens.dtype} {list(self._tokens.shape)}.',
      )
    self._ids = self._map(USER_IDS)
    self._offsets = self._map_offsets(USER_OFFSETS, users, len(self._tokens))
    self._id_offsets = self._map_offsets(USER_ID_OFFSETS, users, self._ids.size)

  def _fail(self, name: str, what: str) -> NoReturn:
    raise errors.StoreError(
      f'{name} of the store {self.path} {what} Prepare the data again.'
    )

  def _map(self, name: str) -> np.ndarray:
    path = self.path / name
    try:
      if path.suffix == '.npy':
        # Not np.load, which takes a file that begins otherwise for a zip.
        array = np.lib.format.open_memmap(path, mode='r')
      else:
        array = np.memmap(path, np.uint8, 'r')
    except _NPY_ERRORS as e:
      self._fail(name, f'cannot be read: {e}.')
    # As a plain array: slices of np.memmap are several times slower.
    return np.asarray(array)

  def _map_offsets(self, name: str, users: int, end: int) -> np.ndarray:
    """Returns offsets that are sound: else they show others' sentences."""
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
        f'must go from 0 to {end}. Found {offsets[0]} to {offsets[-1]}.',
      )
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
      i = int(falls[0])
      self._fail(
        name,
        f'must not fall. Found {offsets[i]}, then {offsets[i + 1]}, at {i}.',
      )
    return offsets

  def __repr__(self) -> str:
    return f'TokenStore({str(self.path)!r})'

  @property
  def groups(self) -> tuple[str, ...]:
    """The names of the groups."""
    return tuple(self.manifest['groups'])

  @functools.cached_property
  def vocabulary(self) -> tuple[str, ...]:
    """The words; the word at i has the token id i + 1."""
    try:
      text = (self.path / VOCABULARY).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as e:
      self._fail(VOCABULARY, f'cannot be read: {e}.')
    words = tuple(text.removesuffix('\n').split('\n'))
    if len(words) != self.spec.num_words:
      self._fail(
        VOCABULARY,
        f'must have {self.spec.num_words} words. Found {len(words)}.',
      )
    return words

  @property
  def tokens(self) -> np.ndarray:
    """All sentences, [sentences, 21], read-only."""
    return self._tokens

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
    """Returns a sentence's words, '<oov>' for those out of the vocabulary.

    Args:
      row: Token ids, as `sentences` gives them.

    Raises:
      StoreError: If there is no such token.
    """
    words = self.vocabulary
    special = {self.spec.bos, self.spec.eos, self.spec.pad}
    tokens = [token for token in row.tolist() if token not in special]
    last = self.spec.oov  # The special tokens aside, the largest id.
    for token in tokens:
      if not 0 < token <= last:
        self._fail(TOKENS, f'must hold ids in [1, {last}]. Found {token}.')
    return ['<oov>' if t == last else words[t - 1] for t in tokens]

  def verify(self) -> None:
    """Reads all files and compares them with the manifest.

    Raises:
      StoreError: If one was changed since the store was written.
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


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
  try:
    manifest = json.loads((path / MANIFEST).read_text(encoding='utf-8'))
  except (FileNotFoundError, NotADirectoryError) as e:
    raise errors.StoreError(
      f'{path} is no token store: it has no {MANIFEST}. Write one with'
      ' scripts/prepare_stackoverflow.'
    ) from e
  except (OSError, RecursionError, ValueError) as e:
    raise errors.StoreError(f'{path / MANIFEST} is damaged: {e}.') from e
  if not isinstance(manifest, dict) or manifest.get('format') != FORMAT:
    raise errors.StoreError(f'{path / MANIFEST} is not of a token store.')
  version = manifest.get('version')
  if version not in range(1, VERSION + 1):
    raise errors.StoreError(
      f'{path} is a token store of version {version!r}; this program reads'
      f' versions up to {VERSION}. Prepare the data again.'
    )
  try:
    _check_manifest(manifest)
    return seal.unseal(manifest, required=version >= _FIRST_SEALED_VERSION)
  except (AttributeError, KeyError, TypeError, ValueError) as e:
    raise errors.StoreError(
      f'{path / MANIFEST} is damaged: {e!r}. Prepare the data again.'
    ) from e


def _check_manifest(manifest: dict[str, Any]) -> None:
  """Raises unless what is read from a manifest is there and fits together."""
  # Each of the errors that Python has for a value of the wrong kind will do.
  models.RecurrentSpec(num_words=manifest['vocabulary']['size'])
  for name in DATA_FILES:
    validate.integers(0, bytes=manifest['files'][name]['bytes'])
    str.encode(manifest['files'][name]['sha256'])
  validate.integers(0, users=manifest['users'])
  validate.one_of((assignment.GROUPS,), groups=tuple(manifest['groups']))
  end = 0
  for name, group in manifest['groups'].items():
    validate.integers(0, **{f'users of {name}': group['users']})
    validate.one_of((end,), **{f'first_user of {name}': group['first_user']})
    validate.integers(0, **group['sentences_per_user'])
    end += group['users']
  validate.one_of((end,), users=manifest['users'])


def open_store(path: os.PathLike) -> TokenStore:
  """Opens a token store; see `TokenStore`.

  Example:

  ```
  store = open_store('data/synthetic')
  store.users('private')[0]
  ```

  Args:
    path: The folder that `prepare` wrote.

  Returns:
    The store; nothing is read before it is asked for.

  Raises:
    StoreError: If it is no store, or a damaged one.
  """
  return TokenStore(path)
