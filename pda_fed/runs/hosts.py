"""Runs one experiment on several hosts, with JAX's distributed runtime.

Host 0, the leader, runs the loop, writes the outputs and sends commands to the
other hosts. Commands go through the key-value store of JAX's coordination
service, arrays through collectives. Only hosts that know the cluster secret
reach the store, and what they send there is encrypted (`common.gate`).
Collectives are not encrypted. Each host sends heartbeats, so that the others
notice if it dies or hangs, even while they wait for a collective.
"""

from collections.abc import Callable, Mapping
from concurrent import futures
import json
import signal
import threading
import time
from typing import Any, Optional

from pda_fed import errors as base_errors
from pda_fed.common import signals

# A host is lost after this many seconds without a heartbeat.
TIMEOUT_S = 30.0
_BEAT_S = 2.0
_POLL_S = 0.1
_SAY_LIMIT = 300


class HostError(base_errors.PdaFedError):
  """A host of a run on several hosts is lost.

  Example:

    >>> HostError('Host 1 is lost.').exit_code
    3
  """

  exit_code = 3


class LeaderError(base_errors.PdaFedError):
  """Host 0 has ended the run; other hosts end with the same message.

  Example:

    >>> LeaderError('The disk is full.', 3).exit_code
    3

  Attributes:
    exit_code: The exit code of host 0.
  """

  def __init__(self, message: str, exit_code: int):
    super().__init__(message)
    self.exit_code = exit_code


class DisagreementError(ValueError):
  """Hosts differ where they must not; raised on all of them.

  Example: see `Hosts.agree`.
  """


