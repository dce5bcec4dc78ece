"""Generated text by user: the default source.

The text is meaningless, but has the properties that the experiments need. Words
follow Zipf's law. Sentences follow a grammar of word classes, and each word
makes some next words likelier, so a recurrent model can learn to predict. Each
sentence has a topic, and each user a mixture of topics. All users share
grammar, words and topics, so public users' text helps with private users. The
number of sentences of a user is Pareto distributed, so that some users
overflow.

A user's text depends on the seed and the user, not on the number of users.
Draws use raw bits of PCG64 and divisions, which are the same on every platform.
"""

import dataclasses
import functools
from typing import Optional

from data_prep.sources import base
import numpy as np
from pda_fed.common import validate

# Rows: the class of a word. Columns: the class of the next word, as cumulative
# per mille. Classes: 0 article, 1 adjective, 2 noun, 3 verb, 4 preposition, 5
# conjunction.
_NEXT_CLASS = np.array(
  [
    [0, 300, 1000, 1000, 1000, 1000],
    [0, 150, 950, 950, 950, 1000],
    [0, 0, 100, 650, 850, 1000],
    [450, 600, 750, 750, 950, 1000],
    [700, 800, 1000, 1000, 1000, 1000],
    [500, 600, 750, 1000, 1000, 1000],
  ]
)
_FIRST_CLASS = np.array([450, 600, 750, 900, 950, 1000])
_NUM_CLASSES = len(_NEXT_CLASS)
_HAS_TOPICS = np.array([False, True, True, True, False, False])
_MAY_END = np.array([False, False, True, True, False, False])
_VERB = 3
_NUM_COMMON = 20  # The most frequent words of a class belong to no topic.

_MIN_WORDS = 3
_MAX_WORDS = 28
_P_END = 150  # Per mille, after a noun or a verb.
_P_TOPIC = 550  # That a word is from the topic.
_P_ECHO = 350  # That a word depends on the one before.

_NUM_TOPICS = 20  # Shared by all users.
_MIN_SENTENCES = (
  24  # Of a user; half of the users have less than twice as many.
)
_USERS_PER_BLOCK = 8
_SYLLABLES = [c + v for c in 'bdfgklmnprstvz' for v in 'aeiou']


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
  """Settings of the generator.

  Example:

    >>> SyntheticConfig(num_users=50, num_words=1000).num_users
    50

  Attributes:
    num_users: Number of users.
    seed: Seed of all draws.
    num_words: Number of distinct words, without punctuation; at least 1,000.
    max_sentences: Maximum number of sentences of a user.
  """

  num_users: int = 2000
  seed: int = 0
  num_words: int = 12_000
  max_sentences: int = 2000

  def __post_init__(self):
    validate.integers(
      1, num_users=self.num_users, max_sentences=self.max_sentences
    )
    validate.integers(0, seed=self.seed)
    validate.integers(1000, num_words=self.num_words)


class _Uniform:
  """Numbers in [0, 1) from raw bits, a stream that NumPy guarantees."""

  def __init__(self, *key: int):
    self._bits = np.random.PCG64(np.random.SeedSequence(key))

  def __call__(self, *shape: int) -> np.ndarray:
    raw = self._bits.random_raw(int(np.prod(shape)))
    return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)


def make_word(rank: int) -> str:
  """Returns the unique word of a rank. Frequent words are short."""
  syllables = []
  rank += 1
  while rank:
    rank, digit = divmod(rank - 1, len(_SYLLABLES))
    syllables.append(_SYLLABLES[digit])
  return ''.join(syllables)


def _zipf(size: int) -> np.ndarray:
  """Returns the cumulative probabilities of `size` ranks."""
  cumulated = np.cumsum(1.0 / (np.arange(size) + 3))
  return cumulated / cumulated[-1]


class _Text:
  """The sentences of a block of users, as word ranks."""

  def __init__(self, config: SyntheticConfig, block: int, counts: np.ndarray):
    self.starts = np.concatenate([[0], np.cumsum(counts)])
    uniform = _Uniform(config.seed, 1, block)
    user = np.repeat(np.arange(counts.size), counts)
    topic = self._topics(uniform, counts.size, user)
    self.ranks, self.lengths = _write(config, uniform, topic)
    # A question begins with a verb.
    self.is_question = self.ranks[:, 0] % _NUM_CLASSES == _VERB

  def _topics(self, uniform, num_users, user):
    favourites = (uniform(num_users, 2) * _NUM_TOPICS).astype(np.int64)
    kind, any_topic = uniform(2, user.size)
    topic = (any_topic * _NUM_TOPICS).astype(np.int64)
    topic = np.where(kind < 0.3, favourites[user, 1], topic)
    return np.where(kind >= 0.4, favourites[user, 0], topic)


