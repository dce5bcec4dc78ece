"""An engine of a few numpy lines, whose rounds are random walks by a seed."""

import contextlib
import dataclasses

import numpy as np
from pda_fed import methods
from pda_fed import models
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.privacy import seeds as seeds_lib
from pda_fed.runs import resolving
from pda_fed.runs.engines import base as engine_lib


class FakeEngine:
  """Weights walk by noise of (seed, round); a momentum remembers."""

  name = 'fake'
  canaries = None

  def __init__(self, run, seeds):
    self.run = run
    self.seeds = seeds
    self.num_pretrainings = 0
    self.rounds_run = []
    self.order = {'clients_per_chunk': 4}

  def order_of_sums(self):
    return self.order

  def initialize(self):
    rng = seeds_lib.generator('initialization', self.seeds.initialization, 0)
    return {'w': rng.normal(size=3).astype(np.float32), 'm': np.zeros(3)}

  def run_rounds(self, state, first_round, num_rounds):
    metrics = []
    for round_num in range(first_round, first_round + num_rounds):
      rng = seeds_lib.generator('noise', self.seeds.noise, round_num)
      momentum = 0.9 * state['m'] + rng.normal(size=3)
      weights = (state['w'] - 0.1 * momentum).astype(np.float32)
      state = {'w': weights, 'm': momentum}
      found = {'train_loss': float(np.abs(weights).sum()), 'clients': 2}
      metrics.append(found | self.run.method.schedules_at(round_num))
      self.rounds_run.append(round_num)
    return state, metrics

  def evaluate(self, weights, group, max_users=None):
    del max_users
    # The walk leads away from 0: the loss falls, as a guard expects it.
    loss = 1 / (1 + float(np.square(weights['w']).sum())) + (group == 'test')
    return {'loss': loss, 'accuracy': 1 / (1 + loss), 'perplexity': 1 + loss}

  def pretrain(self, on_epoch=None):
    self.num_pretrainings += 1
    for epoch in range(1, 4):
      on_epoch(epoch, 1 / epoch)
    return {'w': np.full(3, 0.5, np.float32)}, {'epochs': 3}

  def get_weights(self, state):
    return {'w': state['w']}

  def set_weights(self, state, weights):
    return {**state, 'w': weights['w']}

  def to_arrays(self, state):
    weights = engine_lib.prefixed(engine_lib.WEIGHTS, self.get_weights(state))
    return weights | {'fake/m': state['m']}

  def from_arrays(self, arrays, round_num):
    del round_num
    return {'w': arrays['weights/w'], 'm': arrays['fake/m']}


def make_method(method, alpha):
  """Returns the method of a name, or a method as it is."""
  if isinstance(method, methods.Method):
    return method
  if method == 'pda':
    return methods.PdaDpmd(alpha=alpha)
  return methods.get(method)()


@dataclasses.dataclass(frozen=True)
class FakeData:
  """Data of which a run knows only this."""

  name: str = 'fake'
  unit: str = 'user'
  population: int = 1000
  sha256: str = '0'
  about: dict = dataclasses.field(
    default_factory=lambda: {'users': {'private': 1000, 'public': 5}}
  )
  caveats: list = dataclasses.field(default_factory=list)

  def check(self, run):
    """All runs fit."""


def make_run(method='pda', rounds=10, data=None, **values):
  """Returns a run of these settings, by name; it opens no data."""
  spec = runs_lib.RunSpec().with_values(
    {
      'engine': 'jax',
      'rounds': rounds,
      'expected_cohort': 10,
      'delta': 1e-4,
      'noise_multiplier': 1.0,
      'clip_norm': 1.0,
      'seed': 0,
      'rounds_per_evaluation': 3,
      **values,
    }
  )
  data = data or FakeData()
  return resolving.Run(
    spec=spec,
    plan=resolving.build_plan(spec.plan, data.population, data.unit),
    method=make_method(method, schedules.cosine(8)),
    model=models.linear((2,), 1),
    data=data,
  )


class Opener:
  """`open_engine` of a fake engine, which the test can look at."""

  def __init__(self, kind=FakeEngine):
    self._kind = kind
    self.engine = None

  @contextlib.contextmanager
  def __call__(self, run, seeds):
    self.engine = self._kind(run, seeds)
    yield self.engine
