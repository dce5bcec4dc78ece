"""Shows what a run does: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Mapping, Sequence
import functools
import shutil
import sys
from typing import Any, Optional, TextIO
import warnings

from pda_fed import privacy
from pda_fed.runs import loop as loop_lib
from pda_fed.runs import overview

_LINE = 'round {n_fmt}/{total_fmt}{postfix}, {rate_inv_fmt}, ETA {remaining}'
# Minimum time between plain lines, except for evaluations.
_SECONDS_PER_LINE = 10.0

_FORMATS: dict[str, tuple[str, Callable[[Any], str]]] = {
  'train_loss': ('train loss', '{:.3f}'.format),
  'loss': ('loss', '{:.3f}'.format),
  'accuracy': ('accuracy', '{:.1%}'.format),
  # Between evaluations, epsilon of the next evaluated round is shown.
  'epsilon': (
    'epsilon so far at most',
    functools.partial(privacy.round_up, digits=3),
  ),
  'alpha': ('alpha', '{:.3f}'.format),
  'diverged_clients': ('diverged clients', '{:.1f}'.format),
}
# Shown only if not zero.
_RARE = ('diverged_clients',)


def _describe(values: Mapping[str, Any]) -> str:
  return ', '.join(
    f'{title} {form(values[name])}'
    for name, (title, form) in _FORMATS.items()
    if values.get(name) is not None and (values[name] or name not in _RARE)
  )


def terminal_columns() -> int:
  """Returns the width of a bar, even if the terminal's width is unknown."""
  return max(20, shutil.get_terminal_size().columns - 1)


class Progress(loop_lib.Callback):
  """Shows a run's plan, its warnings, its pace and its newest metrics.

  Example:

  ```
  train(run, 'out/pda', callbacks=[Progress()])
  ```
  """

  def __init__(
    self, cautions: Sequence[str] = (), stream: Optional[TextIO] = None
  ):
    """Initializes the display.

    Args:
      cautions: The caller's warnings, shown with the plan.
      stream: Where to show it; by default stderr.
    """
    self._cautions = cautions
    self._stream = stream or sys.stderr
    self._is_terminal = self._stream.isatty()
    self._bar: Any = None
    self._values: dict[str, Any] = {}
    self._waits = False

  def _print(self, line: str) -> None:
    print(line, file=self._stream, flush=True)

  def _open(self, **options: Any) -> None:
    import tqdm  # Only programs need it.

    self.close()
    if self._is_terminal:
      # tqdm shows nothing if the terminal reports 0 rows.
      size = {'ncols': terminal_columns(), 'nrows': 20}
      self._bar = tqdm.tqdm(file=self._stream, leave=False, **size, **options)
      return

    class Lines(tqdm.tqdm):
      """A bar that prints lines."""

      monitor_interval = 0  # No lines between rounds.

      def display(self, msg=None, pos=None):
        if msg is None:  # Else the bar is cleared.
          print(*str(self).split(), file=self.fp, flush=True)

    options |= {'delay': 1e-9, 'miniters': 1, 'mininterval': _SECONDS_PER_LINE}
    self._bar = Lines(
      file=self._stream, leave=False, bar_format=_LINE, smoothing=0, **options
    )

  def opened(self, loop) -> None:
    """Shows the run's plan, and warnings about its settings."""
    self._values = {}  # An audit runs a copy after the run.
    run, weights = loop.run, loop.weights
    num_weights = sum(int(w.size) for w in weights.values())
    for line in overview.describe(run, loop.epsilon, num_weights):
      self._print(line)
    found = overview.cautions(run.plan, loop.epsilon, num_weights)
    for caution in (*self._cautions, *found):
      warnings.warn(caution, stacklevel=2)

  def pretraining(self, loop, epoch: int, loss: float) -> None:
    text = f'held-out loss {loss:.4f}'
    if not self._is_terminal:
      self._print(f'pre-training, epoch {epoch}: {text}')
      return
    if self._bar is None or self._bar.unit != ' epochs':
      self._open(desc='pre-training', unit=' epochs')
    self._bar.set_postfix_str(text, refresh=False)
    self._bar.update(epoch - self._bar.n)

  def waiting(self, loop) -> None:
    if not self._waits:
      self._print('waiting for the same warm start in another process')
    self._waits = True

  def start(self, loop) -> None:
    done, total = loop.done, loop.run.plan.rounds
    if done:
      self._print(f'resuming after round {done} of {total}')
    self._open(total=total, initial=done, unit='round')

  def _show(self, values: Mapping[str, Any]) -> None:
    self._values |= values
    # A line has no metrics of an earlier evaluation, which others have shown.
    shown = self._values if self._is_terminal else values
    self._bar.set_postfix_str(_describe(shown), refresh=False)

  def rounds(self, loop, metrics) -> None:
    self._show({**metrics[-1], 'epsilon': loop.epsilon_at(loop.done)})
    self._bar.update(loop.done - self._bar.n)

  def rows(self, loop, rows) -> None:
    if self._bar is not None:  # Else a resumed run writes its rows again.
      self._show(rows[-1])
      self._bar.refresh()

  def close(self) -> None:
    if self._bar is not None:
      self._bar.close()
      self._bar = None
