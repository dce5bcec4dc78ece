"""Prepares a store from a source: the whole pipeline.

First, users are assigned to private, public, validation and test by their
counts. Arrays are then written by user. For text, the words are counted if the
vocabulary needs it. Then several processes read and encode the text once, in
batches of users. The bytes of the store depend on the source and the settings,
never on the number of processes.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
from typing import Any, Optional, Union

from data_prep import assignment
from data_prep import encoding
from data_prep import lists
from data_prep import parallel
from data_prep import spool
from data_prep import staging
from data_prep import store
from data_prep import store_writer
from data_prep import summary
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

  partition: assignment.PartitionConfig
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


def _num_sentences(groups: Mapping[str, assignment.Group]) -> int:
  return int(sum(g.num_sentences.sum() for g in groups.values()))


# Users whose sentences are read together: the name of their group, and they.
_Batch = tuple[str, assignment.Group]


def _batches(groups: Mapping[str, assignment.Group]) -> Iterator[_Batch]:
  for name, group in groups.items():
    # A batch ends with the user that fills it.
    number = np.cumsum(group.num_sentences) // _BATCH_SENTENCES
    ends = [*(np.flatnonzero(np.diff(number)) + 1).tolist(), len(group)]
    for start, end in itertools.pairwise([0, *ends]):
      if end > start:
        yield name, group.part(start, end)


@dataclasses.dataclass(frozen=True)
class _Task:
  """Reads batches and computes something of their users' texts."""

  source: base.Source
  compute: Callable[[list[list[str]]], Any]

  def __call__(self, batch: _Batch) -> tuple[_Batch, Any, base.Tally]:
    self.source.tally = base.Tally()
    _, users = batch
    places = zip(users.start.tolist(), users.stop.tolist(), strict=True)
    texts = [
      self.source.sentences(user, users.split, start, stop)
      for user, (start, stop) in zip(users.ids, places, strict=True)
    ]
    return batch, self.compute(texts), self.source.tally


def _count_words(texts: list[list[str]]) -> collections.Counter[str]:
  counts: collections.Counter[str] = collections.Counter()
  for sentences in texts:
    counts.update(' '.join(sentences).split())
  return counts


