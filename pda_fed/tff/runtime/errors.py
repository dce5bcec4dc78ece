"""Exceptions of the runtime."""

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
    name: 'the server' or 'all clients'; '' if unspecified.
    client: The client's index in the cohort, from 0; None if it is not a
      client.
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
  """A TFF computation failed. The message says where and why.

  If TensorFlow raised an error in this process, it is the `__cause__`.

  Attributes:
    place: Where it failed.
    reason: Why it failed, without the place.
  """

  exit_code = 3

  def __init__(self, place: Place, reason: str):
    super().__init__(f'At {place}: {reason}' if str(place) else reason)
    self.place = place
    self.reason = reason


class UnsupportedComputationError(errors.PdaFedError, RuntimeError):
  """The runtime cannot run a part of a TFF computation."""


def as_computation_error(place: Place, error: BaseException) -> Exception:
  """Returns the error to raise for a task that failed.

  Args:
    place: Where the task ran.
    error: The error that it raised.

  Returns:
    A `ComputationError` whose cause is `error`, or `error` itself if it is a
    `PdaFedError`, which is more specific.
  """
  if isinstance(error, errors.PdaFedError):
    return error
  # TensorFlow adds many lines about the node's position in its graph.
  lines = [line.strip() for line in str(error).splitlines()]
  reason = ' '.join(line for line in lines if not _GRAPH_PLACE.match(line))
  reason = _NODE.sub('', reason).strip()
  found = ComputationError(place, reason or type(error).__name__)
  found.__cause__ = error
  return found
