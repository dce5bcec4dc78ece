"""The token store and the example store.

Beside the files of `data_prep.user_store`, a token store has

    tokens.npy           uint16 [sentences, 21]: bos, then 20 tokens, padded
    vocabulary.txt       one word per line; the word on line i has the id i

and an example store, of images or rows of numbers,

    x.npy                [examples, height, width, channels] or [examples,
                         features], with the source's dtype
    y.npy                int32 [examples]: classes

This module only needs numpy.
"""

import os
from typing import Union

from data_prep import encoding
from data_prep import user_store
import numpy as np
from pda_fed import models

TOKENS = 'tokens.npy'
VOCABULARY = 'vocabulary.txt'
X = 'x.npy'
Y = 'y.npy'
LABEL_DTYPE = np.dtype('<i4')
MANIFEST = user_store.MANIFEST

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
    tokens: All sentences, [sentences, 21], read-only.
    vocabulary: The words; the word at i has the token id i + 1.
  """

  FORMAT = 'pda_fed token store'
  VERSION = 2
  UNIT = 'sentences'
  ROW_FILES = (TOKENS,)
  DATA_FILES = (*ROW_FILES, *user_store.INDEX_FILES, VOCABULARY)

  def __init__(self, path: os.PathLike | str):
    super().__init__(path)
    size = self.manifest['vocabulary']['size']
    self.spec = models.RecurrentSpec(num_words=size)
    shape = (self.manifest[self.UNIT], encoding.ROW_LENGTH)
    self.tokens = self._map(TOKENS, encoding.TOKEN_DTYPE, shape)
    # Not splitlines, which also splits at some characters that are words.
    text = (self.path / VOCABULARY).read_text(encoding='utf-8')
    self.vocabulary = tuple(text.removesuffix('\n').split('\n'))

  @property
  def row_shapes(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
    return (((encoding.ROW_LENGTH,), encoding.TOKEN_DTYPE),)

  def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
    return (self.tokens[start:stop],)

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
    """
    words = ('', *self.vocabulary, '<oov>')  # Ids begin at 1.
    special = {self.spec.bos, self.spec.eos, self.spec.pad}
    return [words[token] for token in row.tolist() if token not in special]


class ExampleStore(user_store.UserStore):
  """Reads an example store.

  The mean and scale of each channel or feature were computed on public users
  only: standardising reveals nothing about private users.

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

  FORMAT = 'pda_fed example store'
  VERSION = 1
  UNIT = 'examples'
  ROW_FILES = (X, Y)
  DATA_FILES = (*ROW_FILES, *user_store.INDEX_FILES)

  def __init__(self, path: os.PathLike | str):
    super().__init__(path)
    inputs = self.manifest['inputs']
    self.num_classes = self.manifest['classes']['number']
    self.input_shape = tuple(inputs['shape'])
    self._mean, self._scale = (
      np.array(inputs[name], np.float32) for name in ('mean', 'scale')
    )
    count = self.manifest[self.UNIT]
    shape = (count, *self.input_shape)
    self._x = self._map(X, np.dtype(inputs['dtype']), shape)
    self._y = self._map(Y, LABEL_DTYPE, (count,))

  @property
  def row_shapes(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
    return (self.input_shape, np.dtype(np.float32)), ((), LABEL_DTYPE)

  def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
    x = self._x[start:stop].astype(np.float32)
    x -= self._mean
    x /= self._scale
    return x, self._y[start:stop]


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
  has_examples = (
    user_store.load_manifest(path).get('format') == ExampleStore.FORMAT
  )
  return (ExampleStore if has_examples else TokenStore)(path)
