"""Errors of rounds in JAX that a user can mend."""

from pda_fed import errors


class DeviceError(errors.PdaFedError):
  """A device that was asked for is not there.

  Example:

    >>> from pda_fed import errors
    >>> issubclass(DeviceError, errors.PdaFedError)
    True
  """


class DivergenceError(errors.PdaFedError):
  """Training has left the finite numbers.

  Example:

    >>> from pda_fed import errors
    >>> issubclass(DivergenceError, errors.PdaFedError)
    True
  """
