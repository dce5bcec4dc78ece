"""What a run, a store and a comparison show, and whether it has noise.

Epsilon covers what the mechanism releases. The files beside a model hold more.
`TABLE` declares every field of every file, and what the terminal shows. Caveats
in config.json, the page of a comparison and docs/sharp_edges.md are written
from it. A test compares it with the files of real runs: a field that is missing
here fails the test.
"""

from collections.abc import Iterable
import dataclasses
import enum
import fnmatch
import functools
from typing import Any, Optional

from pda_fed import methods
from pda_fed.common import tables


class Kind(enum.Enum):
  """What a shown value was computed from."""

  # The noised sums, what follows from them, and settings.
  MECHANISM = 'mechanism'
  # Public or held-out data, and what was chosen before the run.
  PUBLIC = 'public'
  # Private data. Epsilon does not cover it.
  WITHOUT_NOISE = 'without noise'


@dataclasses.dataclass(frozen=True)
class Row:
  """Fields of one place.

  Attributes:
    place: The file, or the kind of file.
    kind: What the fields were computed from.
    fields: Patterns, separated by commas, of columns, keys of JSON joined by
      dots, arrays, files, or printed lines. The first row that fits counts.
    why: Why they have no noise, for readers of the documentation.
  """

  place: str
  kind: Kind
  fields: str
  why: str = ''

  @property
  def names(self) -> list[str]:
    """The patterns."""
    return self.fields.split(', ')


_MECHANISM, _PUBLIC, _PRIVATE = Kind

METRICS = 'metrics.csv and tensorboard/'
CONFIG = 'config.json'
RESULT = 'result.json'
CHECKPOINTS = 'checkpoints/'
FILES = 'other files of a run'
WARM_START = 'warm_start/'
TERMINAL = 'terminal and logs'
EXPORT = 'exported model'
PAGE = 'index.html and table.md'
COMPARISON = 'other files of a comparison or search'
MANIFEST = 'manifest.json of a store'
STORE = 'other files of a store'

N_IS_PUBLIC = (
  'The number of private users or examples, N, counts as public: delta and the'
  ' sampling rate are functions of it.'
)

# What engines may report of a round.
_OF_SUMS = (
  'alpha, clip_norm, private_norm, mixed_norm, cosine, public_norm, public_loss'
)
_OF_CLIENTS = (
  'train_loss, clients, non_finite_clients, diverged_clients,'
  ' clipped_fraction, example_norm'
)

_CLIENTS = 'over the private users or examples of rounds'
_COUNTS = 'exact counts of private users, their data and what was left out'
_GUESSES = (
  'hashes and sizes: whoever knows all private data but one record can test'
  ' guesses of that record'
)
_LARGEST = 'depends on the largest private user, unless a flag sets it'
_SIZES = (
  'if read off private labels or words and not given, which a caveat then says'
)
_TIME = 'a round takes longer with more users or with more data'
_WORDS = 'if the words were counted on private text, which a caveat then says'

