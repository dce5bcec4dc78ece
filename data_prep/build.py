"""Prepares a store from a source: the whole pipeline.

First, users are assigned to private, public, validation and test by their
counts. Arrays are then written by user. For text, the words are counted if the
vocabulary needs it. Then several processes read and encode the text once, in
batches of users. The bytes of the store depend on the source and the settings,
never on the number of processes.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import hashlib
import os
import pathlib
from typing import Any, Optional, Union

from data_prep import assignment
from data_prep import cautions
from data_prep import encoding
from data_prep import parallel
from data_prep import partition
from data_prep import spool
from data_prep import staging
from data_prep import store
from data_prep import store_writer
from data_prep import user_store
from data_prep import vocabulary as words_lib
from data_prep.sources import arrays
from data_prep.sources import base
import numpy as np
from pda_fed.common import validate

# Number of sentences in a batch: a few megabytes of text.
_BATCH_SENTENCES = 8192
# Below this number, starting processes takes longer than they save.
_MIN_SENTENCES_FOR_PROCESSES = 100_000

AnySource = Union[base.Source, base.RecordSource, arrays.ArraySource]
# Called with (name of the step, amount done, total amount, unit).
ProgressFn = Callable[[str, int, int, str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
  """Settings of `prepare`.

  Example: see `prepare`.

  Attributes:
    partition: How train users are split into private and public.
    holdout: Which users are held out if the source has no split.
    vocabulary: Which vocabulary to use for text.
    public_user_ids: Ids of users who opted in to be public.
    num_processes: Number of processes that read; 0 means one per core. Does not
      affect the store.
  """

  partition: partition.PartitionConfig
  holdout: assignment.HoldoutConfig = assignment.HoldoutConfig()
  vocabulary: words_lib.VocabularyConfig = words_lib.VocabularyConfig()
  public_user_ids: tuple[str, ...] = ()
  num_processes: int = 0

  def __post_init__(self):
    validate.integers(0, num_processes=self.num_processes)

  def processes_for(self, num_sentences: int) -> int:
    """Returns the number of processes worth starting."""
    if num_sentences < _MIN_SENTENCES_FOR_PROCESSES:
      return 1
    return self.num_processes or len(os.sched_getaffinity(0))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
  """Users of a group whose sentences are read together."""

  group: str
  names: tuple[str, ...]
  split: str
  ids: tuple[str, ...]
  start: list[int]
  stop: list[int]


def _batches(groups: dict[str, assignment.Group]) -> Iterator[_Batch]:
  for name, group in groups.items():
    # A batch ends with the user that fills it.
    number = np.cumsum(group.num_sentences) // _BATCH_SENTENCES
    ends = [*(np.flatnonzero(np.diff(number)) + 1).tolist(), len(group)]
    start = 0
    for end in ends:
      if end > start:
        yield _Batch(
          group=name,
          names=group.names[start:end],
          split=group.split,
          ids=group.ids[start:end],
          start=group.start[start:end].tolist(),
          stop=group.stop[start:end].tolist(),
        )
      start = end


def _read(source: base.Source, batch: _Batch) -> Iterator[list[str]]:
  for user, start, stop in zip(batch.ids, batch.start, batch.stop, strict=True):
    yield source.sentences(user, batch.split, start, stop)


@dataclasses.dataclass(frozen=True)
class _CountWords:
  """Counts the words of a batch."""

  source: base.Source

  def __call__(self, batch: _Batch) -> tuple[dict[str, int], int]:
    self.source.tally = base.Tally()  # The encoder counts skipped rows.
    counts: collections.Counter[str] = collections.Counter()
    num_sentences = 0
    for sentences in _read(self.source, batch):
      num_sentences += len(sentences)
      counts.update(' '.join(sentences).split())
    return counts, num_sentences


@dataclasses.dataclass(frozen=True)
class _Encode:
  """Encodes the sentences of a batch."""

  source: base.Source
  encoder: encoding.Encoder

  def __call__(self, batch: _Batch):
    self.source.tally = base.Tally()
    sentences: list[str] = []
    counts = []
    for all_sentences in _read(self.source, batch):
      usable = [s for s in all_sentences if s]
      sentences += usable
      counts.append(len(usable))
    rows = self.encoder.encode(sentences)
    return batch, np.array(counts, np.int64), rows, self.source.tally


def _no_progress(what: str, done: int, total: int, unit: str) -> None:
  del what, done, total, unit


def prepare(
  source: AnySource,
  output_dir: os.PathLike | str,
  config: PrepareConfig,
  *,
  overwrite: bool = False,
  on_progress: ProgressFn = _no_progress,
) -> user_store.UserStore:
  """Writes a token store, or an example store from arrays.

  Example:

  ```
  store = prepare(
      open_source('synthetic'), 'data/synthetic',
      PrepareConfig(partition=PartitionConfig(seed=0)))
  ```

  Args:
    source: Source of the data. Public users are drawn from overflow users for
      text, and from all users for arrays.
    output_dir: Folder of the store. It appears once it is complete.
    config: The settings.
    overwrite: Whether to replace an existing store.
    on_progress: Called often, in this process.

  Returns:
    The store, opened.

  Raises:
    FileExistsError: If the folder exists and must not be replaced.
    ValueError: If a setting does not fit the source.
    SourceError: If the source cannot be read.
    OSError: If the store cannot be written, for example on a full disk.
  """
  with staging.staged_folder(
    output_dir, overwrite=overwrite, marker=store.MANIFEST
  ) as folder:
    work = folder.parent / 'work'
    work.mkdir()
    _Run(config, folder, work, on_progress).write(source)
  return store.open_store(output_dir)


class _Run:
  """One run of the pipeline."""

  def __init__(
    self,
    config: PrepareConfig,
    folder: pathlib.Path,
    work: pathlib.Path,
    on_progress: ProgressFn,
  ):
    self._config = config
    self._folder = folder
    self._work = work
    self._on_progress = on_progress
    self._tally = base.Tally()

  def write(self, source: AnySource) -> None:
    if isinstance(source, arrays.ArraySource):
      self._write_arrays(source)
      return
    config = self._config
    name = source.name
    notes = {}
    if isinstance(source, base.RecordSource):
      stream, notes = source, source.notes
      source = spool.regroup(
        stream,
        self._work / 'sentences.sqlite',
        num_processes=config.processes_for(stream.num_bytes // 100),
        on_progress=self._on_progress,
      )
      self._tally.add(stream.tally)
      cautions.warn_of_faults(name, stream.tally)
    plan = assignment.assign_users(
      source, config.partition, config.holdout, config.public_user_ids
    )
    row_bytes = encoding.ROW_LENGTH * encoding.TOKEN_DTYPE.itemsize
    store_writer.check_space(self._folder, plan.num_sentences * row_bytes)
    words, origin = self._choose_words(source, plan)
    with store_writer.StoreWriter(self._folder) as writer:
      dropped, unknown = self._encode(source, plan, words, writer)
      self._tally.check(name)
      public = writer.names[assignment.PUBLIC]
      cautions.warn_of_lost(public, plan.groups[assignment.PUBLIC].names)
      covered, statement = words_lib.COVERAGE[origin]
      vocabulary = {
        'size': len(words),
        'origin': origin.value,
        'covered_by_epsilon': covered,
        'statement': statement,
        'unknown_share': unknown,
      }
      cautions.warn_of_unknown_words(vocabulary)
      details = _describe(name, config, plan, public, vocabulary=vocabulary)
      details['source_notes'] = notes
      details['skipped'] = dict(sorted((+self._tally.skipped).items()))
      details['left_out'] = {**plan.left_out, **dropped}
      manifest = writer.finish(words, details)
      cautions.warn_of_empty_groups(manifest)

  def _write_arrays(self, source: arrays.ArraySource) -> None:
    config = self._config
    plan = assignment.assign_users(
      source,
      config.partition,
      config.holdout,
      config.public_user_ids,
      whole_users=True,
    )
    _check_held_out(plan, config.holdout)
    store_writer.check_space(self._folder, source.x.nbytes + source.y.nbytes)
    writer = store_writer.ExampleWriter(self._folder)
    examples = writer.write_examples(source, plan)
    public = plan.groups[assignment.PUBLIC].names
    details = _describe(source.name, config, plan, public, **examples)
    if config.partition.max_sentences >= partition.NO_LIMIT:
      details['settings']['max_sentences'] = None
    beyond = len(source.x) - plan.num_sentences
    details['left_out'] = {'examples beyond the cut': beyond}
    cautions.warn_of_empty_groups(writer.write_index(details))

  def _map(self, task, groups, what) -> Iterator[Any]:
    total = int(sum(g.num_sentences.sum() for g in groups.values()))
    processes = self._config.processes_for(total)
    self._on_progress(what, 0, total, 'sentence')
    return parallel.ordered_map(task, _batches(groups), processes)

  def _choose_words(
    self, source: base.Source, plan: assignment.Assignment
  ) -> tuple[list[str], words_lib.Origin]:
    wanted = self._config.vocabulary
    origin, size = wanted.origin, wanted.most_words
    if origin is words_lib.Origin.FILE:
      path = pathlib.Path(wanted.path)
      words = words_lib.read_words(path)
      return wanted.take(words, path.name), origin
    if origin in (words_lib.Origin.AUTO, words_lib.Origin.SOURCE):
      words = source.ranked_words(size)
      if words is not None:
        where = f'the word counts of {source.name}'
        checked = wanted.take(words, where)
        if source.words_reveal_users:
          return checked, words_lib.Origin.SOURCE
        return checked, words_lib.Origin.GENERATOR
      if origin is words_lib.Origin.SOURCE:
        raise ValueError(
          f"vocabulary must be 'public', 'train' or a file: {source.name} has"
          " no word counts. Found 'source'."
        )
      origin = words_lib.Origin.PUBLIC
    group = (
      assignment.PUBLIC
      if origin is words_lib.Origin.PUBLIC
      else assignment.PRIVATE
    )
    groups = {group: plan.groups[group]}
    counter = words_lib.WordCounter(self._work)
    done = 0
    task = _CountWords(source)
    total = int(groups[group].num_sentences.sum())
    for counts, num_sentences in self._map(task, groups, 'counting words'):
      counter.add(counts)
      done += num_sentences
      self._on_progress('counting words', done, total, 'sentence')
    words = counter.top(size)
    return wanted.take(words, f'{len(groups[group])} {group} users'), origin

  def _encode(
    self,
    source: base.Source,
    plan: assignment.Assignment,
    words: Sequence[str],
    writer: store_writer.StoreWriter,
  ) -> tuple[dict[str, int], dict[str, Optional[float]]]:
    """Writes all users.

    Args:
      source: Source of the text.
      plan: The assignment of users.
      words: The vocabulary.
      writer: Writer of the store.

    Returns:
      The number of users without a usable sentence, and the share of unknown
      words, both by group.
    """
    task = _Encode(source, encoding.Encoder(words))
    done = 0
    dropped: collections.Counter = collections.Counter()
    unknown = encoding.UnknownWords(task.encoder.spec, plan.groups)
    for batch, counts, rows, tally in self._map(task, plan.groups, 'encoding'):
      self._tally.add(tally)
      names = [n for n, c in zip(batch.names, counts, strict=True) if c]
      if len(names) < len(batch.names):
        reason = f'{batch.group} users without a usable sentence'
        dropped[reason] += len(batch.names) - len(names)
      writer.add(batch.group, names, counts[counts > 0], rows)
      unknown.add(batch.group, rows)
      done += sum(batch.stop) - sum(batch.start)
      self._on_progress('encoding', done, plan.num_sentences, 'sentence')
    return dict(dropped), unknown.shares()


def _check_held_out(
  plan: assignment.Assignment, config: assignment.HoldoutConfig
) -> None:
  for group in (assignment.VALIDATION, assignment.TEST):
    share = getattr(config, f'{group}_fraction')
    if share and not len(plan.groups[group]):
      raise ValueError(
        f'{group}_fraction must be larger: it selects none of'
        f' {sum(map(len, plan.groups.values()))} users. Found {share}.'
      )


def _describe(
  name: str,
  config: PrepareConfig,
  plan: assignment.Assignment,
  public: Sequence[str],
  **kind: dict[str, Any],
) -> dict[str, Any]:
  kept = sum(
    n.endswith(assignment.OVERFLOW_SUFFIX)
    for n in plan.groups[assignment.PRIVATE].names
  )
  return {
    'source': name,
    'settings': {
      **dataclasses.asdict(config.partition),
      **dataclasses.asdict(config.holdout),
      'public_user_ids': len(config.public_user_ids),
    },
    **kind,
    'public_users_sha256': hashlib.sha256(
      ''.join(f'{name}\n' for name in public).encode()
    ).hexdigest(),
    'private_overflow_users': kept,
    'max_private_users_per_person': plan.max_private_users_per_person,
    'held_out_by': dict(plan.held_out_by),
    'train_users_before_the_cut': int((plan.train_counts > 0).sum()),
  }
