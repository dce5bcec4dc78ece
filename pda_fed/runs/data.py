"""Opens the data of a run, verifies them, and checks that a run fits them."""

import functools
import pathlib
from typing import Any, Optional, Protocol
import warnings

import data_prep
from data_prep import sample_level
from data_prep import store as store_lib
from data_prep import summary
from pda_fed import models
from pda_fed.common import settings
from pda_fed.runs import building
from pda_fed.runs import spec as spec_lib

GROUPS = ('private', 'public', 'validation', 'test')


class OpenedData(Protocol):
  """Data of a run, verified.

  Attributes:
    name: The data set's name in results.
    unit: Name of one record: 'user', 'example', 'sequence'.
    population: Number of private users or examples.
    sha256: Hash of everything that a run reads.
    about: Sizes and origin, for config.json.
    caveats: Sentences on what epsilon does not cover.
  """

  name: str
  unit: str
  population: int
  sha256: str
  about: dict[str, Any]
  caveats: list[str]

  def build_model(
    self, choice: settings.Choice, trust_code: bool
  ) -> models.ModelSpec:
    """Returns the model of a choice, which fits the data."""

  def check(self, run: Any) -> None:
    """Raises ValueError unless a run fits the data; may warn."""


def open_data(spec: spec_lib.DataSpec) -> OpenedData:
  """Opens the data of a spec, once per process.

  Args:
    spec: Where the data are.

  Raises:
    PdaFedError: If the data are missing or damaged.
    ValueError: If `data_dir` is missing, or the split does not fit the data.
  """
  if spec.dataset is not None:
    return Examples(spec)
  if spec.data_dir is None:
    raise ValueError(
      'data_dir must be given: the folder of users that prepare_users wrote.'
      ' Or give dataset, a data set for sample-level privacy.'
    )
  return Users(data_prep.open_store(spec.data_dir))


def _verify(store: data_prep.UserStore, sha256: str) -> None:
  """Verifies the files once, because damaged tokens would go unnoticed."""
  states = [(store.path / name).stat() for name in store.manifest['files']]
  key = tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in states)
  _verify_files(store.path.absolute(), sha256, key)


@functools.lru_cache(maxsize=8)
def _verify_files(path: pathlib.Path, *state) -> None:
  del state  # Part of the cache key: changed files are verified again.
  data_prep.open_store(path).verify()


class Users:
  """The users of a store; see `OpenedData`.

  Attributes:
    store: The store.
  """

  unit = 'user'

  def __init__(self, store: data_prep.UserStore):
    """Verifies the store's files.

    Args:
      store: The store.

    Raises:
      StoreError: If a file was changed.
    """
    self.store = store
    self.name = store.manifest['source']
    self.population = len(store.users('private'))
    # The manifest covers all files.
    self.sha256 = store_lib.file_sha256(store.path / store_lib.MANIFEST)
    _verify(store, self.sha256)

  @property
  def about(self) -> dict[str, Any]:
    manifest = self.store.manifest
    words = self._words()
    names = ('source', 'settings', 'public_users_sha256')
    return {
      'users': {g: len(self.store.users(g)) for g in self.store.groups},
      **{name: manifest[name] for name in names},
      **({'vocabulary': words} if words else {}),
    }

  def _words(self) -> dict[str, Any]:
    words = dict(self.store.manifest.get('vocabulary', {}))
    words.pop('unknown_share', None)  # It counts words of private users.
    return words

  @property
  def caveats(self) -> list[str]:
    manifest = self.store.manifest
    found = list(manifest.get('classes', {}).get('caveats', ()))
    words = self._words()
    if not words.get('covered_by_epsilon', True):
      found.append(f'Vocabulary: {words["statement"]}')
    drawn = summary.describe_drawn_users(manifest)
    found += [drawn] if drawn else []
    most = manifest['max_private_users_per_person']
    if most > 1:
      found.append(
        f'One person may be {most} private users. For persons, the guarantee is'
        f' that of groups of {most} users.'
      )
    return found

  def build_model(
    self, choice: settings.Choice, trust_code: bool
  ) -> models.ModelSpec:
    """Returns the model of a choice, which fits the data."""
    model = building.build_model_for_users(
      choice, self.store, trust_code=trust_code
    )
    model.check_store(self.store)
    return model

  def check(self, run: Any) -> None:
    """Raises ValueError unless a run fits the data."""
    spec, where = run.spec, self.store.path
    if spec.public.update == 'clipped':
      raise ValueError(
        'public.update must be local_training or gradient for users. Found'
        " 'clipped'."
      )
    for name, allowed in (('decay', 'none'), ('averaging', 0.0)):
      if getattr(spec.server, name) != allowed:
        raise ValueError(
          f'server.{name} must be {allowed} for users. Found'
          f' {getattr(spec.server, name)!r}.'
        )
    if run.plan.mechanism == 'tree' and spec.execution.engine != 'tff':
      raise ValueError(
        'mechanism must be gaussian with --engine=jax. Found tree, which needs'
        ' --engine=tff.'
      )
    num_public = len(self.store.users('public'))
    if run.method.warm_start and not num_public:
      raise ValueError(
        f'method must be cold, because {where} has no public users. Found'
        f' {run.method.name!r}.'
      )
    if run.method.uses_public and spec.public.users_per_round > num_public:
      raise ValueError(
        f'public.users_per_round must be at most {num_public}, the number of'
        f' public users in {where}. Found {spec.public.users_per_round}.'
      )
    for group in ('validation', 'test'):
      if not len(self.store.users(group)):
        raise ValueError(
          f'{where} must have {group} users. Found none: prepare the data with'
          f' --{group}_fraction.'
        )