# Fields by place, and the reason of those without noise.
_FIELDS: dict[str, list[tuple[Any, ...]]] = {
  METRICS: [
    (_MECHANISM, f'round, epsilon, {_OF_SUMS}, weights_norm'),
    (_PUBLIC, 'loss, accuracy, accuracy_with_oov, perplexity, test_*'),
    (_PRIVATE, _OF_CLIENTS, _CLIENTS),
    (_PRIVATE, 'seconds', _TIME),
  ],
  CONFIG: [
    (_PRIVATE, 'settings.data_hash', _GUESSES),
    (
      _PRIVATE,
      'data.public_users_sha256',
      'public users may be drawn from private ones, by how much they wrote',
    ),
    (_PRIVATE, 'order_of_sums.clients_per_chunk', _LARGEST),
    # N, which counts as public, and numbers of public and held-out users.
    (
      _PUBLIC,
      'settings.plan.population, data.users.*, data.examples.*',
    ),
    (
      _PUBLIC,
      'format, version, spec.*, settings.*, noise, libraries.*, command,'
      ' order_of_sums.machine, order_of_sums.platform,'
      ' order_of_sums.device, order_of_sums.num_devices,'
      ' order_of_sums.microbatch_size, data.source, data.settings.*,'
      ' data.vocabulary.size, data.vocabulary.origin,'
      ' data.vocabulary.covered_by_epsilon, data.vocabulary.statement, caveats',
    ),
    (_MECHANISM, 'private_search'),
  ],
  RESULT: [
    (_MECHANISM, 'rounds, epsilon, delta, noise_multiplier'),
    (
      _PUBLIC,
      'method, dataset, engine, seed, test.*, validation.*, warm_start.*',
    ),
    (_PRIVATE, 'seconds_per_round', _TIME),
    (
      _PRIVATE,
      'audit.views.*, audit.lower_bound',
      'measured by an attacker who knows all private updates',
    ),
    (
      _MECHANISM,
      'audit.canaries, audit.delta, audit.proven, audit.added_noise,'
      ' audit.most, audit.resolution, audit.copy',
    ),
  ],
  CHECKPOINTS: [
    (
      _MECHANISM,
      'round, weights/*, optimizer/*, jax/average/*, clip_norm,'
      ' method/*, warm_start.*',
    ),
    (
      _PRIVATE,
      'rows.*, pending.*, seconds',
      'metrics.csv is written from them',
    ),
    (
      _PRIVATE,
      'audit/*, tff/aggregator/*',
      'scores of an audit, and the noise of a tree until a run without a seed'
      ' ends: they tell noise from data',
    ),
  ],
  FILES: [
    (
      _PUBLIC,
      'running.json: until, running.json: seen_before, diverged.json: round,'
      ' .lock',
    ),
    (
      _PRIVATE,
      'secret_seeds.json: *',
      'they remove the noise. The file is gone when the run has ended',
    ),
    (
      _PRIVATE,
      'audit/',
      'an audited copy is another look at the same users. It is gone when the'
      ' run has ended',
    ),
  ],
  WARM_START: [
    (
      _PRIVATE,
      'KEY.ckpt, KEY.lock, settings.data_hash',
      'a hash of the data, also in the names of files',
    ),
    (_PUBLIC, 'weights/*, settings.*, figures.*'),
  ],
  TERMINAL: [
    (
      _PRIVATE,
      'train loss, diverged clients, *of the clients diverge*, *that of private'
      ' clients*, *no update or gradient was finite*',
      f'{_CLIENTS}, also in warnings and errors',
    ),
    (_PRIVATE, 's/round, ETA', f'{_TIME}; any clock shows it'),
    (_PRIVATE, '*clients_per_chunk*', _LARGEST),
    (_PRIVATE, 'prepare_users: *', _COUNTS),
    (
      _MECHANISM,
      'epsilon so far at most, alpha, rounds, noise, privacy, *the norm of the'
      ' weights*, *the public update has*',
    ),
    (
      _PUBLIC,
      'loss, accuracy, held-out loss, *the validation loss*, users, examples,'
      ' * on *',
    ),
  ],
  EXPORT: [
    (
      _MECHANISM,
      'about.format, about.model.*, about.round, about.privacy, weights/*',
    ),
    (_PUBLIC, 'mean, scale'),
    (_PRIVATE, 'vocabulary', _WORDS),
  ],
  PAGE: [
    (_MECHANISM, 'epsilon'),
    (
      _PUBLIC,
      'method, runs, seeds, chosen, trials, Settings *, Libraries,'
      ' Differences *, loss, perplexity, accuracy*, validation *, metric, best,'
      ' better than, by, 95 % interval, clear',
    ),
    (_PRIVATE, 'audited', 'results of audits, also in sentences'),
  ],
  COMPARISON: [
    (_PUBLIC, 'curves_*, chosen.json: *, runs/*.json: *'),
    (_MECHANISM, 'private_search.json: *'),
    (_PRIVATE, 'search.csv', 'has the columns of metrics.csv'),
    (_PRIVATE, 'logs/*.log', 'hold what runs print'),
  ],
  MANIFEST: [
    (_PUBLIC, 'users, groups.private.users, *.first_user'),
    (
      _PRIVATE,
      'sentences, examples, groups.private.*, vocabulary.unknown_share.private,'
      ' private_overflow_users, train_users_before_the_cut, left_out.*,'
      ' skipped.*, source_notes.*',
      _COUNTS,
    ),
    (_PRIVATE, 'classes.number, vocabulary.size', _SIZES),
    (
      _PUBLIC,
      'groups.*, vocabulary.unknown_share.*, inputs.mean, inputs.scale, format,'
      ' version, source, settings.*, held_out_by.*, vocabulary.origin,'
      ' vocabulary.covered_by_epsilon, vocabulary.statement, inputs.shape,'
      ' inputs.dtype, classes.caveats, max_private_users_per_person',
    ),
    (_PRIVATE, 'files.*, sha256, public_users_sha256', _GUESSES),
  ],
  STORE: [
    (
      _PRIVATE,
      'tokens.npy, x.npy, y.npy, user_offsets.npy, user_ids.bin,'
      ' user_id_offsets.npy',
      'the data themselves',
    ),
    (_PRIVATE, 'vocabulary.txt', _WORDS),
  ],
}
TABLE = tuple(
  Row(place, *fields) for place, rows in _FIELDS.items() for fields in rows
)

