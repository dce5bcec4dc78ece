"""The engines of federated runs, by name; imported when they are chosen."""

from collections.abc import Iterator
import contextlib
import importlib

from pda_fed import _validate
from pda_fed import privacy
from pda_fed.experiments import config as config_lib
from pda_fed.experiments import engine as engine_lib
from pda_fed.experiments import errors

# Each module has a context manager `open_engine(config, seeds)`, which ends
# what the engine has started.
_MODULES = {
  'tff': 'pda_fed.experiments.tff_engine',
  'jax': 'pda_fed.experiments.jax_engine',
}
ENGINES = tuple(_MODULES)


@contextlib.contextmanager
def open_engine(
  config: config_lib.FederatedConfig, seeds: privacy.SeedStreams
) -> Iterator[engine_lib.Engine]:
  """Opens the engine that a config names, for a `with` block.

  Example:

  ```
  with open_engine(config, privacy.SeedStreams(0)) as engine:
    state = engine.initialize()
  ```

  Args:
    config: The run's settings.
    seeds: The run's seeds.

  Yields:
    The engine.

  Raises:
    EngineError: If the engine, or a library that it needs, is not installed.
    ValueError: If there is no engine of that name, or the data do not fit.
  """
  _validate.one_of(ENGINES, engine=config.engine)
  name = _MODULES[config.engine]
  try:
    module = importlib.import_module(name)
  except ModuleNotFoundError as e:
    others = ' or '.join(other for other in ENGINES if other != config.engine)
    missing = (
      'this version has none' if e.name == name else f'it needs {e.name}'
    )
    raise errors.EngineError(
      f'The engine {config.engine!r} is not installed: {missing}. Use'
      f' --engine={others}.'
    ) from e
  with module.open_engine(config, seeds) as engine:
    yield engine
