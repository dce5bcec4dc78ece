"""The base of the project's own exceptions."""


class PdaFedError(Exception):
  """Something outside the program's code is wrong; the message says what to do.

  Arguments out of range are ValueError and TypeError, as everywhere in Python.
  """