_ROUND_METRICS = frozenset(f'{_OF_SUMS}, {_OF_CLIENTS}'.split(', '))
_OF_RUNS = (METRICS, CONFIG, RESULT, CHECKPOINTS, FILES, WARM_START, TERMINAL)


def find(place: str, name: str) -> Optional[Row]:
  """Returns the row that declares a field; None if no row does.

  Args:
    place: A place of `TABLE`.
    name: The field's name.
  """
  rows = (row for row in TABLE if row.place == place)
  fits = functools.partial(fnmatch.fnmatchcase, name)
  return next((row for row in rows if any(map(fits, row.names))), None)


def has_noise(place: str, name: str) -> bool:
  """Returns False if a field is declared as computed without noise."""
  row = find(place, name)
  return row is None or row.kind is not Kind.WITHOUT_NOISE


def evaluated(row: Iterable[str]) -> list[str]:
  """Returns the columns of metrics.csv that evaluations have measured."""
  found = {name: find(METRICS, name) for name in row}
  return [n for n, r in found.items() if r is None or r.kind is Kind.PUBLIC]


def check_round(names: Iterable[str], method: methods.Method) -> None:
  """Raises ValueError if a metric of a round is not declared.

  Args:
    names: The metrics that an engine reports.
    method: The method, which may have schedules and measurements of its own.
  """
  declared = _ROUND_METRICS.union(method.schedules, method.measured)
  unknown = sorted(set(names) - declared)
  if unknown:
    raise ValueError(
      f'Metrics of a round must be declared: those of an engine in {__name__},'
      " those of a method in its attribute 'measured'. Found"
      f' {", ".join(unknown)}.'
    )


def _without_noise(place: str) -> list[str]:
  rows = [r for r in TABLE if r.place == place]
  return [n for r in rows if r.kind is Kind.WITHOUT_NOISE for n in r.names]


def of_run() -> str:
  """Returns the caveat of a run whose model may be published."""
  fields = [f'{", ".join(_without_noise(p))} ({p})' for p in _OF_RUNS[:3]]
  others = [place for place in _OF_RUNS[3:] if _without_noise(place)]
  return (
    'Epsilon covers the model only. These are computed from private data'
    f' without noise: {"; ".join(fields)}. So is some of what stands in'
    f' {", ".join(others)}. Do not publish them. {N_IS_PUBLIC}'
  )


def of_page() -> str:
  """Returns what the page of a comparison says of itself."""
  column = ', '.join(_without_noise(PAGE))
  return (
    f'The results of audits (column {column}, and sentences) are computed from'
    f' private data without noise; nothing else on this page is. {N_IS_PUBLIC}'
  )


def as_markdown() -> str:
  """Returns a table of the fields without noise, for the documentation."""
  rows = [
    [row.place, ', '.join(f'`{name}`' for name in row.names), row.why]
    for row in TABLE
    if row.kind is Kind.WITHOUT_NOISE
  ]
  return tables.format_markdown(['where', 'what', 'why'], rows, 'lll')
