"""Makes TensorFlow Federated importable with current library versions.

TFF 0.87.0 was released in 2024. It runs with the locked library versions,
except for a few imports that pda_fed does not need. `install` replaces these
with stand-ins. `import pda_fed.tff` calls `install`, so import it before
tensorflow_federated.

The modules in `_REPLACED` can no longer be imported: TensorFlow dropped its
estimators, and JAX dropped code that `tff.jax` needs. The modules in
`_OPTIONAL` are replaced if they are not installed. Using a replaced feature
raises an ImportError that names the feature.

TFF also needs Keras 2. `tf.keras` is Keras 3 unless TF_USE_LEGACY_KERAS is set
when `tf.keras` is first used; then it is tf_keras (Keras 2).

At the end of its import, TFF creates a default context from its C++ executor,
which is not installed. The default context here is
`pda_fed.tff.runtime.in_process`; `_contexts` replaces TFF's functions that
create others.
"""

from collections.abc import Iterable
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
import types

from pda_fed.tff import _contexts

_LEGACY_KERAS = 'TF_USE_LEGACY_KERAS'
_TFF = 'tensorflow_federated'
# Each module, and the feature that needs it.
_REPLACED = {
  'tensorflow_privacy.privacy.estimators': "tensorflow_privacy's estimators",
  f'{_TFF}.python.core.environments.jax_frontend': 'tff.jax',
}
_OPTIONAL = {
  'vizier': 'tff.learning.programs.train_model_with_vizier',
  'tensorflow_probability': "tensorflow_privacy's discrete Gaussian query",
}
# Lines that TensorFlow prints while it loads, whatever the log level.
_START_UP_NOISE = re.compile(
  rb'WARNING: All log messages before absl::InitializeLog.*|I0000 .*'
)


class _Missing(type):
  """The type of every name in a stand-in, and of that name's attributes.

  Such a name can be an annotation or a base class. Calling it is an error.
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

  __path__: list[str] = []

  def __getattr__(self, name: str):
    if name.startswith('__'):
      raise AttributeError(name)
    return _missing(self.__name__, name)


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds stand-ins for some modules and their submodules."""

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
  """Whether the log level is set to show less than INFO."""
  return os.environ.get('TF_CPP_MIN_LOG_LEVEL', '0') not in ('', '0')


class _Loader(importlib.abc.Loader):
  """Wraps another loader."""

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
      # Python 3.12 removed distutils. setuptools provides it when Python
      # starts, unless setuptools was installed later, as in a notebook's first
      # cell.
      importlib.import_module('setuptools')
    native = importlib.import_module(f'{_TFF}.python.core.backends.native')
    native.set_sync_local_cpp_execution_context = _set_default_context
    super().exec_module(module)
    _contexts.install()


def _set_default_context() -> None:
  """Sets the default context at the end of TFF's import."""
  import tensorflow_federated as tff

  class Default(tff.framework.SyncContext):
    """Creates our context on first use: TFF's import is too early for it."""

    @functools.cached_property
    def _inner(self):
      from pda_fed.tff import runtime

      return runtime.InProcessContext()

    def invoke(self, comp, arg):
      return self._inner.invoke(comp, arg)

  tff.framework.set_default_context(Default())


class _QuietLoader(_Loader):
  """Loads TensorFlow without its start-up noise.

  TF_CPP_MIN_LOG_LEVEL should prevent it, but TensorFlow 2.21 writes two lines
  to stderr before it reads that variable.
  """

  def exec_module(self, module):
    with _without_noise():
      super().exec_module(module)


@contextlib.contextmanager
def _without_noise():
  """Buffers stderr within the block, then prints it without the noise."""
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
  """Raises unless `tf.keras` is Keras 2, the only version that TFF supports.

  Raises:
    ImportError: If Keras 3 was loaded as `tf.keras` before pda_fed was
      imported, or tf_keras is not installed.
  """
  if importlib.util.find_spec('tensorflow') is None:
    return  # TFF's own import reports this.
  import tensorflow as tf

  try:
    found = tf.keras.Model.__module__
  except ImportError:
    found = 'none'
  # The second is Keras 2 as part of TensorFlow 2.14, which TFF asks for.
  if not found.startswith(('tf_keras.', 'keras.src.engine.')):
    raise ImportError(
      'tf.keras must be Keras 2 (the package tf_keras) for TensorFlow'
      f' Federated. Found {found}. Restart Python, with {_LEGACY_KERAS} unset'
      ' or 1, and import pda_fed.tff before anything that uses tf.keras.'
    )


def install() -> None:
  """Installs the stand-ins and selects Keras 2. Later calls do nothing.

  Raises:
    ImportError: If TFF was imported before.
  """
  if any(isinstance(finder, _Guard) for finder in sys.meta_path):
    return
  if _TFF in sys.modules:
    raise ImportError(
      'Import pda_fed.tff before tensorflow_federated, which was imported'
      ' first. Restart Python, and change the order of the imports.'
    )
  os.environ.setdefault(_LEGACY_KERAS, '1')
  sys.meta_path[:0] = [_Guard(), _StandInFinder(_REPLACED)]
  sys.meta_path.append(_StandInFinder(_OPTIONAL))
