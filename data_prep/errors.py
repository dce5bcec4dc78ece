"""Errors of sources and stores."""

from pda_fed import errors


class SourceError(errors.PdaFedError):
  """A source cannot be read. The message names the file and the remedy.

  Example:

    >>> from pda_fed import errors
    >>> issubclass(SourceError, errors.PdaFedError)
    True
  """


class StoreError(errors.PdaFedError):
  """A store cannot be read or written.

  Example:

    >>> from pda_fed import errors
    >>> issubclass(StoreError, errors.PdaFedError)
    True
  """
