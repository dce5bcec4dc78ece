"""The base of the project's own exceptions, and those of more than one room."""

import signal


class PdaFedError(Exception):
  """Something outside the program's code is wrong; the message says what to do.

  Arguments out of range are ValueError and TypeError, as everywhere in Python.

  Example:

  ```
  try:
    folder = experiments.train(config, experiments.open_engine, 'out/pda')
  except errors.PdaFedError as e:
    print(e)  # What is wrong, and what to do about it.
  ```

  Attributes:
    exit_code: The exit code of a program that ends by it: 2 for what it was
      given, 3 for what another try may not meet, 4 for training that diverged,
      5 for an audit that contradicts the proven epsilon.
  """

  exit_code = 2


class OutputError(PdaFedError):
  """An output folder does not hold what it should.

  Example:

  ```
  try:
    experiments.RunFolder(pathlib.Path('out/pda')).read_finished()
  except errors.OutputError as e:
    print(e)  # Which file, and what is wrong with it.
  ```
  """


class BusyError(OutputError):
  """Another process is at work in an output folder.

  Example:

    >>> BusyError('out/pda is in use.').exit_code
    3
  """

  exit_code = 3


class DivergenceError(PdaFedError):
  """Training has left the finite numbers, and would do so again.

  Example:

    >>> DivergenceError('Round 3: the model is no longer finite.').exit_code
    4
  """

  exit_code = 4


class StoppedError(PdaFedError):
  """A signal ended a program, which has saved what it had.

  Example:

    >>> StoppedError(signal.SIGINT, 'the run is saved').exit_code
    130

  Attributes:
    exit_code: What a shell expects of a program that a signal ended.
  """

  def __init__(self, signum: int, message: str):
    super().__init__(f'{signal.Signals(signum).name}: {message}')
    self.exit_code = 128 + signum
