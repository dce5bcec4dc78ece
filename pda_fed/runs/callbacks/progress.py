"""Progress displays: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Sequence
import functools
import shutil
import sys
import time
from typing import Any, Optional, TextIO
import warnings

from pda_fed import privacy
from pda_fed.runs import loop as loop_lib
from pda_fed.runs import overview

# Minimum time between plain lines, except for evaluations.
_SECONDS_PER_LINE = 10.0
# Minimum number of rounds that are left for an estimate of their time.
_LONG_RUN = 10

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


def _describe(values: dict[str, Any]) -> dict[str, str]:
  return {
    title: form(values[name])
    for name, (title, form) in _FORMATS.items()
    if values.get(name) is not None and (values[name] or name not in _RARE)
  }


def _duration(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02d}:{seconds:02d}'


def terminal_columns() -> int:
  """Returns the width of a bar, even if the terminal's width is unknown."""
  return max(20, shutil.get_terminal_size().columns - 1)


class Progress:
  """Base class of progress displays; shows nothing.

  Attributes:
    shows_time: Whether to estimate the run's time before it starts.
    cautions: The caller's warnings, shown with the overview.
  """

  shows_time = False
  cautions: Sequence[str] = ()

  def overview(self, lines: Sequence[str]) -> None:
    """Called before the first round, with a description of the run."""

  def start(self, done: int, total: int) -> None:
    """Called once, before the first round of this process."""

  def pretraining(self, epoch: int, loss: float) -> None:
    """Called after each epoch of a warm start."""

  def waiting(self) -> None:
    """Called while another process trains the same warm start."""

  def rounds(self, done: int, metrics: dict[str, float]) -> None:
    """Called after rounds, with the metrics of the last round."""

  def evaluated(self, row: dict[str, Any]) -> None:
    """Called with a row of metrics.csv."""

  def close(self) -> None:
    """Called at the end, also after an error."""


class _Shown(Progress):
  """Tracks the newest values and the pace."""

  shows_time = True

  def overview(self, lines: Sequence[str]) -> None:
    """See the base class."""
    print('\n'.join(lines), file=sys.stderr, flush=True)

  def __init__(self) -> None:
    self._values: dict[str, Any] = {}
    self._total = 0
    self._done = 0
    self._first = 0
    self._started = 0.0

  def start(self, done: int, total: int) -> None:
    """See the base class."""
    self._first = self._done = done
    self._total = total
    self._started = time.monotonic()

  def rounds(self, done: int, metrics: dict[str, float]) -> None:
    """See the base class."""
    self._done = done
    self._values |= metrics

  def evaluated(self, row: dict[str, Any]) -> None:
    """See the base class."""
    self._values |= row

  def _pace(self) -> Optional[float]:
    """Returns seconds per round in this process, with evaluations."""
    if self._done <= self._first:
      return None
    return (time.monotonic() - self._started) / (self._done - self._first)


class PlainProgress(_Shown):
  """Prints a line at each evaluation, and occasionally in between."""

  def __init__(self, stream: Optional[TextIO] = None):
    super().__init__()
    self._stream = stream or sys.stderr
    self._last_line = 0.0
    self._waits = False

  def _print(self, line: str) -> None:
    self._last_line = time.monotonic()
    print(line, file=self._stream, flush=True)

  def start(self, done: int, total: int) -> None:
    """See the base class."""
    super().start(done, total)
    if done:
      self._print(f'resuming after round {done} of {total}')

  def pretraining(self, epoch: int, loss: float) -> None:
    """See the base class."""
    self._print(f'pre-training, epoch {epoch}: held-out loss {loss:.4f}')

  def waiting(self) -> None:
    """See the base class."""
    if not self._waits:
      self._print('waiting for the same warm start in another process')
    self._waits = True

  def rounds(self, done: int, metrics: dict[str, float]) -> None:
    """See the base class."""
    super().rounds(done, metrics)
    if time.monotonic() - self._last_line >= _SECONDS_PER_LINE:
      # Validation metrics belong to an earlier round and were shown then.
      self._show(metrics)

  def evaluated(self, row: dict[str, Any]) -> None:
    """See the base class."""
    super().evaluated(row)
    self._show(self._values)

  def _show(self, values: dict[str, Any]) -> None:
    parts = [f'{k} {v}' for k, v in _describe(values).items()]
    pace = self._pace()
    if pace is not None:
      rest = _duration(pace * (self._total - self._done))
      parts += [f'{pace:.2f} s/round', f'ETA {rest}']
    self._print(f'round {self._done}/{self._total}: {", ".join(parts)}')


