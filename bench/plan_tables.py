"""Tables of the full-size plan, and of predictions and measurements."""

from collections.abc import Sequence
import dataclasses
import math

from pda_fed.common import tables

from bench import full_size
from bench import pieces as pieces_lib

_DATABASE_BYTES = 260  # Size of a sentence in TFF's database schema.
_PREPARED_PER_SECOND = 132_000  # Sentences; `bench.data_prep`, two cores.
_SWEEP_RUNS = 32


def _gigabytes(size: float) -> str:
  return f'{size / 1e9:.2f} GB'


def duration(seconds: float) -> str:
  """Formats a duration for people.

  Example:

    >>> duration(7200), duration(0.0123)
    ('2.0 h', '0.0123 s')

  Args:
    seconds: The duration in seconds.
  """
  if seconds < 600:
    return f'{seconds:.3g} s'
  if seconds < 7200:
    return f'{seconds / 60:.0f} min'
  if seconds < 48 * 3600:
    return f'{seconds / 3600:.1f} h'
  return f'{seconds / 86400:.1f} days'


def size_rows() -> list[tuple[str, str]]:
  """Returns the sizes on disk, and the time of preparation."""
  all_sentences = sum(s.sentences for s in full_size.SPLITS.values())
  stored = sum(s.most_stored for s in full_size.SPLITS.values())
  return [
    ('sentences of the source', f'{all_sentences:,}'),
    ('sentences stored, at most', f'{stored:,}'),
    ('database', _gigabytes(all_sentences * _DATABASE_BYTES)),
    ('token store, at most', _gigabytes(full_size.store_bytes())),
    ('its preparation, two cores', duration(stored / _PREPARED_PER_SECOND)),
    ('a checkpoint (three are kept)', _gigabytes(full_size.CHECKPOINT_BYTES)),
  ]


def plan_rows(
  pieces: pieces_lib.Pieces,
  link: pieces_lib.Link,
  counts: Sequence[int],
) -> list[tuple[str, ...]]:
  """Returns rows for one kind of device: a run, larger cohorts, a sweep.

  Args:
    pieces: Measured costs of the device.
    link: Connection between devices.
    counts: Numbers of devices.
  """
  alone = full_size.predict(full_size.Work(), pieces, link, 1)
  rows = []
  for name, scales in (
    ('one run, 100 clients', False),
    ('one run, 100 clients per device', True),
  ):
    for count in counts:
      work = full_size.Work(cohort=100 * count if scales else 100)
      best = full_size.predict(work, pieces, link, count)
      chosen = full_size.engine_choice(work, pieces, count)
      as_chosen = full_size.predict(work, pieces, link, count, chosen)
      with_public = dataclasses.replace(work, public_users=10)
      mirror = full_size.predict(with_public, pieces, link, count)
      gain = alone.round / best.round * work.cohort / 100
      rows.append(
        (
          *(name, str(count), str(best.clients_per_chunk)),
          *(f'{best.round:.3f}', f'{1000 * best.reduction:.1f}'),
          *(f'{as_chosen.round:.3f} ({chosen})', f'{mirror.round:.3f}'),
          *(f'{best.total / 3600:.2f}', f'{gain:.1f}'),
          f'{best.device_bytes / 1e9:.1f}',
          f'{best.host_bytes / 1e9:.2f}',
        )
      )
  for count in counts:
    hours = math.ceil(_SWEEP_RUNS / count) * alone.total / 3600
    rows.append(
      (
        *(f'{_SWEEP_RUNS} runs, one per device', str(count)),
        *(str(alone.clients_per_chunk), f'{alone.round:.3f}', '', '', ''),
        *(f'{hours:.2f}', f'{min(count, _SWEEP_RUNS):.1f}'),
        f'{alone.device_bytes / 1e9:.1f}',
        f'{alone.host_bytes / 1e9:.2f} a run',
      )
    )
  return rows


_PLAN_HEADER = (
  *('what', 'devices', 'side by side', 's/round', 'sums ms'),
  *("engine's choice s", 'PDA s', 'hours', 'speed-up'),
  *('GB per device', 'GB per host'),
)


