"""TFF's functions for local contexts, answered by our runtime.

TFF offers `create_` and `set_`, `sync` and `async` functions for contexts that
start its C++ program, in `tff.backends.native` and `tff.backends.test`.
`install` replaces them, so that TFF code runs as it stands.
"""

import functools
import importlib
import os
import sys
from typing import Any, Optional
import warnings

from pda_fed.common import validate

_BACKENDS = 'tensorflow_federated.python.core.backends'
_parent: Optional[int] = None


def process_of_tensorflow() -> int:
  """Returns the id of the process that can use TensorFlow.

  It is this one, or the one that started TensorFlow and then forked this one.
  """
  return os.getpid() if _parent is None else _parent


def _note_fork() -> None:
  # TensorFlow exports no other way to see whether it has started its threads.
  from tensorflow.python.eager import context

  global _parent
  found = context.context_safe()
  if found is not None and found._initialized:
    _parent = os.getppid()


@functools.cache
def _warn_of_streaming() -> None:
  warnings.warn(
    'stream_structs has no effect: the runtime of pda_fed sends nothing, so it'
    ' streams nothing.',
    stacklevel=4,
  )


def _create(
  kind: str,
  default_num_clients: int = 0,
  max_concurrent_computation_calls: Optional[int] = -1,
  stream_structs: bool = False,
) -> Any:
  """Creates a context; the arguments are those of TFF's functions.

  Args:
    kind: 'sync' or 'async'.
    default_num_clients: Number of clients of computations whose argument has no
      value at clients.
    max_concurrent_computation_calls: Number of clients simulated at a time;
      None and numbers below 1 stand for the number of cores.
    stream_structs: Has no effect.

  Returns:
    The context.
  """
  from pda_fed.tff import runtime  # It imports TFF, which calls this module.

  if stream_structs:
    _warn_of_streaming()
  of_kind = {
    'sync': runtime.InProcessContext,
    'async': runtime.AsyncInProcessContext,
  }
  threads = max_concurrent_computation_calls
  if threads is not None:
    validate.integers(-sys.maxsize, max_concurrent_computation_calls=threads)
    threads = threads if threads >= 1 else None
  return of_kind[kind](threads, default_num_clients)


def _set(kind: str, *args, **kwargs) -> None:
  from pda_fed.tff.runtime import context

  context.set_default(_create(kind, *args, **kwargs))


def install() -> None:
  """Replaces TFF's functions, in the packages and in the modules behind."""
  os.register_at_fork(after_in_child=_note_fork)
  for backend in ('native', 'test'):
    package = importlib.import_module(f'{_BACKENDS}.{backend}')
    module = importlib.import_module(f'{package.__name__}.execution_contexts')
    place = 'local' if backend == 'native' else 'test'
    for kind in ('sync', 'async'):
      for verb, function in (('create', _create), ('set', _set)):
        name = f'{verb}_{kind}_{place}_cpp_execution_context'
        ours = functools.partial(function, kind)
        functools.update_wrapper(ours, getattr(module, name))
        setattr(module, name, ours)
        setattr(package, name, ours)
