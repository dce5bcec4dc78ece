"""Damaged token stores."""

from data_prep import build
from data_prep import partition
from data_prep import sources
from data_prep import store
from data_prep import vocabulary
import numpy as np

from tests.fuzz import harness


def _write(folder):
  build.prepare(
    sources.SyntheticSource(sources.SyntheticConfig(num_users=30)),
    folder,
    build.PrepareConfig(
      partition=partition.PartitionConfig(
        seed=0, max_sentences=30, num_public_users=2
      ),
      vocabulary=vocabulary.VocabularyConfig(size=100),
    ),
  )


def _read(folder):
  """Everything that training reads, whether or not it is verified."""
  data = store.open_store(folder)
  return {
    'manifest': data.manifest,
    'vocabulary': data.vocabulary,
    'tokens': np.array(data.tokens),
    'groups': {
      group: {
        'names': list(data.users(group)),
        'sentences': data.num_examples(group),
      }
      for group in data.groups
    },
  }


def _read_verified(folder):
  store.open_store(folder).verify()
  return _read(folder)


def _is_sound(expected, found):
  """A store that was opened without `verify` may have other tokens alone."""
  harness.equal(expected['manifest'], found['manifest'])
  assert found['tokens'].shape == expected['tokens'].shape
  assert found['tokens'].dtype == np.uint16
  for group, of in expected['groups'].items():
    other = found['groups'][group]
    assert len(other['names']) == len(of['names'])
    assert other['sentences'].min(initial=0) >= 0
  assert len(found['vocabulary']) == len(expected['vocabulary'])


def test_verified(fuzz):
  """Of what is verified, no bit may be another."""
  fuzz(harness.Target(write=_write, load=_read_verified), must_find=0.8)


def test_opened(fuzz):
  fuzz(harness.Target(write=_write, load=_read, check=_is_sound))


def test_manifest(fuzz):
  fuzz(
    harness.Target(write=_write, load=_read, files=(store.MANIFEST,)),
    must_find=0.8,
  )
