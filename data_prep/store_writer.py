"""Writes the files of stores."""

from collections.abc import Iterable, Mapping
import json
import os
import pathlib
import shutil
import struct
from typing import Any

from data_prep import assignment
from data_prep import encoding
from data_prep import errors
from data_prep import store
from data_prep import user_store
import numpy as np
from pda_fed.common import seal

_HEADER_SIZE = 128  # For tokens.npy; fits any number of rows.
_QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)


def _npy_header(rows: int) -> bytes:
  """Returns a header of constant size: the rows are only counted later."""
  text = (
    f"{{'descr': '{encoding.TOKEN_DTYPE.str}', 'fortran_order': False,"
    f" 'shape': ({rows}, {encoding.ROW_LENGTH}), }}"
  ).encode()
  prefix = b'\x93NUMPY\x01\x00'
  size = _HEADER_SIZE - len(prefix) - 2
  return prefix + struct.pack('<H', size) + text.ljust(size - 1) + b'\n'


def check_space(folder: pathlib.Path, needed: int) -> None:
  """Raises StoreError unless the disk has room for a store.

  Args:
    folder: The staging folder of the store.
    needed: Number of bytes.
  """
  free = shutil.disk_usage(folder).free
  if needed > free:
    # The folder that the store will be in; the staging folder is removed.
    disk = folder.parent.parent
    raise errors.StoreError(
      f'The store needs {needed / 1e6:,.1f} MB, but the disk of {disk} only'
      f' has {free / 1e6:,.1f} MB left.'
    )


class UserWriter:
  """Collects users, then writes the index and the manifest."""

  def __init__(
    self, folder: os.PathLike | str, kind: type[user_store.UserStore]
  ):
    self._folder = pathlib.Path(folder)
    self._kind = kind
    self._counts: list[np.ndarray] = []
    self._names: list[str] = []
    self._groups: list[str] = []

  def add_users(
    self, group: str, names: Iterable[str], counts: np.ndarray
  ) -> None:
    """Appends users of a group.

    Args:
      group: The group. Groups must come in the order of `assignment.GROUPS`.
      names: The users' names, ascending within a group.
      counts: Number of rows of each user.
    """
    names = list(names)
    self._names += names
    self._groups += [group] * len(names)
    self._counts.append(counts)

  def names(self, group: str) -> list[str]:
    """Returns the names of a group's users so far."""
    return [
      name
      for name, of in zip(self._names, self._groups, strict=True)
      if of == group
    ]

  @property
  def num_rows(self) -> int:
    """Number of rows of all users so far."""
    return int(sum(counts.sum() for counts in self._counts))

  def write_index(self, details: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the index of users and the manifest.

    Args:
      details: More entries for the manifest.

    Returns:
      The manifest.
    """
    counts = np.concatenate([np.zeros(0, np.int64), *self._counts])
    self._save(store.USER_OFFSETS, np.concatenate([[0], np.cumsum(counts)]))
    encoded = [name.encode() for name in self._names]
    lengths = np.array([len(name) for name in encoded], np.int64)
    self._save(store.USER_ID_OFFSETS, np.concatenate([[0], np.cumsum(lengths)]))
    (self._folder / store.USER_IDS).write_bytes(b''.join(encoded))
    manifest = {
      'format': self._kind.FORMAT,
      'version': self._kind.VERSION,
      self._kind.UNIT: self.num_rows,
      'users': len(self._names),
      'groups': self._describe_groups(counts),
      **details,
      'files': {
        name: {
          'bytes': (self._folder / name).stat().st_size,
          'sha256': store.file_sha256(self._folder / name),
        }
        for name in self._kind.DATA_FILES
      },
    }
    # Last: without a manifest, the folder is not a store.
    text = json.dumps(seal.seal(manifest), indent=2, ensure_ascii=False)
    (self._folder / store.MANIFEST).write_text(f'{text}\n', encoding='utf-8')
    return manifest

  def _save(self, name: str, array: np.ndarray) -> None:
    np.save(self._folder / name, array.astype('<i8'))

  def _describe_groups(self, counts: np.ndarray) -> dict[str, Any]:
    groups = np.array([assignment.GROUPS.index(g) for g in self._groups], int)
    return {
      name: self._describe_group(counts, np.flatnonzero(groups == i), first)
      for i, name in enumerate(assignment.GROUPS)
      for first in [int((groups < i).sum())]
    }

  def _describe_group(
    self, counts: np.ndarray, users: np.ndarray, first: int
  ) -> dict[str, Any]:
    sizes = counts[users]
    quantiles = (
      np.quantile(sizes, _QUANTILES, method='inverted_cdf').tolist()
      if users.size
      else []
    )
    return {
      'first_user': first,
      'users': int(users.size),
      self._kind.UNIT: int(sizes.sum()),
      f'{self._kind.UNIT}_per_user': dict(
        zip(map(str, _QUANTILES), quantiles, strict=False)
      ),
    }


class StoreWriter(UserWriter):
  """Writes users and their sentences, then the index and the manifest.

  A context manager that closes the file of tokens.
  """

  def __init__(self, folder: os.PathLike | str):
    super().__init__(folder, store.TokenStore)
    self._tokens = open(self._folder / store.TOKENS, 'wb')
    self._tokens.write(_npy_header(0))

  def __enter__(self) -> 'StoreWriter':
    return self

  def __exit__(self, *exception) -> None:
    self._tokens.close()

  def add(
    self, group: str, names: Iterable[str], counts: np.ndarray, rows: np.ndarray
  ) -> None:
    """Appends users of a group.

    Args:
      group: The users' group.
      names: The users' names, ascending within a group.
      counts: Number of sentences of each user.
      rows: The users' sentences, concatenated.
    """
    self._tokens.write(rows.tobytes())
    self.add_users(group, names, counts)

  def finish(
    self, words: Iterable[str], details: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Writes the index, the vocabulary and the manifest.

    Args:
      words: The vocabulary.
      details: More entries for the manifest.

    Returns:
      The manifest.
    """
    self._tokens.seek(0)
    self._tokens.write(_npy_header(self.num_rows))
    self._tokens.close()
    text = ''.join(f'{word}\n' for word in words)
    (self._folder / store.VOCABULARY).write_text(text, encoding='utf-8')
    return self.write_index(details)
