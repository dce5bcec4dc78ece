"""What the full StackOverflow data take: disk, memory, time, what to rent.

    python -m bench.full_size
    python -m bench.full_size --gpu_round_seconds=0.3 --cpu_sentence_ms=1.5

Numbers of users and sentences are those of TFF's documentation; sizes follow
from the formats; times from measurements that are flags, with ours as defaults.
docs/benchmarks.md says where each was measured.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import dataclasses

from absl import flags
from pda_fed import models
from pda_fed.common import tables

_GPU_ROUND = flags.DEFINE_float(
  'gpu_round_seconds',
  0.229,
  'Of 100 clients x 256 sentences on a GPU, float32.',
)
_GPU_BFLOAT16_ROUND = flags.DEFINE_float(
  'gpu_bfloat16_round_seconds', 0.156, 'The same in bfloat16.'
)
_JAX_SENTENCE = flags.DEFINE_float(
  'jax_sentence_ms',
  4.46,
  "Milliseconds that a sentence's training takes on --cores cores with JAX.",
)
_TFF_SENTENCE = flags.DEFINE_float(
  'tff_sentence_ms', 4.8, 'The same with TFF: DP-FedAvg / (8 x 64 sentences).'
)
_CORES = flags.DEFINE_integer('cores', 2, 'Of the machine they were taken on.')
_SENTENCES_PER_SECOND = flags.DEFINE_float(
  'prepared_per_second', 132_000, 'Sentences that preparation stores a second.'
)
_BYTES_PER_ROW = flags.DEFINE_float(
  'database_bytes_per_sentence', 260, 'Of a database of this schema.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 1600, "The paper's.")
_COHORT = flags.DEFINE_integer('cohort', 100, 'Clients of a round.')

_TOKEN_BYTES = 2
_ROW_TOKENS = 21
_MAX_SENTENCES = 256
_NAME_BYTES = 8  # Of a user's id, about.


@dataclasses.dataclass(frozen=True)
class Split:
  """Users and sentences of a split, as TFF documents them."""

  users: int
  sentences: int

  @property
  def most_stored(self) -> int:
    """Sentences if every user had the most that is kept: an upper bound."""
    return min(self.sentences, self.users * _MAX_SENTENCES)


SPLITS = {
  'train': Split(342_477, 135_818_730),
  'held-out': Split(38_758, 16_491_230),
  'test': Split(204_088, 16_586_035),
}


def store_bytes() -> int:
  """Returns the most bytes of the token store."""
  users = sum(s.users for s in SPLITS.values())
  sentences = sum(s.most_stored for s in SPLITS.values())
  offsets = 2 * 8 * users
  rows = sentences * _ROW_TOKENS * _TOKEN_BYTES
  return rows + offsets + users * _NAME_BYTES


def run_state_bytes(spec: models.RecurrentSpec) -> int:
  """Returns the bytes of weights and momentum: also those of a checkpoint."""
  return 2 * 4 * sum(spec.parameter_counts.values())


def _gigabytes(size: float) -> str:
  return f'{size / 1e9:.2f} GB'


def _duration(seconds: float) -> str:
  if seconds < 600:
    return f'{seconds:.3g} s'
  if seconds < 7200:
    return f'{seconds / 60:.0f} min'
  if seconds < 48 * 3600:
    return f'{seconds / 3600:.1f} h'
  return f'{seconds / 86400:.1f} days'


def sizes() -> list[tuple[str, str]]:
  """Returns what disk and memory it takes."""
  all_sentences = sum(s.sentences for s in SPLITS.values())
  stored = sum(s.most_stored for s in SPLITS.values())
  spec = models.RecurrentSpec()
  return [
    ('sentences of the source', f'{all_sentences:,}'),
    ('sentences stored, at most', f'{stored:,}'),
    ('database', _gigabytes(all_sentences * _BYTES_PER_ROW.value)),
    ('token store, at most', _gigabytes(store_bytes())),
    ('its preparation', _duration(stored / _SENTENCES_PER_SECOND.value)),
    ('a checkpoint (three are kept)', _gigabytes(run_state_bytes(spec))),
  ]


def times() -> list[tuple[str, str, str]]:
  """Returns seconds of a round, and of all, for clients of 256 sentences."""
  sentences = _COHORT.value * _MAX_SENTENCES
  per_round = {
    'one H200, JAX, float32': _GPU_ROUND.value * _COHORT.value / 100,
    'one H200, JAX, bfloat16': _GPU_BFLOAT16_ROUND.value * _COHORT.value / 100,
  }
  for engine, flag in (('JAX', _JAX_SENTENCE), ('TFF', _TFF_SENTENCE)):
    own = sentences * flag.value / 1000
    for cores in (_CORES.value, 16, 64):
      per_round[f'{cores} cores, {engine}'] = own * _CORES.value / cores
  return [
    (name, _duration(seconds), _duration(seconds * _ROUNDS.value))
    for name, seconds in per_round.items()
  ]


def main() -> None:
  """Prints both tables."""
  print(tables.format_table(['what', 'size'], sizes()))
  print()
  header = ['where', 'a round', f'{_ROUNDS.value:,} rounds']
  print(tables.format_table(header, times()))


if __name__ == '__main__':
  cli.run(main)
