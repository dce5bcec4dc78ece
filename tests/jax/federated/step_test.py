"""`Federated.step`, as users of the library call it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import privacy
from pda_fed import schedules
import pytest

from tests.methods import tiny_linear as tiny

_POPULATION = [tiny.USERS[i % 3] for i in range(100)]


def _trainer(plan=None, method=None, **options):
  settings = dict(
    client_optimizer=optax.sgd(tiny.RATE),
    server_optimizer=optax.sgd(1.0, 0.9),
    public=tiny.PUBLIC,
    batch_size=2,
    devices=jax.devices()[:1],
  )
  method = method or methods.PdaDpmd(alpha=schedules.cosine(9))
  return pda_jax.Federated(
    tiny.MODEL, plan or tiny.plan(), method, **settings | options
  )


def _cohort(indices, round_num=0, seed=1):
  return privacy.Cohort(
    _POPULATION, indices, round_num, privacy.SeedStreams(seed)
  )


def _moved(state):
  return tiny.START - np.asarray(state.params[0])


def test_a_run_is_that_of_rounds_in_one_call():
  plan = tiny.plan(noise_multiplier=0.5)
  seeds = privacy.SeedStreams(1)
  trainer = _trainer(plan)
  state, rows = trainer.init([tiny.START]), []
  for cohort in plan.cohorts(_POPULATION, seeds):
    state, metrics = trainer.step(state, cohort)
    rows.append(metrics)
  inputs = []
  for t in range(plan.rounds):
    drawn = pda_jax.draw_users(seeds.public, t, len(tiny.PUBLIC), 2)
    private, public = (
      pda_jax.chunk_users(
        users, batch_size=2, clients_per_chunk=1, min_chunks=n
      )
      for users, n in (
        ([_POPULATION[i] for i in plan.cohort(t, seeds.sampling)], 12),
        ([tiny.PUBLIC[i] for i in drawn], 2),
      )
    )
    schedule = trainer.method.schedules_at(t)
    inputs.append(pda_jax.RoundInputs(np.int32(t), private, public, schedule))
  expected, metrics = _trainer(plan).run(
    trainer.init([tiny.START]),
    pda_jax.stack_rounds(inputs, plan.rounds),
    plan.rounds,
    pda_jax.noise_key(seeds.noise),
  )
  np.testing.assert_allclose(state.params[0], expected.params[0], rtol=1e-5)
  for t, row in enumerate(rows):
    assert row == pytest.approx(
      {name: float(values[t]) for name, values in metrics.items()}, rel=1e-4
    )
    assert row['alpha'] == pytest.approx(np.cos(np.pi * t / 18))


def test_a_round_is_stepped_once():
  trainer = _trainer(tiny.plan(noise_multiplier=0.5))
  start, seeds = trainer.init([tiny.START]), privacy.SeedStreams()

  def step(state, indices, round_num=0):
    cohort = privacy.Cohort(_POPULATION, indices, round_num, seeds)
    return trainer.step(state, cohort)[0]

  first = step(start, [0, 1])
  again = step(trainer.init([tiny.START]), [0, 1])  # Reveals nothing new.
  np.testing.assert_array_equal(first.params[0], again.params[0])
  for state, indices in ((start, [0]), (start, [0, 2]), (first, [0, 1])):
    with pytest.raises(privacy.ReusedNoiseError, match='Round 0 must have'):
      step(state, indices)
  # Another sum of the same users, before anyone sees it.
  trainer = _trainer(trainer.plan, client_optimizer=optax.sgd(tiny.RATE / 2))
  with pytest.raises(privacy.ReusedNoiseError, match='Round 0 must have'):
    step(start, [0, 1])
  step(first, [0], round_num=1)
  with pytest.raises(ValueError, match='must be below the rounds of the plan'):
    step(first, [0], round_num=trainer.plan.rounds)


def test_an_empty_cohort_adds_noise():
  plan = tiny.plan(noise_multiplier=0.5)
  trainer = _trainer(plan, methods.ColdStart())
  state, metrics = trainer.step(trainer.init([tiny.START]), _cohort([]))
  assert metrics['clients'] == 0
  assert np.all(_moved(state) != 0)
  # The noise is that of the round, whoever takes part.
  others, _ = trainer.step(trainer.init([tiny.START]), _cohort([0, 1, 2]))
  exact = _trainer(tiny.plan(), methods.ColdStart())
  alone, _ = exact.step(exact.init([tiny.START]), _cohort([0, 1, 2]))
  np.testing.assert_allclose(
    _moved(others) - _moved(alone), _moved(state), atol=1e-4
  )


@pytest.mark.parametrize(
  'optimizer',
  [
    optax.sgd(0.1, 0.5),
    # Without a state, but it moves where there is no gradient.
    optax.chain(optax.add_decayed_weights(0.3), optax.sgd(0.1)),
    optax.chain(optax.clip_by_global_norm(0.05), optax.adam(0.1)),
  ],
)
def test_any_optimizer_of_clients(optimizer):
  # Two batches of one example each, then one of padding.
  users = [tiny.USERS[0], tiny.USERS[2], (np.ones([3, 2]), np.ones([3, 1]))]
  trainer = _trainer(
    tiny.plan(clip_norm=1e6),
    methods.ColdStart(),
    client_optimizer=optimizer,
    batch_size=1,
  )
  cohort = privacy.Cohort(users, [0, 1, 2], 0, privacy.SeedStreams(1))
  state, _ = trainer.step(trainer.init([tiny.START]), cohort)
  total = np.zeros_like(tiny.START)
  for x, y in users:
    weights, memory = tiny.START, optimizer.init(tiny.START)
    for i in range(len(x)):
      gradient = tiny.gradient(weights, (x[i : i + 1], y[i : i + 1]))
      changes, memory = optimizer.update(gradient, memory, weights)
      weights = weights + np.asarray(changes)
    total += tiny.START - weights
  np.testing.assert_allclose(_moved(state), total / tiny.COHORT, rtol=1e-4)


def test_no_public_users():
  trainer = _trainer(public=())
  with pytest.raises(ValueError, match='public must have at least one user'):
    trainer.step(trainer.init([tiny.START]), _cohort([0]))


def test_the_secret_stays_in_the_cohort():
  trainer = _trainer(tiny.plan(noise_multiplier=0.5))
  cohort = _cohort([0, 1])
  trainer.step(trainer.init([tiny.START]), cohort)
  for secret in cohort.seeds.as_dict().values():
    assert str(secret) not in repr(vars(trainer))


def test_a_loss_alone_is_a_model():
  def loss(params, x, y):
    return jnp.square(x @ params['w'] - y)[0]

  start = {'w': tiny.START}
  trainer = _trainer(method=methods.ColdStart())
  other = dataclasses.replace(trainer, model=loss)
  expected, _ = trainer.step(trainer.init([tiny.START]), _cohort([0, 1, 2]))
  found, _ = other.step(other.init(start), _cohort([0, 1, 2]))
  np.testing.assert_array_equal(found.params['w'], expected.params[0])


def test_a_loss_that_is_nan_for_everybody():
  trainer = dataclasses.replace(
    _trainer(method=methods.ColdStart()),
    model=lambda params, x, y: jnp.sqrt(-1 - jnp.square(x @ params[0]).sum()),
  )
  with pytest.warns(
    UserWarning, match='only noise was added. Look at the loss'
  ):
    state, metrics = trainer.step(trainer.init([tiny.START]), _cohort([0, 1]))
  assert metrics['non_finite_clients'] == 2
  np.testing.assert_array_equal(state.params[0], tiny.START)


def test_arrays_of_different_lengths():
  users = [tiny.USERS[0], (np.ones([3, 2]), np.ones([2, 1]))]
  cohort = privacy.Cohort(users, [0, 1], 0, privacy.SeedStreams(1))
  trainer = _trainer(method=methods.ColdStart())
  with pytest.raises(ValueError, match=r'Found shapes \[\(3, 2\), \(2, 1\)\]'):
    trainer.step(trainer.init([tiny.START]), cohort)
