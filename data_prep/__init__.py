"""Prepares data: splits users into private, public and held-out ones.

Training reads a store, here a store of tokens:

    store = data_prep.open_store('data/synthetic')
    store.users('private')                 names
    store.sentences(name)                  token ids [sentences, 21]
    data_prep.load_cohort(store, 'private', cohort)     padded arrays

or a store of examples, read with `store.examples(name)`. `prepare` writes
stores. Only the source `tff` needs TensorFlow.
"""

from data_prep.assignment import HoldoutConfig
from data_prep.assignment import Partition
from data_prep.assignment import partition_users
from data_prep.assignment import PartitionConfig
from data_prep.build import prepare
from data_prep.build import PrepareConfig
from data_prep.cohorts import CohortArrays
from data_prep.cohorts import load_cohort
from data_prep.errors import SourceError
from data_prep.errors import StoreError
from data_prep.sources import open_source
from data_prep.store import ExampleStore
from data_prep.store import open_store
from data_prep.store import TokenStore
from data_prep.user_store import UserStore
from data_prep.vocabulary import VocabularyConfig

__all__ = [
  'CohortArrays',
  'ExampleStore',
  'HoldoutConfig',
  'Partition',
  'PartitionConfig',
  'PrepareConfig',
  'SourceError',
  'StoreError',
  'TokenStore',
  'UserStore',
  'VocabularyConfig',
  'load_cohort',
  'open_source',
  'open_store',
  'partition_users',
  'prepare',
]
