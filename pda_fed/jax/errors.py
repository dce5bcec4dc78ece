"""Errors of the JAX engine that a user can fix."""

from pda_fed import errors


class DeviceError(errors.PdaFedError):
  """A requested device is not available.

  Example:

    >>> from pda_fed import errors
    >>> issubclass(DeviceError, errors.PdaFedError)
    True
  """


# Also raised by the training loop, which does not import JAX.
DivergenceError = errors.DivergenceError