class Hosts:
  """One host's connection to all hosts of a run.

  Example:

  ```
  place = connecting.HostSettings('secret', '10.0.0.1:8476', 2, host_index=0)
  hosts = connecting.connect(place)
  hosts.agree({'jax': jax.__version__}, config.differences)
  ```

  Attributes:
    index: The index of this host.
    count: The number of hosts.
  """

  def __init__(self, client: Any, index: int, count: int):
    """Starts to send heartbeats and to watch those of other hosts.

    Args:
      client: The client of JAX's coordination service.
      index: The index of this host.
      count: The number of hosts.
    """
    self.index = index
    self.count = count
    self._client = client
    self._said = 0
    self._agreed = 0
    self._lost: Optional[str] = None
    self._ended: Optional[LeaderError] = None
    self._is_stopped = False
    self._stop: Optional[signals.StopSignals] = None
    self._answered = time.monotonic()
    self._closing = threading.Event()
    self._pool = futures.ThreadPoolExecutor(1, 'all_hosts')
    # If host 0 hangs, requests to it never return, whatever their timeout.
    self._questions = futures.ThreadPoolExecutor(8, 'host_0')
    self._watch = threading.Thread(target=self._beat_until_closed, daemon=True)
    self._watch.start()

  @property
  def is_leader(self) -> bool:
    """Whether this host runs the loop and writes outputs."""
    return self.index == 0

  def _beat_until_closed(self) -> None:
    seen: dict[str, tuple[str, float]] = {}
    number = 0
    while self._lost is None:
      number += 1
      try:
        self._set(f'beat/{self.index}', str(number))
        said = dict(self._client.key_value_dir_get('host/'))
      except Exception as e:  # JAX has its own errors, in several modules.
        self._lost = f'host 0 is lost ({first_line(e)})'
        return
      self._answered = now = time.monotonic()
      self._look(said, seen, now)
      if self._closing.wait(_BEAT_S):
        return

  def _set(self, name: str, value: str) -> None:
    self._client.key_value_set(f'host/{name}', value, allow_overwrite=True)

  def _look(self, said, seen: dict[str, tuple[str, float]], now: float) -> None:
    """Finds hosts that are silent, have failed, or got a stop signal."""
    said = {name.removeprefix('host/'): value for name, value in said.items()}
    for host in range(self.count):
      value = said.get(f'beat/{host}', '')
      before, since = seen.get(f'{host}', (None, now))
      if value != before:
        seen[f'{host}'] = value, now
      elif now - since > TIMEOUT_S and f'left/{host}' not in said:
        self._lost = f'host {host} sent no heartbeat for {TIMEOUT_S:g} s'
      if f'failed/{host}' in said and host != self.index:
        self._lost = f'host {host} has failed: {said[f"failed/{host}"]}'
    if 'ended' in said and not self.is_leader:
      self._ended = LeaderError(**json.loads(said['ended']))
    asked = any(name.startswith('stop/') for name in said)
    if asked and self.is_leader and not self._is_stopped:
      # The loop saves the run, as if this host had got the signal.
      self._is_stopped = signals.StopSignals.request(signal.SIGTERM)

  def heed(self, stop: signals.StopSignals) -> None:
    """Asks the leader to stop when this host gets a signal.

    Args:
      stop: The handler that catches this host's signals.
    """
    self._stop = stop

  def check(self) -> None:
    """Raises HostError if a host is lost, LeaderError if host 0 has ended."""
    if self._stop is not None and self._stop.signum is not None:
      self._stop = None
      self._questions.submit(self._set, f'stop/{self.index}', '')
    if self._ended is not None:
      raise self._ended
    if self._lost is None:
      silence = time.monotonic() - self._answered
      if silence > TIMEOUT_S + _BEAT_S:
        self._lost = f'host 0 sent no heartbeat for {TIMEOUT_S:g} s'
    if self._lost is not None:
      raise HostError(f'The run ends on all hosts: {self._lost.rstrip(".")}.')

  def call(self, function: Callable[[], Any]) -> Any:
    """Calls a function that may wait for other hosts; returns its result.

    The function runs in its own thread, because a collective waits forever for
    a lost host.

    Args:
      function: The function.

    Raises:
      HostError: If a host is lost before the function returns.
    """
    try:
      return self._watched(self._pool.submit(function))
    except RuntimeError as e:
      if 'RESOURCE_EXHAUSTED' in str(e):
        raise HostError(
          'A device ran out of memory: give a lower --clients_per_chunk or'
          ' --microbatch_size.'
        ) from e
      if not type(e).__module__.startswith('jax') or self.count == 1:
        raise
      # A connection broke. Heartbeats will show which host is lost.
      end = time.monotonic() + TIMEOUT_S + 3 * _BEAT_S
      while time.monotonic() < end:
        self.check()
        time.sleep(_POLL_S)
      raise HostError(
        f'The run ends on all hosts: a connection is lost ({first_line(e)}).'
      ) from e

  def _watched(self, future: futures.Future) -> Any:
    while not futures.wait([future], timeout=_POLL_S).done:
      self.check()
    return future.result()

  def _get(self, key: str) -> Optional[str]:
    """Returns a value, or None if it is not set within a second."""
    try:
      return self._client.blocking_key_value_get(key, 1000)
    except Exception as e:  # JAX has its own errors, in several modules.
      if 'DEADLINE_EXCEEDED' not in str(e) and self._lost is None:
        self._lost = f'host 0 is lost ({first_line(e)})'
      return None

  def _wait_for(self, key: str) -> Any:
    while True:
      self.check()
      text = self._watched(self._questions.submit(self._get, key))
      if text is not None:
        return json.loads(text)

  def send(self, command: Mapping[str, Any]) -> None:
    """Sends a command to the other hosts; for the leader.

    Args:
      command: The command, as JSON values.
    """
    self._client.key_value_set(f'command/{self._said}', json.dumps(command))
    self._said += 1

  def receive(self) -> dict[str, Any]:
    """Returns the leader's next command; for the other hosts.

    Raises:
      HostError: If a host is lost before the command arrives.
    """
    command = self._wait_for(f'command/{self._said}')
    self._said += 1
    return command

  def agree(
    self,
    facts: Mapping[str, Any],
    differences: Callable[[dict, dict], list[str]],
  ) -> None:
    """Checks that facts are the same on all hosts.

    Args:
      facts: JSON values by name.
      differences: Describes how the facts of two hosts differ.

    Raises:
      HostError: If a host is lost.
      DisagreementError: On every host, if a host differs from host 0.
    """
    key = f'facts/{self._agreed}'
    self._agreed += 1
    own = f'{key}/{self.index}', json.dumps(facts)
    self._watched(self._questions.submit(self._client.key_value_set, *own))
    first, *others = [
      self._wait_for(f'{key}/{host}') for host in range(self.count)
    ]
    for host, other in enumerate(others, 1):
      lines = differences(first, other)
      if lines:
        raise DisagreementError(
          'All hosts must have the same flags, data, code and kind of device.'
          f' Host 0 -> host {host}: {"; ".join(lines)}.'
        )

  def fail(self, message: str) -> None:
    """Tells the other hosts that this host has failed.

    Args:
      message: The error message.
    """
    self._try(self._set, f'failed/{self.index}', message[:_SAY_LIMIT])

  def end(self, message: str, exit_code: int) -> None:
    """Tells the other hosts to end; for the leader.

    Args:
      message: The error message.
      exit_code: The exit code of all hosts.
    """
    words = json.dumps({'message': message, 'exit_code': exit_code})
    self._try(self._set, 'ended', words)

  def _try(self, function: Callable[..., Any], *arguments: Any) -> Any:
    """Sends a request to host 0; returns None if it does not answer."""
    future = self._questions.submit(function, *arguments)
    try:
      return future.result(timeout=_BEAT_S)
    except Exception:  # Host 0 is lost, or hangs. JAX has its own errors.
      return None

  def leave(self, seconds: float = 10.0) -> None:
    """Stops the heartbeats; host 0 first waits until all hosts call this.

    Host 0 must not end first, because it holds the key-value store.

    Args:
      seconds: The maximum time that host 0 waits.
    """
    self._try(self._set, f'left/{self.index}', '')
    end = time.monotonic() + seconds
    while self.is_leader and time.monotonic() < end:
      said = self._try(self._client.key_value_dir_get, 'host/') or ()
      if sum('/left/' in name for name, _ in said) == self.count:
        break
      time.sleep(_POLL_S)
    self._closing.set()
    self._pool.shutdown(wait=False)
    self._questions.shutdown(wait=False)


def first_line(error: BaseException) -> str:
  """Returns the first line of an error's message, shortened if very long."""
  lines = str(error).splitlines() or [repr(error)]
  return lines[0][:_SAY_LIMIT].rstrip('.')
