"""Errors of rounds in JAX that a user can mend."""

from pda_fed import errors


class DeviceError(errors.PdaFedError):
  """A device that was asked for is not there.

  Example:

    >>> from pda_fed import errors
    >>> issubclass(DeviceError, errors.PdaFedError)
    True
  """


# Of the loop too, which knows no JAX.
DivergenceError = errors.DivergenceError
