"""Errors of experiments that a user can mend."""

from pda_fed import errors


class CheckpointError(errors.PdaFedError):
  """A checkpoint cannot be written, read or used."""


class EngineError(errors.PdaFedError):
  """An engine is not there, or has failed."""


class OutputError(errors.PdaFedError):
  """An output folder does not hold what it should."""
