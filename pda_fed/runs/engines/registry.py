"""Opens engines by name; imports them only when needed."""

from collections.abc import Iterator
import contextlib
import importlib

from pda_fed import privacy
from pda_fed.common import validate
from pda_fed.runs import config as config_lib
from pda_fed.runs import errors
from pda_fed.runs import sample_level_config
from pda_fed.runs.engines import base as engine_lib

# Each module has a context manager `open_engine(config, seeds)`, which cleans
# up after the engine.
_MODULES = {
  'tff': 'pda_fed.runs.engines.tff_federated',
  'jax': 'pda_fed.runs.engines.jax_federated',
}
ENGINES = tuple(_MODULES)
_OF_SAMPLES = {'jax': 'pda_fed.runs.engines.jax_sample_level'}


@contextlib.contextmanager
def open_engine(
  config: config_lib.RunConfig, seeds: privacy.SeedStreams
) -> Iterator[engine_lib.Engine]:
  """Opens the engine that a config names, for a `with` block.

  Example:

  ```
  with open_engine(config, privacy.SeedStreams(0)) as engine:
    state = engine.initialize()
  ```

  Args:
    config: The run's settings: a `FederatedConfig` or a `SampleLevelConfig`.
    seeds: The run's seeds.

  Yields:
    The engine.

  Raises:
    EngineError: If the engine, or a library that it needs, is not installed.
    ValueError: If the engine's name is unknown, or the data do not fit.
  """
  of_samples = isinstance(config, sample_level_config.SampleLevelConfig)
  modules = _OF_SAMPLES if of_samples else _MODULES
  validate.one_of(tuple(modules), engine=config.engine)
  name = modules[config.engine]
  try:
    module = importlib.import_module(name)
  except ModuleNotFoundError as e:
    others = ' or '.join(other for other in modules if other != config.engine)
    instead = f' Use --engine={others}.' if others else ''
    missing = (
      'this version has none' if e.name == name else f'it needs {e.name}'
    )
    raise errors.EngineError(
      f'The engine {config.engine!r} is not installed: {missing}.{instead}'
    ) from e
  with module.open_engine(config, seeds) as engine:
    yield engine
