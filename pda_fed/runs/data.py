"""Opens the data of a run, verifies them, and checks that a run fits them."""

from collections.abc import Sequence
import functools
import pathlib
from typing import Any, Optional, Protocol
import warnings

import data_prep
from data_prep import sample_level
from data_prep import store as store_lib
from data_prep import summary
import numpy as np
from pda_fed import models
from pda_fed.common import settings
from pda_fed.common import standardization
from pda_fed.models import convolutional
from pda_fed.runs import building
from pda_fed.runs import groups as groups_lib

GROUPS = ('private', 'public', 'validation', 'test')
# Models of the paper, for data sets of images.
_CNNS = {
  'digits': convolutional.DIGITS,
  'cifar10': convolutional.CIFAR10,
  'emnist': convolutional.EMNIST,
}


class OpenedData(Protocol):
  """Data of a run, verified.

  Attributes:
    name: The data set's name in results.
    unit: Name of one record: 'user', 'example', 'sequence'.
    population: Number of private users or examples.
    sha256: Hash of everything that a run reads.
  """

  name: str
  unit: str
  population: int
  sha256: str

  @property
  def about(self) -> dict[str, Any]:
    """Sizes and origin, for config.json."""

  @property
  def caveats(self) -> list[str]:
    """Sentences on what epsilon does not cover."""

  @property
  def preprocessing(self) -> dict[str, Any]:
    """The vocabulary, or mean and scale of inputs, by name."""

  def build_model(
    self, choice: settings.Choice, trust_code: bool
  ) -> models.ModelSpec:
    """Returns the model of a choice."""

  def check(self, run: Any) -> None:
    """Raises ValueError unless a run fits the data; may warn."""


def open_data(spec: groups_lib.DataSpec, *, verify: bool = True) -> OpenedData:
  """Opens the data of a spec, once per process.

  Args:
    spec: Where the data are.
    verify: Whether to read all files of a store: damaged tokens would go
      unnoticed.

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
  users = Users(data_prep.open_store(spec.data_dir))
  if verify:
    store = users.store
    states = [(store.path / name).stat() for name in store.manifest['files']]
    key = tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in states)
    _verify_once(store.path.absolute(), users.sha256, key)
  return users


@functools.lru_cache(maxsize=8)
def _verify_once(path: pathlib.Path, *state) -> None:
  del state  # Part of the cache key: changed files are verified again.
  data_prep.open_store(path).verify()


def _require(name: str, found: Any, allowed: Sequence[Any], where: str) -> None:
  """Raises ValueError unless a setting has one of some values."""
  if found not in allowed:
    known = ' or '.join(map(repr, allowed))
    raise ValueError(f'{name} must be {known} {where}. Found {found!r}.')


class Users:
  """The users of a store; see `OpenedData`.

  Attributes:
    store: The store.
  """

  unit = 'user'

  def __init__(self, store: data_prep.UserStore):
    self.store = store
    self.name = store.manifest['source']
    self.population = len(store.users('private'))
    # The manifest covers all files.
    self.sha256 = store_lib.file_sha256(store.path / store_lib.MANIFEST)

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

  @property
  def preprocessing(self) -> dict[str, Any]:
    store: Any = self.store
    if isinstance(store, data_prep.TokenStore):
      special = '<oov>', '<bos>', '<eos>'
      return {'vocabulary': ('<pad>', *store.vocabulary, *special)}
    inputs = store.manifest['inputs']
    return {n: np.array(inputs[n], np.float32) for n in ('mean', 'scale')}

  def build_model(
    self, choice: settings.Choice, trust_code: bool
  ) -> models.ModelSpec:
    store: Any = self.store
    if isinstance(store, data_prep.TokenStore):
      ours = {'lstm': lambda _: store.spec}
    else:
      shape, classes = store.input_shape, store.num_classes
      ours = {
        'cnn': lambda _: models.for_images(shape, classes),
        'linear': lambda _: models.linear(shape, classes),
      }
      if len(shape) == 1:
        del ours['cnn']
    return building.build_model(choice, ours, store, trust_code=trust_code)

  def check(self, run: Any) -> None:
    spec, where = run.spec, self.store.path
    run.model.check_store(self.store)
    updates = 'local_training', 'gradient'
    _require('public.update', spec.public.update, updates, 'for users')
    if spec.server.mean_clip_norm == 'private' and run.plan.adaptive_clipping:
      raise ValueError(
        'server.mean_clip_norm must be a number or none with'
        " adaptive_clipping. Found 'private'."
      )
    if spec.execution.engine != 'tff':
      gaussian = ('gaussian',)
      why = 'unless --engine=tff'
      _require('mechanism', run.plan.mechanism, gaussian, why)
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

  def __init__(self, spec: groups_lib.DataSpec):
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

  @property
  def preprocessing(self) -> dict[str, Any]:
    if self.data.is_text:
      return {'vocabulary': self.data.vocabulary}
    found = standardization.mean_and_scale(self.split.public.inputs)
    return dict(zip(('mean', 'scale'), found, strict=True))

  def build_model(
    self, choice: settings.Choice, trust_code: bool
  ) -> models.ModelSpec:
    shape, classes = self.data.train.inputs.shape[1:], self.data.num_classes
    if self.data.is_text:
      text = models.LanguageSpec(vocabulary_size=classes)
      ours = {'lstm': lambda _: text}
    elif len(shape) == 3:
      ours = {
        'cnn': lambda _: (
          _CNNS.get(self.name) or models.for_images(shape, classes)
        ),
        'wrn-': lambda name: models.wide_residual_net(name, shape, classes),
      }
    else:
      ours = {'linear': lambda _: models.linear(shape, classes)}
    return building.build_model(choice, ours, self.data, trust_code=trust_code)

  def check(self, run: Any) -> None:
    spec, where = run.spec, 'with dataset'
    updates = 'gradient', 'clipped'
    _require('engine', spec.execution.engine, ('jax',), where)
    _require('public.update', spec.public.update, updates, where)
    _require('mechanism', run.plan.mechanism, ('gaussian',), where)
    self._check_model(run.model)
    if self.data.is_text or len(self.data.train.inputs.shape) != 4:
      where = 'unless the data are images'
      _require('augmentation', spec.data.augmentation, ('none',), where)
      training = spec.pretraining
      name = 'pretraining.augmentation'
      _require(name, training.augmentation, ('none',), where)
      _require('pretraining.mixup', training.mixup, (0,), where)
    _warn_of_rounds_without_private_data(run)

  def _check_model(self, model: Any) -> None:
    """Raises ValueError unless a model takes these inputs and classes."""
    sizes = {'vocabulary_size': self.data.num_classes}
    if not self.data.is_text:
      shape = self.data.train.inputs.shape[1:]
      sizes = {'input_shape': shape, 'num_classes': self.data.num_classes}
    for name in ('input_shape', 'num_classes', 'vocabulary_size'):
      found = getattr(model, name, None)
      if found is not None and found != sizes.get(name):
        raise ValueError(
          f'{name} of the model must be {sizes.get(name)}, as in {self.name}.'
          f' Found {model!r}.'
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
