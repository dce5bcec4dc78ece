"""What can go wrong in the runtime, as exceptions that say what to do."""

import dataclasses
import re
from typing import Optional

from pda_fed import errors

_GRAPH_PLACE = re.compile(
  r'Graph execution error:|Detected at node .*|\[\[.*'
  r'|File ".*", line \d+, in .*'
)
_NODE = re.compile(r'\{\{.*?\}\} ?')


class RuntimeClosedError(errors.PdaFedError, RuntimeError):
  """The runtime was closed, or belongs to another process."""


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a part of a computation runs.

  Attributes:
    name: 'the server', or the name of a worker; '' for nothing in particular.
    client: The client's place in the cohort, counted from 0, if it is one's.
    num_clients: The size of the cohort.
  """

  name: str = ''
  client: Optional[int] = None
  num_clients: int = 0

  def __str__(self) -> str:
    if self.client is None:
      return self.name
    return f'client {self.client} of {self.num_clients} (counted from 0)'


NOWHERE = Place()


class ComputationError(errors.PdaFedError, RuntimeError):
  """A TFF computation failed. The message says where, and what happened.

  TensorFlow's error, if it was raised in this process, is the `__cause__`.

  Attributes:
    place: Where it failed.
    reason: What happened, without the place.
  """

  exit_code = 3

  def __init__(self, place: Place, reason: str):
    super().__init__(f'At {place}: {reason}' if str(place) else reason)
    self.place = place
    self.reason = reason


class UnsupportedComputationError(errors.PdaFedError, RuntimeError):
  """A TFF computation has a part that the runtime cannot run."""


class WorkerError(errors.PdaFedError, RuntimeError):
  """A worker cannot be used. The message names the cause."""


class WorkerStartError(WorkerError):
  """The worker did not come up."""


class WorkerDiedError(WorkerError):
  """The worker ended while it was needed, or the connection was closed."""


class WorkerVersionError(WorkerError):
  """A remote worker is of another version, or is no worker of ours."""


def as_computation_error(place: Place, error: BaseException) -> Exception:
  """Returns the error to raise for a task that failed.

  Args:
    place: Where the task ran.
    error: What it raised.

  Returns:
    A `ComputationError` whose cause is `error`, or `error` if it is one of ours
    and says more.
  """
  if isinstance(error, errors.PdaFedError):
    return error
  # TensorFlow adds where in its graph the node is, over many lines.
  lines = [line.strip() for line in str(error).splitlines()]
  reason = ' '.join(line for line in lines if not _GRAPH_PLACE.match(line))
  reason = _NODE.sub('', reason).strip()
  found = ComputationError(place, reason or type(error).__name__)
  found.__cause__ = error
  return found