# Few data sets and splits are used in one process.
@functools.lru_cache(maxsize=2)
def _load(
  dataset: str, data_dir: Optional[str], vocabulary_size: Optional[int]
) -> sample_level.SampleLevelData:
  options = {}
  if vocabulary_size is not None:
    options['vocabulary_size'] = vocabulary_size
  return sample_level.load_data(dataset, data_dir, **options)


@functools.lru_cache(maxsize=4)
def _split(
  data: sample_level.SampleLevelData,
  config: sample_level.SplitConfig,
  public_dataset: Optional[str],
) -> sample_level.Split:
  public = None
  if public_dataset is not None:
    public = sample_level.load_public_text(
      public_dataset, data, len(data.train), config.seed
    )
  return sample_level.split_examples(data, config, public)


class Examples:
  """The examples of a data set; see `OpenedData`.

  Attributes:
    data: The data set.
    split: Its private, public, validation and test examples.
  """

  def __init__(self, spec: spec_lib.DataSpec):
    """Loads and splits the data set.

    Args:
      spec: Where the data are, and how to split them.

    Raises:
      SourceError: If files are missing or incomplete.
      ValueError: If the split does not fit the data.
    """
    self._spec = spec
    self.data = _load(spec.dataset, spec.data_dir, spec.vocabulary_size)
    config = sample_level.SplitConfig(
      public_examples=self._public_examples(),
      validation_examples=spec.validation_examples,
      seed=spec.split_seed,
    )
    self.split = _split(self.data, config, spec.public_dataset)
    self.name, self.unit = spec.dataset, self.data.unit
    self.population = len(self.split.private)
    self.sha256 = sample_level.data_hash(self.data, self.split)

  def _public_examples(self) -> Optional[int]:
    """Returns the number of training examples that are public."""
    spec = self._spec
    if spec.public_dataset is not None or self.data.public is not None:
      return None  # All examples of the data set are then private.
    if spec.public_examples is None:
      raise ValueError(
        'public_examples must be given, the number of training examples that'
        f' are public: {spec.data_dir} holds no public examples.'
      )
    return spec.public_examples

  @property
  def about(self) -> dict[str, Any]:
    return {'examples': {g: len(getattr(self.split, g) or ()) for g in GROUPS}}

  @property
  def caveats(self) -> list[str]:
    found = list(self.data.caveats)
    if self._spec.validation_examples:
      found.append(
        f'{len(self.split.validation):,} validation examples were taken from'
        ' the private ones. They are not trained on, and epsilon does not cover'
        ' the validation metrics.'
      )
    if self._spec.public_dataset is not None:
      found.append(
        'Public sequences that also occur in the private text were left out.'
        ' Which ones are left reveals something about private sequences, and'
        ' epsilon does not cover it.'
      )
    return found

  def build_model(
    self, choice: settings.Choice, trust_code: bool
  ) -> models.ModelSpec:
    """Returns the model of a choice, which fits the data."""
    return building.build_model_for_examples(
      choice, self.data, trust_code=trust_code
    )

  def check(self, run: Any) -> None:
    """Raises ValueError unless a run fits the data; warns of unused rounds."""
    spec = run.spec
    if spec.execution.engine != 'jax':
      raise ValueError(
        f'engine must be jax with dataset. Found {spec.execution.engine}.'
      )
    if spec.public.update == 'local_training':
      raise ValueError(
        'public.update must be gradient or clipped with dataset. Found'
        " 'local_training'."
      )
    if run.plan.adaptive_clipping is not None or run.plan.mechanism == 'tree':
      raise ValueError(
        'adaptive_clipping must be off and mechanism gaussian with dataset.'
        f' Found {run.plan!r}.'
      )
    self._check_images(run)
    _warn_of_rounds_without_private_data(run)

  def _check_images(self, run: Any) -> None:
    if len(self.data.train.inputs.shape) == 4 and not self.data.is_text:
      return
    found = {
      'augmentation': (run.spec.data.augmentation, 'none'),
      'pretraining.augmentation': (run.spec.pretraining.augmentation, 'none'),
      'pretraining.mixup': (run.spec.pretraining.mixup, 0),
    }
    for name, (value, allowed) in found.items():
      if value != allowed:
        raise ValueError(
          f'{name} must be {allowed!r} unless the data are images. Found'
          f' {value!r}.'
        )


def _warn_of_rounds_without_private_data(run: Any) -> None:
  """Warns of rounds that spend epsilon without using private data."""
  if 'alpha' not in run.method.schedules:
    return
  rounds, epoch = run.plan.rounds, run.plan.rounds_per_epoch
  # alpha_t is constant within an epoch.
  firsts = range(0, rounds, epoch)
  alphas = [run.schedules(range(t, t + 1))['alpha'][0] for t in firsts]
  unused = alphas.count(0)
  if unused:
    warnings.warn(
      f'alpha_t is 0 in {unused:,} of {len(firsts):,} epochs: they only use'
      ' public data, but still count for epsilon.',
      stacklevel=2,
    )
