"""Errors of experiments that a user can fix."""

from pda_fed import errors


class AuditError(errors.PdaFedError):
  """An audit measured more than the proven epsilon.

  Example:

    >>> AuditError('The audit shows an epsilon of at least 3.').exit_code
    5
  """

  exit_code = 5


class CheckpointError(errors.PdaFedError):
  """A checkpoint cannot be written, read or used.

  Example:

  ```
  try:
    train(config, open_engine, 'out/pda')
  except CheckpointError as e:
    print(e)  # Which file, and what to do about it.
  ```
  """

  exit_code = 3


class EngineError(errors.PdaFedError):
  """An engine is unavailable, or has failed.

  Example: see `CheckpointError`.
  """

  exit_code = 3


# Defined in pda_fed.errors because lower layers, such as files, raise it too.
OutputError = errors.OutputError
