"""Writes the files of stores."""

from collections.abc import Iterable, Mapping
import json
import os
import pathlib
import shutil
from typing import Any

from data_prep import assignment
from data_prep import encoding
from data_prep import errors
from data_prep import store
from data_prep import user_store
from data_prep.sources import arrays
import numpy as np
from pda_fed.common import seal
from pda_fed.common import standardization

_QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)


def check_space(folder: pathlib.Path, needed: int) -> None:
  """Raises StoreError unless the staging folder's disk has so many bytes."""
  free = shutil.disk_usage(folder).free
  if needed > free:
    # The folder that the store will be in; the staging folder is removed.
    disk = folder.parent.parent
    raise errors.StoreError(
      f'The store needs {needed / 1e6:,.1f} MB, but the disk of {disk} only'
      f' has {free / 1e6:,.1f} MB left.'
    )


class _UserWriter:
  """Collects users, then writes the index and the manifest.

  Attributes:
    names: The names of each group's users so far, ascending.
  """

  def __init__(
    self, folder: os.PathLike | str, kind: type[user_store.UserStore]
  ):
    self._folder = pathlib.Path(folder)
    self._kind = kind
    self.names: dict[str, list[str]] = {g: [] for g in assignment.GROUPS}
    self._counts = {g: [np.zeros(0, np.int64)] for g in assignment.GROUPS}

  def _add_users(
    self, group: str, names: Iterable[str], counts: np.ndarray
  ) -> None:
    self.names[group] += names
    self._counts[group].append(counts)

  def write_index(self, details: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the index of users and the manifest, which it returns."""
    counts = {g: np.concatenate(of) for g, of in self._counts.items()}
    sizes = np.concatenate(list(counts.values()))
    encoded = [n.encode() for of in self.names.values() for n in of]
    self._save_offsets(user_store.USER_OFFSETS, sizes)
    self._save_offsets(user_store.USER_ID_OFFSETS, list(map(len, encoded)))
    (self._folder / user_store.USER_IDS).write_bytes(b''.join(encoded))
    manifest = {
      'format': self._kind.FORMAT,
      'version': self._kind.VERSION,
      self._kind.UNIT: int(sizes.sum()),
      'users': len(encoded),
      'groups': self._describe_groups(counts),
      **details,
      'files': {
        name: {
          'bytes': (self._folder / name).stat().st_size,
          'sha256': user_store.file_sha256(self._folder / name),
        }
        for name in self._kind.DATA_FILES
      },
    }
    # Last: without a manifest, the folder is not a store.
    text = json.dumps(seal.seal(manifest), indent=2, ensure_ascii=False)
    (self._folder / user_store.MANIFEST).write_text(
      f'{text}\n', encoding='utf-8'
    )
    return manifest

  def _save_offsets(self, name: str, sizes) -> None:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    np.save(self._folder / name, offsets.astype(user_store.OFFSET_DTYPE))

  def _describe_groups(self, counts: dict[str, np.ndarray]) -> dict[str, Any]:
    unit = self._kind.UNIT
    groups: dict[str, Any] = {}
    first = 0
    for group, sizes in counts.items():
      quantiles = {}
      if sizes.size:
        found = np.quantile(sizes, _QUANTILES, method='inverted_cdf').tolist()
        quantiles = dict(zip(map(str, _QUANTILES), found, strict=True))
      groups[group] = {
        'first_user': first,
        'users': sizes.size,
        unit: int(sizes.sum()),
        f'{unit}_per_user': quantiles,
      }
      first += sizes.size
    return groups


class StoreWriter(_UserWriter):
  """Writes users and their sentences, then the index and the manifest.

  A context manager that closes the file of tokens.
  """

  def __init__(self, folder: os.PathLike | str):
    super().__init__(folder, store.TokenStore)
    self._num_rows = 0
    self._tokens = open(self._folder / store.TOKENS, 'wb')
    self._write_header()

  def __enter__(self) -> 'StoreWriter':
    return self

  def __exit__(self, *exception) -> None:
    self._tokens.close()

  def _write_header(self) -> None:
    # Numpy leaves room in it: its size does not depend on the number of rows.
    np.lib.format.write_array_header_1_0(
      self._tokens,
      {
        'descr': encoding.TOKEN_DTYPE.str,
        'fortran_order': False,
        'shape': (self._num_rows, encoding.ROW_LENGTH),
      },
    )

  def add(
    self, group: str, names: Iterable[str], counts: np.ndarray, rows: np.ndarray
  ) -> None:
    """Appends users of a group, ascending by name; groups as in `GROUPS`."""
    self._tokens.write(rows.tobytes())
    self._num_rows += len(rows)
    self._add_users(group, names, counts)

  def finish(
    self, words: Iterable[str], details: Mapping[str, Any]
  ) -> dict[str, Any]:
    """Writes the index, the vocabulary and the manifest.

    Returns:
      The manifest.
    """
    self._tokens.seek(0)
    self._write_header()
    self._tokens.close()
    text = ''.join(f'{word}\n' for word in words)
    (self._folder / store.VOCABULARY).write_text(text, encoding='utf-8')
    return self.write_index(details)


class ExampleWriter(_UserWriter):
  """Writes the examples of all users; `write_index` comes last."""

  def __init__(self, folder: os.PathLike | str):
    super().__init__(folder, store.ExampleStore)

  def write_examples(
    self, source: arrays.ArraySource, plan: assignment.Assignment
  ) -> dict[str, Any]:
    """Writes inputs and classes.

    Returns:
      The manifest's entries on inputs and classes.
    """
    rows = {}
    for name, group in plan.groups.items():
      slices = zip(group.ids, group.start, group.stop, strict=True)
      found = [source.rows(*of_user) for of_user in slices]
      rows[name] = np.concatenate([np.zeros(0, np.int64), *found])
      self._add_users(name, group.names, group.num_sentences)
    order = np.concatenate(list(rows.values()))
    np.save(self._folder / store.X, np.ascontiguousarray(source.x[order]))
    labels = source.y[order].astype(store.LABEL_DTYPE)
    np.save(self._folder / store.Y, labels)
    channels = source.x.shape[-1]
    mean, scale = np.zeros(channels, 'f'), np.ones(channels, 'f')
    if len(rows[assignment.PUBLIC]):
      public = source.x[rows[assignment.PUBLIC]]
      mean, scale = standardization.mean_and_scale(public)
    return {
      'inputs': {
        'shape': list(source.x.shape[1:]),
        'dtype': source.x.dtype.str,
        'mean': mean.tolist(),
        'scale': scale.tolist(),
      },
      'classes': {
        'number': source.num_classes,
        'caveats': list(source.caveats),
      },
    }