def _encode(
  encoder: encoding.Encoder, texts: list[list[str]]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the number of usable sentences of each user, and their rows."""
  usable = [[s for s in sentences if s] for sentences in texts]
  rows = encoder.encode([s for of_user in usable for s in of_user])
  return np.array(list(map(len, usable)), np.int64), rows


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
    _Run(config, folder, on_progress).write(source)
  return store.open_store(output_dir)


class _Run:
  """One run of the pipeline."""

  def __init__(
    self, config: PrepareConfig, folder: pathlib.Path, on_progress: ProgressFn
  ):
    self._config = config
    self._folder = folder
    self._on_progress = on_progress
    self._tally = base.Tally()
    self._work = folder.parent / 'work'
    self._work.mkdir()

  def write(self, source: AnySource) -> None:
    if isinstance(source, arrays.ArraySource):
      self._write_examples(source)
    elif isinstance(source, base.RecordSource):
      grouped = spool.regroup(
        source,
        self._work / 'sentences.sqlite',
        num_processes=self._config.processes_for(source.num_bytes // 100),
        on_progress=self._on_progress,
      )
      tally = source.tally
      self._tally.add(tally)
      if tally.first_fault:
        summary.warn(
          f'{source.name}: {tally.num_faulty:,} of {tally.rows:,} rows are'
          f' faulty and were skipped. The first is {tally.first_fault}.'
        )
      self._write_tokens(grouped, source.notes)
    else:
      self._write_tokens(source, {})

  def _assign(
    self, source: base.UserSource, *, whole_users: bool
  ) -> assignment.Assignment:
    config = self._config
    return assignment.assign_users(
      source,
      config.partition,
      config.holdout,
      config.public_user_ids,
      whole_users=whole_users,
    )

  def _write_tokens(
    self, source: base.Source, notes: Mapping[str, list[str]]
  ) -> None:
    plan = self._assign(source, whole_users=False)
    row_bytes = encoding.ROW_LENGTH * encoding.TOKEN_DTYPE.itemsize
    store_writer.check_space(
      self._folder, _num_sentences(plan.groups) * row_bytes
    )
    words, origin = self._choose_words(source, plan)
    with store_writer.StoreWriter(self._folder) as writer:
      dropped, unknown = self._encode(source, plan, words, writer)
      self._tally.check(source.name)
      public = writer.names[assignment.PUBLIC]
      planned = plan.groups[assignment.PUBLIC]
      if len(public) < len(planned):
        summary.warn(
          f'Only {len(public)} of {len(planned)} public users are left: the'
          ' others have no usable sentence.'
        )
      covered, statement = words_lib.COVERAGE[origin]
      vocabulary = {
        'size': len(words),
        'origin': origin,
        'covered_by_epsilon': covered,
        'statement': statement,
        'unknown_share': unknown,
      }
      summary.warn_of_unknown_words(vocabulary)
      details = _describe(
        source.name, self._config, plan, public, vocabulary=vocabulary
      )
      details['source_notes'] = notes
      details['skipped'] = dict(sorted((+self._tally.skipped).items()))
      details['left_out'] = {**plan.left_out, **dropped}
      summary.warn_of_empty_groups(writer.finish(words, details))

  def _write_examples(self, source: arrays.ArraySource) -> None:
    config = self._config
    plan = self._assign(source, whole_users=True)
    _check_held_out(plan, config.holdout)
    store_writer.check_space(self._folder, source.x.nbytes + source.y.nbytes)
    writer = store_writer.ExampleWriter(self._folder)
    examples = writer.write_examples(source, plan)
    public = plan.groups[assignment.PUBLIC].names
    details = _describe(source.name, config, plan, public, **examples)
    if config.partition.max_sentences >= assignment.NO_LIMIT:
      details['settings']['max_sentences'] = None
    beyond = len(source.x) - _num_sentences(plan.groups)
    details['left_out'] = {'examples beyond the cut': beyond}
    summary.warn_of_empty_groups(writer.write_index(details))

  def _map(
    self, task: _Task, groups: Mapping[str, assignment.Group], what: str
  ) -> Iterator[tuple[_Batch, Any, base.Tally]]:
    """Yields the task's results, and reports progress."""
    total = _num_sentences(groups)
    processes = self._config.processes_for(total)
    done = 0
    self._on_progress(what, done, total, 'sentence')
    for result in parallel.ordered_map(task, _batches(groups), processes):
      yield result
      (_, users), _, _ = result
      done += int(users.num_sentences.sum())
      self._on_progress(what, done, total, 'sentence')

  def _choose_words(
    self, source: base.Source, plan: assignment.Assignment
  ) -> tuple[list[str], str]:
    """Returns the vocabulary and its origin."""
    wanted = self._config.vocabulary
    if wanted.path:
      path = pathlib.Path(wanted.path)
      return wanted.take(lists.read_words(path), path.name), words_lib.FILE
    origin = wanted.origin
    if origin in (words_lib.AUTO, words_lib.SOURCE):
      words = source.ranked_words(wanted.most_words)
      if words is not None:
        checked = wanted.take(words, f'the word counts of {source.name}')
        reveals = source.words_reveal_users
        return checked, words_lib.SOURCE if reveals else words_lib.GENERATOR
      if origin == words_lib.SOURCE:
        raise ValueError(
          f"vocabulary must be 'public', 'train' or a file: {source.name} has"
          " no word counts. Found 'source'."
        )
      origin = words_lib.PUBLIC
    is_public = origin == words_lib.PUBLIC
    group = assignment.PUBLIC if is_public else assignment.PRIVATE
    groups = {group: plan.groups[group]}
    counter = words_lib.WordCounter(self._work)
    task = _Task(source, _count_words)
    # Encoding counts the skipped rows.
    for _, counts, _ in self._map(task, groups, 'counting words'):
      counter.add(counts)
    words = counter.top(wanted.most_words)
    return wanted.take(words, f'{len(groups[group])} {group} users'), origin

  def _encode(
    self,
    source: base.Source,
    plan: assignment.Assignment,
    words: Sequence[str],
    writer: store_writer.StoreWriter,
  ) -> tuple[dict[str, int], dict[str, Optional[float]]]:
    """Writes all users.

    Returns:
      The number of users without a usable sentence, and the share of unknown
      words, both by group.
    """
    encoder = encoding.Encoder(words)
    dropped: collections.Counter[str] = collections.Counter()
    found = {group: np.zeros(2, np.int64) for group in plan.groups}
    task = _Task(source, functools.partial(_encode, encoder))
    for batch, encoded, tally in self._map(task, plan.groups, 'encoding'):
      self._tally.add(tally)
      group, users = batch
      counts, rows = encoded
      names = [n for n, c in zip(users.names, counts, strict=True) if c]
      if len(names) < len(users):
        reason = f'{group} users without a usable sentence'
        dropped[reason] += len(users) - len(names)
      writer.add(group, names, counts[counts > 0], rows)
      found[group] += encoder.count_words(rows)
    return dict(dropped), {
      group: unknown / total if total else None
      for group, of in found.items()
      for total, unknown in [of.tolist()]
    }


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
  return {
    'source': name,
    'settings': {
      **dataclasses.asdict(config.partition),
      'keep_overflow_users': False,
      **dataclasses.asdict(config.holdout),
      'public_user_ids': len(config.public_user_ids),
    },
    **kind,
    'public_users_sha256': hashlib.sha256(
      ''.join(f'{name}\n' for name in public).encode()
    ).hexdigest(),
    # Other writers of this format may have kept overflow users.
    'private_overflow_users': 0,
    'max_private_users_per_person': 1,
    'held_out_by': dict(plan.held_out_by),
    'train_users_before_the_cut': plan.num_train_users,
  }