class BarProgress(_Shown):
  """Shows a progress bar with the newest values."""

  def __init__(self):
    super().__init__()
    import tqdm  # Optional: `create_progress` falls back to plain lines.

    self._tqdm = tqdm.tqdm
    self._bar = None

  def _open(self, **options) -> None:
    self.close()
    # tqdm shows nothing if the terminal reports 0 rows.
    size = {'ncols': terminal_columns(), 'nrows': 20}
    self._bar = self._tqdm(leave=False, **size, **options)

  def pretraining(self, epoch: int, loss: float) -> None:
    """See the base class."""
    if self._bar is None:
      self._open(desc='pre-training', unit=' epochs')
    self._bar.set_postfix_str(f'held-out loss {loss:.4f}', refresh=False)
    self._bar.update(epoch - self._bar.n)

  def waiting(self) -> None:
    """See the base class."""
    if self._bar is None:
      self._open(desc='waiting for the same warm start in another process')

  def start(self, done: int, total: int) -> None:
    """See the base class."""
    super().start(done, total)
    self._open(total=total, initial=done, unit=' rounds')

  def rounds(self, done: int, metrics: dict[str, float]) -> None:
    """See the base class."""
    super().rounds(done, metrics)
    self._refresh()
    self._bar.update(done - self._bar.n)

  def evaluated(self, row: dict[str, Any]) -> None:
    """See the base class."""
    super().evaluated(row)
    self._refresh()
    self._bar.refresh()

  def _refresh(self) -> None:
    parts = [f'{k} {v}' for k, v in _describe(self._values).items()]
    pace = self._pace()
    if pace is not None:
      parts.append(f'{pace:.2f} s/round')
    self._bar.set_postfix_str(', '.join(parts), refresh=False)

  def close(self) -> None:
    """See the base class."""
    if self._bar is not None:
      self._bar.close()
      self._bar = None


class Shown(loop_lib.Callback):
  """Tells a display what a run does."""

  def __init__(self, display: Progress):
    self._display = display
    self._calls = 0
    self._is_started = False
    self._before = 0, 0.0

  def opened(self, loop) -> None:
    """Shows the run's overview, and warnings about its settings."""
    run, weights = loop.run, loop.weights
    sizes = run.data.about.get('users') or run.data.about.get('examples')
    num_weights = sum(int(w.size) for w in weights)
    self._display.overview(
      overview.describe(run, loop.epsilon, sizes=sizes, num_weights=num_weights)
    )
    found = overview.cautions(run.plan, loop.epsilon, num_weights)
    for caution in (*self._display.cautions, *found):
      warnings.warn(caution, stacklevel=2)

  def start(self, loop) -> None:
    self._before = loop.done, loop.record.seconds
    self._is_started = True
    self._display.start(loop.done, loop.run.plan.rounds)

  def rounds(self, loop, metrics) -> None:
    epsilon = loop.epsilon_at(loop.done)
    self._display.rounds(loop.done, {**metrics[-1], 'epsilon': epsilon})
    self._calls += 1
    done, seconds = self._before
    left = loop.run.plan.rounds - loop.done
    # The first call also compiles.
    if self._calls == 2 and self._display.shows_time and left >= _LONG_RUN:
      pace = (loop.record.seconds - seconds) / (loop.done - done)
      self._display.overview([overview.describe_time(pace, left)])
    self._before = loop.done, loop.record.seconds

  def rows(self, loop, rows) -> None:
    if self._is_started:  # Else a resumed run writes its rows again.
      self._display.evaluated(rows[-1])

  def close(self) -> None:
    self._display.close()


def create_progress() -> Progress:
  """Returns a progress bar if stderr is a terminal, plain lines otherwise.

  Example:

  ```
  train(run, 'out/pda', progress=create_progress())
  ```
  """
  if sys.stderr.isatty():
    try:
      return BarProgress()
    except ImportError:
      pass
  return PlainProgress()
