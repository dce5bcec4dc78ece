"""Exceptions that several packages share, and the base class of all of them."""

import signal


class PdaFedError(Exception):
  """Something outside the program's code is wrong; the message says what to do.

  Invalid arguments raise ValueError or TypeError, as usual in Python.

  Example:

  ```
  try:
    folder = runs_lib.train(run, 'out/pda')
  except errors.PdaFedError as e:
    print(e)  # What is wrong, and what to do about it.
  ```

  Attributes:
    exit_code: The exit code of a program that ends with this error: 2 for
      invalid input, 3 for a failure that a retry may avoid, 4 for training that
      diverged, 5 for an audit that contradicts the proven epsilon.
  """

  exit_code = 2


class OutputError(PdaFedError):
  """The contents of an output folder are missing, damaged or unexpected.

  Example:

  ```
  try:
    runs_lib.RunFolder(pathlib.Path('out/pda')).read_finished()
  except errors.OutputError as e:
    print(e)  # Which file, and what is wrong with it.
  ```
  """


class BusyError(OutputError):
  """Another process is using an output folder.

  Example:

    >>> BusyError('out/pda is in use.').exit_code
    3
  """

  exit_code = 3


class DivergenceError(PdaFedError):
  """Training produced values that are not finite, and would do so again.

  Example:

    >>> DivergenceError('Round 3: the model is no longer finite.').exit_code
    4
  """

  exit_code = 4


class AuditError(PdaFedError):
  """An audit measured more than the proven epsilon.

  Example:

    >>> AuditError('The audit shows an epsilon of at least 3.').exit_code
    5
  """

  exit_code = 5


class CheckpointError(PdaFedError):
  """A checkpoint cannot be written, read or used.

  Example:

  ```
  try:
    runs_lib.train(run, 'out/pda')
  except errors.CheckpointError as e:
    print(e)  # Which file, and what to do about it.
  ```
  """

  exit_code = 3


class EngineError(PdaFedError):
  """An engine is unavailable, or has failed.

  Example: see `CheckpointError`.
  """

  exit_code = 3


class UntrustedCodeError(PdaFedError):
  """A file names a Python module, and the user has not said to trust it.

  Example:

  ```
  try:
    model = runs_lib.load_model('pda.npz')
  except errors.UntrustedCodeError as e:
    print(e)  # Which module, and which file names it.
  ```
  """


class StoppedError(PdaFedError):
  """A signal stopped a program, which saved its progress first.

  Example:

    >>> StoppedError(signal.SIGINT, 'the run is saved').exit_code
    130

  Attributes:
    exit_code: 128 plus the signal's number, as shells expect.
  """

  def __init__(self, signum: int, message: str):
    super().__init__(f'{signal.Signals(signum).name}: {message}')
    self.exit_code = 128 + signum
