"""Makes TensorFlow Federated importable on today's releases.

TFF 0.87.0 was released in 2024. Its code runs on the releases of the lock,
except for a few imports that pda_fed does not need. `install` puts stand-ins in
their place. `import pda_fed` calls it, so import pda_fed, or one of its
packages, before tensorflow_federated.

`_REPLACED` cannot be imported any more: TensorFlow dropped its estimators, and
JAX what `tff.jax` needs. `_OPTIONAL` are replaced if they are not installed.
Using one of these features is an ImportError that names it.

TFF also needs Keras 2. TensorFlow brings Keras 3 unless TF_USE_LEGACY_KERAS is
set when `tf.keras` is first used; then it takes tf_keras.

And at the end of its import TFF looks for its C++ program, which is not
installed, to make a default context. Its default context is
`pda_fed.runtime.in_process` instead.
"""

from collections.abc import Iterable
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
import types

_LEGACY_KERAS = 'TF_USE_LEGACY_KERAS'
_TFF = 'tensorflow_federated'
# Modules, and the features that need them.
_REPLACED = {
  'tensorflow_privacy.privacy.estimators': "tensorflow_privacy's estimators",
  f'{_TFF}.python.core.environments.jax_frontend': 'tff.jax',
}
_OPTIONAL = {
  'vizier': 'tff.learning.programs.train_model_with_vizier',
  'tensorflow_probability': "tensorflow_privacy's discrete Gaussian query",
}
# What TensorFlow's libraries print while they load, whatever their log level.
_START_UP_NOISE = re.compile(
  rb'WARNING: All log messages before absl::InitializeLog.*|I0000 .*'
)


class _Missing(type):
  """The type of every name in a stand-in, and of that name's attributes.

  Such a name serves as an annotation or a base class. Calling it is an error.
  """

  def __getattr__(cls, name: str):
    if name.startswith('__'):
      raise AttributeError(name)
    return _missing(f'{cls.__module__}.{cls.__qualname__}', name)

  def __call__(cls, *args, **kwargs):
    name = f'{cls.__module__}.'
    for module, feature in (_REPLACED | _OPTIONAL).items():
      if name.startswith(f'{module}.'):
        raise ImportError(
          f'{feature} is not available: {module} is not installed, or does not'
          ' work with the installed releases.'
        )
    raise AssertionError(name)


def _missing(module: str, name: str) -> type:
  return _Missing(name, (), {'__module__': module})


class _StandIn(types.ModuleType):
  """A module that has every name."""

  __path__ = ()

  def __getattr__(self, name: str):
    if name.startswith('__'):
      raise AttributeError(name)
    return _missing(self.__name__, name)


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds stand-ins for some modules and all that is below them."""

  def __init__(self, names: Iterable[str]):
    self._names = tuple(names)

  def find_spec(self, fullname, path=None, target=None):
    if any(f'{fullname}.'.startswith(f'{name}.') for name in self._names):
      return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
    return None

  def create_module(self, spec):
    return _StandIn(spec.name)

  def exec_module(self, module):
    del module


class _Guard(importlib.abc.MetaPathFinder):
  """Changes how TensorFlow and TFF are loaded."""

  def find_spec(self, fullname, path=None, target=None):
    if fullname == _TFF:
      loader = _TffLoader
    elif fullname == 'tensorflow' and _wants_silence():
      loader = _QuietLoader
    else:
      return None
    spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
    if spec is not None and spec.loader is not None:
      spec.loader = loader(spec.loader)
    return spec


def _wants_silence() -> bool:
  """Whether the user, or a program of ours, has asked for less than INFO."""
  return os.environ.get('TF_CPP_MIN_LOG_LEVEL', '0') not in ('', '0')


class _Loader(importlib.abc.Loader):
  """Does what another loader does."""

  def __init__(self, inner):
    self._inner = inner

  def __getattr__(self, name):
    return getattr(self._inner, name)

  def create_module(self, spec):
    return self._inner.create_module(spec)

  def exec_module(self, module):
    self._inner.exec_module(module)


class _TffLoader(_Loader):
  """Loads TFF with our default context."""

  def exec_module(self, module):
    check_keras()
    if importlib.util.find_spec('distutils') is None:
      # Python 3.12 removed it. setuptools brings it when Python starts, unless
      # setuptools itself was installed only now, by a notebook's first cell.
      importlib.import_module('setuptools')
    native = importlib.import_module(f'{_TFF}.python.core.backends.native')
    native.set_sync_local_cpp_execution_context = _set_default_context
    super().exec_module(module)


def _set_default_context(**options) -> None:
  """Takes the place of `set_sync_local_cpp_execution_context`.

  Args:
    **options: Options of TFF's C++ program; ignored.
  """
  del options
  import tensorflow_federated as tff

  class FirstCall(tff.framework.SyncContext):
    """Gives way to ours, which cannot be imported within TFF's import."""

    def invoke(self, comp, arg):
      from pda_fed import runtime

      return runtime.use_in_process().invoke(comp, arg)

  tff.framework.set_default_context(FirstCall())


class _QuietLoader(_Loader):
  """Loads TensorFlow without its start-up noise.

  TF_CPP_MIN_LOG_LEVEL is to prevent that, but TensorFlow 2.21 writes two lines
  to stderr before it has read it.
  """

  def exec_module(self, module):
    with _without_noise():
      super().exec_module(module)


@contextlib.contextmanager
def _without_noise():
  """Holds back what is written to stderr; passes on what is not noise."""
  try:
    saved = os.dup(2)
  except OSError:  # There is no stderr.
    yield
    return
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(saved, 2)
      os.close(saved)
      held.seek(0)
      for line in held:
        if not _START_UP_NOISE.match(line):
          os.write(2, line)


def check_keras() -> None:
  """Raises unless `tf.keras` is Keras 2, the only one that TFF can use.

  Raises:
    ImportError: If Keras 3 was loaded as `tf.keras` before pda_fed was
      imported, or tf_keras is not installed.
  """
  if importlib.util.find_spec('tensorflow') is None:
    return  # TFF's import says so.
  import tensorflow as tf

  try:
    found = tf.keras.Model.__module__
  except ImportError:
    found = 'none'
  if not found.startswith('tf_keras.'):
    raise ImportError(
      'TensorFlow Federated needs Keras 2 (the package tf_keras), and tf.keras'
      f' is another here ({found}): import pda_fed before anything that uses'
      f' tf.keras, with {_LEGACY_KERAS} unset or 1, and start Python again.'
    )


def install() -> None:
  """Installs the stand-ins and chooses Keras 2. Again, it does nothing."""
  if any(isinstance(finder, _Guard) for finder in sys.meta_path):
    return
  os.environ.setdefault(_LEGACY_KERAS, '1')
  sys.meta_path[:0] = [_Guard(), _StandInFinder(_REPLACED)]
  sys.meta_path.append(_StandInFinder(_OPTIONAL))
