"""The store of a federated run."""

import functools
import pathlib

import data_prep
from data_prep import store as store_lib
from pda_fed.experiments import config as config_lib


def data_hash(store: data_prep.UserStore) -> str:
  """Returns the sha256 of a store's manifest, which has those of its files.

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
  """Reads the store once: a token that a disk has changed trains in silence."""
  states = [(store.path / name).stat() for name in store.manifest['files']]
  key = tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in states)
  _verify_files(store.path.absolute(), data_hash(store), key)


@functools.lru_cache(maxsize=8)
def _verify_files(path: pathlib.Path, *state) -> None:
  del state  # Other files are verified anew.
  data_prep.open_store(path).verify()


def open_checked(config: config_lib.FederatedConfig) -> data_prep.UserStore:
  """Opens a run's store, if it is what the settings expect.

  Args:
    config: The settings.

  Raises:
    StoreError: If there is no whole store, or a file of it was changed.
    ValueError: If it does not fit; the message says what.
  """
  store = data_prep.open_store(config.data_dir)
  _verify(store)
  config.spec.check_store(store)
  if data_hash(store) != config.data_hash:
    raise ValueError(
      f'The data in {config.data_dir} must be those that the settings name.'
      f' Found a manifest with the sha256 {data_hash(store)}, not'
      f' {config.data_hash}.'
    )
  population = len(store.users('private'))
  if population != config.plan.population:
    raise ValueError(
      f'population must be {population}, the private users in'
      f' {config.data_dir}. Found {config.plan.population}.'
    )
  num_public = len(store.users('public'))
  if config.warm_start and not num_public:
    raise ValueError(
      f'method must be cold without public users; {config.data_dir} has none.'
      f' Found {config.method.name!r}.'
    )
  uses_public = config.method.uses_public
  if uses_public and config.public_users_per_round > num_public:
    raise ValueError(
      f'public_users_per_round must be at most {num_public}, the public users'
      f' in {config.data_dir}. Found {config.public_users_per_round}.'
    )
  for group in ('validation', 'test'):
    if not len(store.users(group)):
      raise ValueError(
        f'{config.data_dir} must have {group} users. Found none: prepare it'
        f' with a --{group}_fraction.'
      )
  return store
