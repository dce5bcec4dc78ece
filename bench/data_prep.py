"""Measures speed and memory of data preparation.

    python -m bench.data_prep --sentences=1000000,5000000

For each size, a synthetic database with TFF's schema is written to --work_dir
and kept for the next run. `scripts.prepare_users` then runs on it in a separate
process, whose memory is watched. Finally, the partition of as many users as
StackOverflow has is timed, and cohorts are read from the last store.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags
import data_prep
from data_prep import sources
from data_prep import sqlite_writer
import numpy as np
from pda_fed.common import tables

from bench import synthetic_store

_SENTENCES = flags.DEFINE_list(
  'sentences', ['1000000'], 'Approximate numbers of sentences of the databases.'
)
_WORK_DIR = flags.DEFINE_string(
  'work_dir', None, 'Folder of the databases. Default: a temporary folder.'
)
_VOCABULARIES = flags.DEFINE_list(
  'vocabularies', ['public', 'train'], 'Origins of the vocabulary.'
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', 0, 'See scripts.prepare_users.'
)
_COHORTS = flags.DEFINE_integer('cohorts', 1000, 'Number of cohorts to read.')
_COHORT_SIZE = flags.DEFINE_integer(
  'cohort_size', 100, 'Number of users of a cohort.'
)

_STACKOVERFLOW_USERS = 342_477
_SECONDS_BETWEEN_SAMPLES = 0.05


def _export(num_sentences: int, folder: pathlib.Path) -> pathlib.Path:
  """Writes a database if it does not exist yet."""
  path = folder / f'synthetic_{num_sentences}.sqlite'
  if not path.exists():
    draw = sources.SyntheticSource(sources.SyntheticConfig(num_users=100_000))
    counts = draw.users('train').num_sentences
    num_users = int(np.searchsorted(np.cumsum(counts), num_sentences)) + 1
    source = sources.SyntheticSource(
      sources.SyntheticConfig(num_users=num_users)
    )
    users = source.users('train')
    partial = path.with_suffix('.partial')
    sqlite_writer.write_sqlite(
      partial,
      (
        (user, tokens)
        for user, count in zip(users.ids, users.num_sentences, strict=True)
        for tokens in source.sentences(user, 'train', 0, int(count))
      ),
    )
    partial.rename(path)
  return path


def _tree(pid: int) -> list[int]:
  """Returns a process and all its descendants."""
  try:
    with open(f'/proc/{pid}/task/{pid}/children') as f:
      children = f.read().split()
  except (FileNotFoundError, ProcessLookupError):
    return []  # It has just ended.
  return [pid, *(p for child in children for p in _tree(int(child)))]


def _memory(pids: list[int]) -> int:
  """Returns the resident bytes of processes, counting shared memory twice."""
  total = 0
  for pid in pids:
    try:
      with open(f'/proc/{pid}/statm') as f:
        total += int(f.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
      continue  # It has just ended.
  return total * os.sysconf('SC_PAGE_SIZE')


def _run(database: pathlib.Path, out: pathlib.Path, vocabulary: str):
  """Runs the binary on a database; returns (seconds, peak bytes)."""
  start = time.perf_counter()
  with subprocess.Popen(
    [
      sys.executable,
      '-m',
      'scripts.prepare_users',
      f'--source=sqlite:{database}',
      f'--output_dir={out}',
      f'--vocabulary={vocabulary}',
      '--vocabulary_size=5000',
      f'--num_processes={_NUM_PROCESSES.value}',
      '--overwrite',
    ],
    stdout=subprocess.DEVNULL,
  ) as process:
    peak = 0
    while process.poll() is None:
      peak = max(peak, _memory(_tree(process.pid)))
      time.sleep(_SECONDS_BETWEEN_SAMPLES)
  if process.returncode:
    raise RuntimeError(
      f'scripts.prepare_users ended with {process.returncode}.'
    )
  return time.perf_counter() - start, peak


def _bench_prepare(folder: pathlib.Path) -> pathlib.Path:
  rows = []
  for size in map(int, _SENTENCES.value):
    database = _export(size, folder)
    for vocabulary in _VOCABULARIES.value:
      out = folder / f'store_{size}'
      seconds, peak = _run(database, out, vocabulary)
      stored = data_prep.open_store(out).manifest['sentences']
      rows.append(
        [
          f'{size:,}',
          vocabulary,
          f'{stored:,}',
          f'{seconds:.1f}',
          f'{stored / seconds:,.0f}',
          f'{peak / 1e6:,.0f}',
        ]
      )
  header = [
    'sentences',
    'vocabulary',
    'stored',
    'seconds',
    'stored/s',
    'peak MB',
  ]
  print(tables.format_table(header, rows), end='\n\n', flush=True)
  return out


def _bench_partition() -> None:
  rng = np.random.default_rng(0)
  counts = np.minimum(100 / (1 - rng.random(_STACKOVERFLOW_USERS)), 20_000)
  counts = counts.astype(np.int64)
  ids = np.array([f'{i:08}' for i in range(counts.size)])
  start = time.perf_counter()
  data_prep.partition_users(
    counts, data_prep.PartitionConfig(seed=0), user_ids=ids
  )
  seconds = time.perf_counter() - start
  print(f'Partition of {counts.size:,} users: {seconds:.2f} s')


def _bench_opening(folder: pathlib.Path) -> None:
  """Opens a store of as many users as StackOverflow has."""
  path = synthetic_store.write_store(
    folder,
    num_users=_STACKOVERFLOW_USERS,
    sentences_per_user=1,
    num_words=1000,
  )
  start = time.perf_counter()
  data_prep.open_store(path)
  seconds = time.perf_counter() - start
  print(f'Opening a store of {_STACKOVERFLOW_USERS:,} users: {seconds:.2f} s')


def _bench_store(path: pathlib.Path) -> None:
  store = data_prep.open_store(path)
  num_users = len(store.users('private'))
  rng = np.random.default_rng(0)
  cohorts = [
    rng.choice(num_users, _COHORT_SIZE.value, replace=False)
    for _ in range(_COHORTS.value)
  ]
  start = time.perf_counter()
  for cohort in cohorts:
    data_prep.load_cohort(store, 'private', cohort)
  seconds = time.perf_counter() - start
  print(
    f'{len(cohorts):,} cohorts of {_COHORT_SIZE.value} users:'
    f' {len(cohorts) / seconds:,.0f} cohorts/s'
  )


def main(argv) -> None:
  """Runs all benchmarks."""
  del argv
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(_WORK_DIR.value or temporary)
    folder.mkdir(parents=True, exist_ok=True)
    store = _bench_prepare(folder)
    _bench_partition()
    _bench_opening(folder)
    _bench_store(store)


if __name__ == '__main__':
  app.run(main)
