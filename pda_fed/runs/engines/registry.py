"""Opens engines by name; imports them only when needed."""

from collections.abc import Iterator
import contextlib
import importlib

from pda_fed import errors
from pda_fed import privacy
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib

# Each module has a context manager `open_engine(run, seeds)`, which cleans up
# after the engine.
_MODULES = {
  'tff': 'pda_fed.runs.engines.tff_federated',
  'jax': 'pda_fed.runs.engines.jax_federated',
}
_OF_SAMPLES = {'jax': 'pda_fed.runs.engines.jax_sample_level'}


@contextlib.contextmanager
def open_engine(
  run: resolving.Run, seeds: privacy.SeedStreams
) -> Iterator[engine_lib.Engine]:
  """Opens the engine that a run names, for a `with` block.

  Example:

  ```
  with open_engine(run, privacy.SeedStreams(0)) as engine:
    state = engine.initialize()
  ```

  Args:
    run: The run.
    seeds: The run's seeds.

  Yields:
    The engine.

  Raises:
    EngineError: If the engine, or a library that it needs, is not installed.
    ValueError: If the engine cannot compute the run.
  """
  modules = _MODULES if run.spec.data.has_users else _OF_SAMPLES
  name = modules[run.engine]
  try:
    module = importlib.import_module(name)
  except ModuleNotFoundError as e:
    others = ' or '.join(other for other in modules if other != run.engine)
    instead = f' Use --engine={others}.' if others else ''
    missing = (
      'this version has none' if e.name == name else f'it needs {e.name}'
    )
    raise errors.EngineError(
      f'The engine {run.engine!r} is not installed: {missing}.{instead}'
    ) from e
  with module.open_engine(run, seeds) as engine:
    yield engine
