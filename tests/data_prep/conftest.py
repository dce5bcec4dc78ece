"""What the tests of data preparation share."""

import sqlite3

from data_prep import assignment
from data_prep import build
from data_prep import example_proto
from data_prep import sources
from data_prep import spool
from data_prep import vocabulary
from data_prep.sources import base
import numpy as np
import pytest


class ListSource(base.Source):
  """A source that is written in a test: {split: {user: sentences}}."""

  def __init__(self, splits):
    super().__init__('list')
    self._splits = splits
    self.splits = tuple(splits)

  def users(self, split):
    users = dict(sorted(self._splits[split].items()))
    counts = np.array([len(s) for s in users.values()], np.int64)
    return base.UserCounts(ids=tuple(users), num_sentences=counts)

  def sentences(self, user, split, start, stop):
    self.tally.rows += stop - start
    return self._splits[split][user][start:stop]


def _numbered(sizes):
  """Users of given sizes, whose sentences tell user and number."""
  return {
    user: [f'word{user} w{i} .' for i in range(size)]
    for user, size in sizes.items()
  }


@pytest.fixture
def list_source():
  return ListSource


@pytest.fixture
def numbered():
  return _numbered


@pytest.fixture
def read_records():
  """Reads the sentences of each text of a stream."""

  def read(source):
    return spool._split_sentences(list(source.records()))

  return read


@pytest.fixture
def make_config():
  """Settings for small sources: every word of train users, few public users."""

  def make(*, size=10, num_public_users=1, origin='train', **others):
    settings = {'seed': 0, 'num_public_users': num_public_users}
    for name in ('seed', 'max_sentences'):
      if name in others:
        settings[name] = others.pop(name)
    return build.PrepareConfig(
      partition=assignment.PartitionConfig(**settings),
      vocabulary=vocabulary.VocabularyConfig(origin=origin, size=size),
      **others,
    )

  return make


@pytest.fixture
def write_database():
  """Writes {split: {user: sentences}} with plain SQL, not with our writer."""

  def write(path, splits, *, index='client_id', encode=None):
    encode = encode or example_proto.encode_tokens
    connection = sqlite3.connect(path)
    connection.execute(
      'CREATE TABLE examples (split_name TEXT, client_id TEXT,'
      ' serialized_example_proto BLOB)'
    )
    connection.execute(
      'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT,'
      ' num_examples INTEGER)'
    )
    for split, users in splits.items():
      for user, sentences in users.items():
        connection.execute(
          'INSERT INTO client_metadata VALUES (?, ?, ?)',
          (user, split, len(sentences)),
        )
        connection.executemany(
          'INSERT INTO examples VALUES (?, ?, ?)',
          [(split, user, encode(s.encode())) for s in sentences],
        )
    if index:
      connection.execute(f'CREATE INDEX by_client ON examples ({index})')
    connection.commit()
    connection.close()
    return path

  return write


@pytest.fixture(scope='session')
def small_store(tmp_path_factory):
  """A store of 60 synthetic users, cut at 64 sentences, 3 of them public."""
  folder = tmp_path_factory.mktemp('store') / 'small'
  return build.prepare(
    sources.SyntheticSource(sources.SyntheticConfig(num_users=60)),
    folder,
    build.PrepareConfig(
      partition=assignment.PartitionConfig(
        seed=0, max_sentences=64, num_public_users=3
      ),
      vocabulary=vocabulary.VocabularyConfig(size=1000),
    ),
  )
