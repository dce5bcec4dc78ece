"""What can go wrong with a TFF worker, as exceptions that say what to do."""

from pda_fed import errors


class WorkerError(errors.PdaFedError, RuntimeError):
  """A TFF worker cannot be used. The message names the cause and the log."""


class WorkerStartError(WorkerError):
  """The worker did not come up."""


class WorkerDiedError(WorkerError):
  """The worker ended while it was needed, or was stopped before a call."""


class WorkerVersionError(WorkerError):
  """A remote worker is of another version, or is no worker of ours."""


class IsolationError(WorkerError):
  """The worker cannot be closed off from the network, as was required."""