def _write(
  config: SyntheticConfig, uniform: _Uniform, topic: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns word ranks [sentences, _MAX_WORDS], and numbers of words."""
  size = config.num_words // _NUM_CLASSES
  common = _zipf(size)
  of_topic = _zipf((size - _NUM_COMMON) // _NUM_TOPICS)
  ranks = np.zeros((topic.size, _MAX_WORDS), np.int64)
  lengths = np.full(topic.size, _MAX_WORDS)
  going = np.arange(topic.size)  # Sentences that have not ended.
  next_class = np.broadcast_to(_FIRST_CLASS, (topic.size, _NUM_CLASSES))
  place = np.zeros(topic.size, np.int64)  # Place of the word in its class.
  for step in range(_MAX_WORDS):
    draws = uniform(5, going.size)
    per_mille = (draws[:4] * 1000).astype(np.int64)
    word_class = (per_mille[0][:, None] >= next_class).sum(1)
    is_topical = _HAS_TOPICS[word_class] & (per_mille[1] < _P_TOPIC)
    drawn = np.where(
      is_topical,
      _NUM_COMMON
      + np.searchsorted(of_topic, draws[4], side='right') * _NUM_TOPICS
      + topic[going],
      np.searchsorted(common, draws[4], side='right'),
    )
    # Words with the same place in their classes go together.
    is_echo = (per_mille[2] < _P_ECHO) & (step > 0)
    place = np.where(is_echo, place, drawn)
    ranks[going, step] = place * _NUM_CLASSES + word_class
    ends = (per_mille[3] < _P_END) & _MAY_END[word_class]
    ends &= step + 1 >= _MIN_WORDS
    lengths[going[ends]] = step + 1
    going, place = going[~ends], place[~ends]
    next_class = _NEXT_CLASS[word_class[~ends]]
  return ranks, lengths


class SyntheticSource(base.Source):
  """The generator as a source, without splits of its own.

  Example:

    >>> source = SyntheticSource(SyntheticConfig(num_users=8, num_words=1000))
    >>> users = source.users('train')
    >>> len(users.ids), source.tally.rows
    (8, 0)
  """

  words_reveal_users = False

  def __init__(self, config: SyntheticConfig):
    super().__init__('synthetic')
    self._config = config
    self._block: tuple[int, Optional[_Text]] = (-1, None)

  def __getstate__(self):
    # Values computed from the settings are not pickled.
    kept = ('name', 'tally', '_config')
    return {n: self.__dict__[n] for n in kept} | {'_block': (-1, None)}

  @functools.cached_property
  def _counts(self) -> np.ndarray:
    # Whole blocks, so that the last block's text does not depend on num_users.
    config = self._config
    blocks = -(-config.num_users // _USERS_PER_BLOCK)
    uniform = _Uniform(config.seed, 0)(blocks * _USERS_PER_BLOCK)
    counts = np.floor(_MIN_SENTENCES / (1 - uniform))
    return np.minimum(counts, config.max_sentences).astype(np.int64)

  @functools.cached_property
  def _words(self) -> list[str]:
    size = self._config.num_words // _NUM_CLASSES * _NUM_CLASSES
    return [make_word(rank) for rank in range(size)]

  def users(self, split: str) -> base.UserCounts:
    validate.one_of(self.splits, split=split)
    ids = tuple(f'user_{i:09}' for i in range(self._config.num_users))
    return base.UserCounts(ids=ids, num_sentences=self._counts[: len(ids)])

  def sentences(
    self, user: str, split: str, start: int, stop: int
  ) -> list[str]:
    validate.one_of(self.splits, split=split)
    index = int(user.removeprefix('user_'))
    block, place = divmod(index, _USERS_PER_BLOCK)
    text = self._text(block)
    first = text.starts[place]
    stop = min(stop, int(text.starts[place + 1] - first))
    rows = slice(first + start, first + stop)
    self.tally.rows += max(stop - start, 0)
    word = self._words.__getitem__
    return [
      ' '.join(map(word, ranks[:length])) + (' ?' if question else ' .')
      for ranks, length, question in zip(
        text.ranks[rows].tolist(),
        text.lengths[rows].tolist(),
        text.is_question[rows].tolist(),
        strict=True,
      )
    ]

  def ranked_words(self, size: int) -> list[str]:
    return ['.', '?', *self._words][:size]

  def _text(self, block: int) -> _Text:
    if self._block[0] != block:
      # Users are read in order, so it suffices to cache one block.
      first = block * _USERS_PER_BLOCK
      counts = self._counts[first : first + _USERS_PER_BLOCK]
      self._block = (block, _Text(self._config, block, counts))
    return self._block[1]
