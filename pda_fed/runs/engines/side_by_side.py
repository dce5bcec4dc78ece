"""Computes similar runs together, as a batch dimension of one program.

A small model leaves most of a GPU idle. Runs that differ only in seeds,
learning rates, alpha or noise are computed together here. The loop still leads
them one after the other: the first run that asks for rounds has them computed
for all runs, and later runs get the stored results. The time is divided among
the runs. A run that resumes from a checkpoint is computed alone.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import privacy
from pda_fed.common import settings
from pda_fed.runs import resolving
from pda_fed.runs import spec as spec_lib
from pda_fed.runs.engines import jax_sample_level

# Settings in which runs of a group may differ.
_FREE = (
  'server.learning_rate',
  'server.decay',
  'seed',
)


def _kind(run: resolving.Run) -> Any:
  """Returns the settings that runs must share to be computed together."""
  defaults = spec_lib.RunSpec()
  spec = settings.replace(
    dataclasses.replace(
      run.spec,
      method=defaults.method,
      plan=defaults.plan,
      pretraining=defaults.pretraining,
    ),
    {name: settings.find(type(run.spec), name)[0].default for name in _FREE},
  )
  plan = dataclasses.replace(run.plan, noise_multiplier=1.0)
  # A group starts from the warm start of its first run.
  start = run.pretraining_settings() if run.method.warm_start else None
  # Schedules are inputs of the program; other settings are compiled into it.
  method = run.method.with_schedules_at(dict.fromkeys(run.method.schedules))
  is_secret = run.spec.seed is None
  sizes = run.model, run.data.sha256, run.rounds_per_evaluation
  return spec, sizes, plan, start, method, is_secret


def _groups(runs: Sequence[resolving.Run], size: int) -> list[list[int]]:
  """Returns the indices of runs to compute together, at most `size` each."""
  groups = []
  for place, run in enumerate(runs):
    for group in groups:
      # Secret seeds are unknown until the loop draws them.
      if (
        len(group) < size
        and run.spec.seed is not None
        and run.spec.audit.audit is None
        and _kind(runs[group[0]]) == _kind(run)
      ):
        group.append(place)
        break
    else:
      groups.append([place])
  return groups


def _stack(trees: Sequence[Any]) -> Any:
  return jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *trees)


def _take(tree: Any, place: int) -> Any:
  return jax.tree_util.tree_map(lambda leaf: leaf[place], tree)


def _equal(a: Any, b: Any) -> bool:
  leaves = zip(
    jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b), strict=True
  )
  return all(np.array_equal(x, y) for x, y in leaves)


class _Group:
  """The engines of runs that are computed together."""

  def __init__(self, engines: Sequence[jax_sample_level.SampleLevelEngine]):
    self._engines = list(engines)
    # The states of all runs, by number of rounds done.
    self._states = {}
    # The metrics of all runs, and the seconds per round and run, by first round
    # and number of rounds.
    self._metrics = {}
    self._seconds = {}

  def run_rounds(self, place: int, state, first_round: int, num_rounds: int):
    """Returns one run's rounds, after computing them for all runs."""
    if first_round == 0 and not self._states:
      self._states[0] = _stack(self._first_states(place, state))
    start = self._states.get(first_round)
    if start is None or not _equal(_take(start, place), state):
      return self._engines[place].run_rounds(state, first_round, num_rounds)
    end = first_round + num_rounds
    key = first_round, num_rounds
    if key not in self._metrics:
      started = time.monotonic()
      self._states[end], self._metrics[key] = self._compute(start, *key)
      elapsed = time.monotonic() - started
      self._seconds[key] = elapsed / num_rounds / len(self._engines)
    metrics = self._engines[place].shown(
      range(first_round, end), _take(self._metrics[key], place)
    )
    seconds = self._seconds[key]
    metrics = [{**row, 'seconds': seconds} for row in metrics]
    return _take(self._states[end], place), metrics

  def _first_states(self, place: int, state) -> list[Any]:
    """Returns the states before round 0; a group shares its warm start."""
    states = []
    for engine in self._engines:
      found = engine.initialize()
      if engine.run.method.warm_start:
        found = engine.set_weights(found, engine.get_weights(state))
      states.append(found)
    states[place] = state
    return states

  def _compute(self, start, first_round: int, num_rounds: int):
    rounds = range(first_round, first_round + num_rounds)
    inputs = [engine.take_inputs(rounds) for engine in self._engines]
    rows = max(i.rows.shape[1] for i in inputs)
    room = max(num_rounds, self._engines[0].run.rounds_per_dispatch)
    padded = [jax_sample_level.pad_rounds(i, room, rows) for i in inputs]
    engine = self._engines[0]
    state, metrics = engine.trainer.run_side_by_side(
      start,
      engine.data,
      jax.tree_util.tree_map(lambda *a: np.stack(a), *padded),
      num_rounds,
      np.array([e.run.plan.noise_multiplier for e in self._engines], 'f4'),
      np.stack([e.noise_key for e in self._engines]),
    )
    return state, jax.device_get(metrics)


class _Member:
  """One run of a group, as an engine; see `engine.Engine`."""

  is_shared = True  # A measured time would be that of all runs.

  def __init__(self, engine, group: _Group, place: int):
    self._engine = engine
    self._group = group
    self._place = place

  def run_rounds(self, state, first_round: int, num_rounds: int):
    return self._group.run_rounds(self._place, state, first_round, num_rounds)

  def __getattr__(self, name: str):
    return getattr(self._engine, name)


def open_engines(
  runs: Sequence[resolving.Run], size: int
) -> Callable[..., contextlib.AbstractContextManager]:
  """Groups runs that can be computed together.

  Args:
    runs: The runs, in the order in which they will be run.
    size: The maximum number of runs to compute together; 1 computes each run
      alone.

  Returns:
    A function that opens an engine, given the run and the seeds.
  """
  members = {}
  for places in _groups(runs, size):
    if len(places) == 1:
      continue
    for i, place in enumerate(places):
      members[place] = (places, i)
  built = {}

  @contextlib.contextmanager
  def open_engine(run, seeds) -> Iterator[Any]:
    place = next((i for i, r in enumerate(runs) if r is run), None)
    if place not in members:  # Not in a group, or the copy of an audit.
      yield jax_sample_level.SampleLevelEngine(run, seeds)
      return
    places, i = members[place]
    if places[0] not in built:
      engines = [
        jax_sample_level.SampleLevelEngine(
          runs[p],
          privacy.SeedStreams(runs[p].spec.seed),
          jax.local_devices()[:1],
        )
        for p in places
      ]
      built[places[0]] = engines, _Group(engines)
    engines, group = built[places[0]]
    try:
      yield _Member(engines[i], group, i)
    finally:
      if place == places[-1]:
        del built[places[0]]  # Frees the states of all rounds.

  return open_engine
