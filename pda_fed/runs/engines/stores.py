"""Opens and verifies the store of a federated run."""

import functools
import pathlib

import data_prep
from data_prep import store as store_lib
from pda_fed.runs import config as config_lib


def data_hash(store: data_prep.UserStore) -> str:
  """Returns the sha256 of a store's manifest, which covers all its files.

  Example:

  ```
  store = data_prep.open_store('data/laptop')
  settings = dict(data_dir='data/laptop', data_hash=data_hash(store))
  ```

  Args:
    store: The store.
  """
  return store_lib.file_sha256(store.path / store_lib.MANIFEST)


def _verify(store: data_prep.UserStore) -> None:
  """Verifies the files once, because damaged tokens would go unnoticed."""
  states = [(store.path / name).stat() for name in store.manifest['files']]
  key = tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in states)
  _verify_files(store.path.absolute(), data_hash(store), key)


@functools.lru_cache(maxsize=8)
def _verify_files(path: pathlib.Path, *state) -> None:
  del state  # Part of the cache key: changed files are verified again.
  data_prep.open_store(path).verify()


def open_checked(config: config_lib.FederatedConfig) -> data_prep.UserStore:
  """Opens a run's store and checks that it fits the settings.

  Args:
    config: The run's settings.

  Raises:
    StoreError: If the store is missing or incomplete, or a file was changed.
    ValueError: If the store does not fit the settings.
  """
  store = data_prep.open_store(config.data_dir)
  _verify(store)
  config.spec.check_store(store)
  if data_hash(store) != config.data_hash:
    raise ValueError(
      f'The data in {config.data_dir} must match the settings: the sha256 of'
      f' the manifest must be {config.data_hash}. Found {data_hash(store)}.'
    )
  population = len(store.users('private'))
  if population != config.plan.population:
    raise ValueError(
      f'population must be {population}, the number of private users in'
      f' {config.data_dir}. Found {config.plan.population}.'
    )
  num_public = len(store.users('public'))
  if config.warm_start and not num_public:
    raise ValueError(
      f'method must be cold, because {config.data_dir} has no public users.'
      f' Found {config.method.name!r}.'
    )
  uses_public = config.method.uses_public
  if uses_public and config.public_users_per_round > num_public:
    raise ValueError(
      f'public_users_per_round must be at most {num_public}, the number of'
      f' public users in {config.data_dir}. Found'
      f' {config.public_users_per_round}.'
    )
  for group in ('validation', 'test'):
    if not len(store.users(group)):
      raise ValueError(
        f'{config.data_dir} must have {group} users. Found none: prepare the'
        f' data with --{group}_fraction.'
      )
  return store
