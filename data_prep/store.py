"""The token store: sentences as token ids, by user, memory-mapped.

A folder with the files of `data_prep.user_store`, and

    tokens.npy           uint16 [sentences, 21]: bos, then 20 tokens, padded
    vocabulary.txt       one word per line; the word on line i has the id i

This module only needs numpy.
"""

import functools
import os
from typing import Any, Union

from data_prep import encoding
from data_prep import example_store
from data_prep import user_store
import numpy as np
from pda_fed import models

FORMAT = 'pda_fed token store'
VERSION = 2

TOKENS = 'tokens.npy'
USER_OFFSETS = user_store.USER_OFFSETS
USER_IDS = user_store.USER_IDS
USER_ID_OFFSETS = user_store.USER_ID_OFFSETS
VOCABULARY = 'vocabulary.txt'
MANIFEST = user_store.MANIFEST
DATA_FILES = (TOKENS, *user_store.INDEX_FILES, VOCABULARY)

UserStore = user_store.UserStore
file_sha256 = user_store.file_sha256


class TokenStore(user_store.UserStore):
  """Reads a token store.

  Example:

  ```
  store = TokenStore('data/synthetic')
  name = store.users('private')[0]
  store.decode(store.sentences(name)[0])  # ['<bos>', 'the', ...]
  ```

  Attributes:
    path: Folder of the store.
    manifest: Content of manifest.json.
    spec: The ids of the special tokens, and the number of words.
  """

  FORMAT = FORMAT
  KIND = 'a token store'
  VERSION = VERSION
  UNIT = 'sentences'
  DATA_FILES = DATA_FILES

  def _check_kind(self, manifest: dict[str, Any]) -> None:
    size = manifest['vocabulary']['size']
    self.spec = models.RecurrentSpec(num_words=size)

  def _map_rows(self) -> int:
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
    return len(self._tokens)

  @property
  def row_shapes(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
    return (((encoding.ROW_LENGTH,), encoding.TOKEN_DTYPE),)

  def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
    return (self._tokens[start:stop],)

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

  def num_sentences(self, group: str) -> np.ndarray:
    """Returns the number of sentences of each of a group's users."""
    return self.num_examples(group)

  def sentences(self, user: Union[str, tuple[str, int]]) -> np.ndarray:
    """Returns a user's sentences.

    Args:
      user: See `examples`.

    Returns:
      Token ids, [sentences, 21], a read-only view of the file.

    Raises:
      KeyError: If there is no user with this name.
      IndexError: If the group has fewer users.
    """
    return self.examples(user)[0]

  def decode(self, row: np.ndarray) -> list[str]:
    """Returns a sentence's words, with '<oov>' for unknown words.

    Args:
      row: Token ids: a row of `sentences`.

    Raises:
      StoreError: If a token id is invalid.
    """
    words = self.vocabulary
    special = {self.spec.bos, self.spec.eos, self.spec.pad}
    tokens = [token for token in row.tolist() if token not in special]
    last = self.spec.oov  # The largest id that is not bos, eos or pad.
    for token in tokens:
      if not 0 < token <= last:
        self._fail(TOKENS, f'must hold ids in [1, {last}]. Found {token}.')
    return ['<oov>' if t == last else words[t - 1] for t in tokens]


def open_store(path: os.PathLike | str) -> user_store.UserStore:
  """Opens a token store or an example store.

  Example:

  ```
  store = open_store('data/synthetic')
  store.users('private')[0]
  ```

  Args:
    path: The folder that `prepare` wrote.

  Returns:
    A `TokenStore` or an `ExampleStore`, depending on the manifest. Rows are
    only read on access.

  Raises:
    StoreError: If the folder is not a store, or is damaged.
  """
  has_examples = user_store.load_manifest(path).get('format') == (
    example_store.FORMAT
  )
  return (example_store.ExampleStore if has_examples else TokenStore)(path)
