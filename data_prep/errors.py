"""What can be wrong with data: with a source, or with a store."""

from pda_fed import errors


class SourceError(errors.PdaFedError):
  """A source cannot be read; the message says which file and what to do.

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