def link_rows(
  pieces: pieces_lib.Pieces,
  links: Sequence[pieces_lib.Link],
  counts: Sequence[int],
) -> list[tuple[str, ...]]:
  """Returns rows of one run by link, for two sizes of the cohort.

  Args:
    pieces: Measured costs of the device.
    links: Connections between devices.
    counts: Numbers of devices. A single device needs no link.
  """
  alone = full_size.predict(full_size.Work(), pieces, links[0], 1)
  rows = []
  for link in links:
    for count in counts:
      if count == 1:
        continue
      few, many = (
        full_size.predict(full_size.Work(cohort=c), pieces, link, count)
        for c in (100, 100 * count)
      )
      rows.append(
        (
          *(link.name, str(count), f'{1000 * few.reduction:.1f}'),
          *(f'{few.round:.3f}', f'{alone.round / few.round:.1f}'),
          *(f'{many.round:.3f}', f'{count * alone.round / many.round:.1f}'),
        )
      )
  return rows


_LINK_HEADER = (
  *('link', 'devices', 'sums ms', '100 clients s', 'speed-up'),
  *('100 per device s', 'speed-up'),
)


def core_rows(
  pieces: pieces_lib.Pieces, link: pieces_lib.Link, counts: Sequence[int]
) -> list[tuple[str, str, str]]:
  """Returns the duration of a round and of all rounds on CPU cores.

  Args:
    pieces: Measured costs of a core.
    link: Connection between cores.
    counts: Numbers of cores.
  """
  work = full_size.Work()
  found = [full_size.predict(work, pieces, link, count) for count in counts]
  return [
    (
      f'{p.num_devices} x {pieces.device}',
      duration(p.round),
      duration(work.rounds * p.round),
    )
    for p in found
  ]


def check_rows(
  all_pieces: Sequence[pieces_lib.Pieces],
  checks: Sequence[pieces_lib.Check],
) -> list[tuple[str, ...]]:
  """Returns rows of predicted and measured rounds.

  Args:
    all_pieces: Measured costs of all kinds of devices.
    checks: Measured rounds.
  """
  costs = {p.device: p.cost for p in all_pieces}
  rows = []
  for check in checks:
    found = costs[check.device].seconds(check.steps, check.clients_per_chunk)
    rows.append(
      (
        *(check.device, check.what, f'{found:.3f}', f'{check.seconds:.3f}'),
        f'{found / check.seconds:.2f}',
      )
    )
  return rows


def format_plan(
  all_pieces: Sequence[pieces_lib.Pieces],
  links: Sequence[pieces_lib.Link],
  checks: Sequence[pieces_lib.Check],
  counts: Sequence[int],
) -> str:
  """Returns all tables: sizes, plans by device and link, and checks.

  Args:
    all_pieces: Measured costs of GPUs and of cores.
    links: Connections between GPUs. The large table uses the first one.
    checks: Measured rounds to compare with predictions.
    counts: Numbers of GPUs.
  """
  parts = [tables.format_table(['what', 'size'], size_rows())]
  gpus = [p for p in all_pieces if p.device_bytes_per_client]
  for pieces in gpus:
    table = tables.format_table(
      _PLAN_HEADER, plan_rows(pieces, links[0], counts)
    )
    parts.append(f'{pieces.device}; {links[0].name}\n{table}')
    rows = link_rows(pieces, links, counts)
    if rows:
      parts.append(tables.format_table(_LINK_HEADER, rows))
  rows = [
    row
    for pieces in all_pieces
    if pieces not in gpus
    for row in core_rows(pieces, links[0], (2, 16, 64))
  ]
  if rows:
    header = ['where', 'a round', f'{full_size.Work().rounds:,} rounds']
    parts.append(tables.format_table(header, rows))
  if checks:
    header = ['device', 'round', 'predicted s', 'measured s', 'ratio']
    parts.append(tables.format_table(header, check_rows(all_pieces, checks)))
  return '\n\n'.join(parts)
