"""Runs one computation on several workers, which may fail.

TFF splits a computation at its aggregation into three: the work for some
clients (`up_to_merge`), the sum of two such results (`merge`), and the rest,
which has no aggregation (`after_merge`: in DP-FedAvg the noise, the mean and
the server's step). So

    some clients -> up_to_merge on worker 0 --.
    the others   -> up_to_merge on worker 1 ---+-> merge -> after_merge

adds the noise once, to the sum over all workers.

TFF's own context for this blocks in each call, so that its workers compute one
after the other. It merges in the order in which they finish, so that rounding
changes from run to run. And it cannot handle the loss of a worker. This context
computes in parallel and merges in the order of the clients. Clients are split
by the configured number of workers. If a worker fails, another computes its
part. The three computations depend only on their arguments, so the result,
including the noise, is the same whichever worker computes them, and however
often.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
import functools
import itertools
import threading
from typing import Any, Protocol
import warnings

from pda_fed.runtime import errors
from pda_fed.runtime import executors
import tensorflow_federated as tff
from tensorflow_federated.python.core.backends.native import (
  mergeable_comp_compiler,
)
from tensorflow_federated.python.core.impl.execution_contexts import (
  mergeable_comp_execution_context as mergeable,
)
from tensorflow_federated.python.core.impl.executors import cardinalities_utils
from tensorflow_federated.python.core.impl.types import type_analysis
from tensorflow_federated.python.core.impl.types import type_conversions

_compile_mergeable = executors.Compiler(
  mergeable_comp_compiler.compile_to_mergeable_comp_form
)


class Seat(Protocol):
  """A worker as a member of a group.

  Attributes:
    name: The name, for messages.
    usable: Whether the worker is connected.
  """

  name: str

  @property
  def usable(self) -> bool:
    """See above."""

  def check_owner(self) -> None:
    """Raises `WorkerDiedError` in a process that must not use the worker."""

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation.

    Args:
      comp: A TFF computation.
      arg: Its argument.

    Raises:
      WorkerDiedError: If the worker failed, not the computation.
    """


def _start(function: Callable[..., Any], *args) -> futures.Future:
  """Calls a function on a daemon thread."""
  future = futures.Future()

  def run():
    try:
      future.set_result(function(*args))
    except BaseException as e:
      future.set_exception(e)

  threading.Thread(target=run, daemon=True).start()
  return future


def _has_clients(type_spec: tff.Type) -> bool:
  return type_spec is not None and type_analysis.contains(
    type_spec,
    lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS,
  )


def _is_one_for_all(type_spec: tff.Type) -> bool:
  """Returns whether a result has no per-client values."""
  return type_analysis.contains_only(
    type_spec,
    lambda t: not isinstance(t, tff.FederatedType) or t.all_equal,
  )


def _with_clients(arg: Any, type_spec: tff.Type, chosen: slice) -> Any:
  """Returns the argument with some of its clients; shared values stay."""
  if isinstance(type_spec, tff.StructType):
    elements = zip(
      tff.structure.from_container(arg),
      tff.structure.iter_elements(type_spec),
      strict=True,
    )
    return tff.structure.Struct(
      [(name, _with_clients(e, t, chosen)) for e, (name, t) in elements]
    )
  is_each_clients = (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is tff.CLIENTS
    and not type_spec.all_equal
  )
  return arg[chosen] if is_each_clients else arg


def _count_clients(arg: Any, type_spec: tff.Type) -> int:
  found = cardinalities_utils.infer_cardinalities(arg, type_spec)
  return found.get(tff.CLIENTS, 0)


def _in_cohort(
  error: errors.ComputationError, first: int, num_clients: int
) -> errors.ComputationError:
  """Returns a part's error with the client's index in the whole cohort."""
  client = error.place.client
  if client is None:
    return error
  place = errors.Place(error.place.name, first + client, num_clients)
  return errors.ComputationError(place, error.reason)


def _split_clients(arg: Any, type_spec: tff.Type, most: int) -> list[Any]:
  """Splits clients into consecutive parts of nearly equal size.

  TFF's own function is wrong if the last element of the argument is not placed
  at clients: it returns the first part again and again, and never the others.

  Args:
    arg: The argument.
    type_spec: The type of the argument.
    most: The number of parts. With fewer clients, each client is a part.

  Returns:
    At least one part. It is empty if there are no clients.
  """
  clients = _count_clients(arg, type_spec)
  parts = min(most, clients) or 1
  size, larger = divmod(clients, parts)
  bounds = [i * size + min(i, larger) for i in range(parts + 1)]
  return [
    _with_clients(arg, type_spec, slice(*of_part))
    for of_part in itertools.pairwise(bounds)
  ]


class SharedContext(tff.framework.SyncContext):
  """Splits the clients of each computation over workers."""

  def __init__(self, seats: Sequence[Seat]):
    """Initializes the context.

    Args:
      seats: The workers. Clients are split by their number, usable or not.
    """
    self._seats = list(seats)

  def invoke(self, comp, arg):
    """See the base class.

    Args:
      comp: A computation with at most one aggregation.
      arg: The argument.

    Returns:
      The result.

    Raises:
      WorkerDiedError: If no worker is left.
    """
    for seat in self._seats:
      seat.check_owner()
    if not _has_clients(comp.type_signature.parameter):
      return self._run(0, comp, arg)
    form = _compile_mergeable(comp)
    type_spec = form.up_to_merge.type_signature.parameter
    parts = _split_clients(arg, type_spec, len(self._seats))
    merged = functools.reduce(
      lambda a, b: self._run(0, form.merge, tff.structure.Struct.unnamed(a, b)),
      self._run_all(form.up_to_merge, parts),
    )
    result_type = form.after_merge.type_signature.result
    if _is_one_for_all(result_type):
      # Do not send the clients' data twice.
      parts = [_with_clients(arg, type_spec, slice(0))]
    results = self._run_all(
      form.after_merge,
      [tff.structure.Struct.unnamed(part, merged) for part in parts],
    )
    return type_conversions.type_to_py_container(
      mergeable._repackage_partitioned_values(results, result_type), result_type
    )

  def _run_all(self, comp, args: Sequence[Any]) -> list[Any]:
    """Runs a computation on each argument, in parallel."""
    started = [_start(self._run, i, comp, arg) for i, arg in enumerate(args)]
    futures.wait(started)  # None may still run during the next call.
    sizes = [_count_clients(arg, comp.type_signature.parameter) for arg in args]
    for i, future in enumerate(started):
      error = future.exception()
      if isinstance(error, errors.ComputationError):
        raise _in_cohort(error, sum(sizes[:i]), sum(sizes)) from error
    return [future.result() for future in started]

  def _run(self, index: int, comp, arg) -> Any:
    """Runs a computation on the seat with an index, or on a later one."""
    failure = None
    for seat in self._seats[index:] + self._seats[:index]:
      if not seat.usable:
        continue
      try:
        return seat.invoke(comp, arg)
      except errors.WorkerDiedError as e:
        failure = e
        warnings.warn(
          f'{e} Another worker does its part of the computation.',
          RuntimeWarning,
          stacklevel=2,
        )
    names = ', '.join(seat.name for seat in self._seats)
    raise errors.WorkerDiedError(
      f'No worker of {names} is left. Last error: {failure}'
    ) from failure
