"""Errors of experiments that a user can mend."""

import signal

from pda_fed import errors


class CheckpointError(errors.PdaFedError):
  """A checkpoint cannot be written, read or used."""


class EngineError(errors.PdaFedError):
  """An engine is not there."""


class OutputError(errors.PdaFedError):
  """An output folder does not hold what it should."""


class Stopped(errors.PdaFedError):
  """A signal ended the run, which was saved.

  Attributes:
    exit_code: What a shell expects of a program that a signal ended.
  """

  def __init__(self, signum: int, message: str):
    super().__init__(f'{signal.Signals(signum).name}: {message}')
    self.exit_code = 128 + signum
