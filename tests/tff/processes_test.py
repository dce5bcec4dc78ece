"""DP-FedAvg and PDA-DPMD, whole rounds of them."""

import itertools
import math

import numpy as np
from pda_fed import methods
from pda_fed import privacy
from pda_fed import schedules
from pda_fed import tff as pda_tff
from pda_fed.tff import runtime
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff import linear_model

pytestmark = pytest.mark.slow

_FEATURES = 3
_BATCH = 2
_RATE = 0.1
_MODEL_FN = linear_model.build_model_fn(_FEATURES)
_sgd = tff.learning.optimizers.build_sgdm


def _plan(**changes) -> privacy.PrivacyPlan:
  settings = dict(
    population=10,
    expected_cohort=4,
    rounds=8,
    delta=1e-2,
    noise_multiplier=0.0,
    clip_norm=0.5,
  )
  return privacy.PrivacyPlan(**(settings | changes))


_RNG = np.random.default_rng(0)
_CLIENTS = [linear_model.make_examples(_RNG, n, _FEATURES) for n in (5, 4, 1)]
_DATASETS = [linear_model.make_dataset(c, _BATCH) for c in _CLIENTS]
_PUBLIC = [linear_model.make_examples(_RNG, n, _FEATURES) for n in (3, 6)]
# Whatever rows are drawn of these, the batch is the same.
_EQUAL_PUBLIC = [tuple(np.repeat(a[:1], 4, axis=0) for a in _PUBLIC[0])]


def _dp_fedavg(plan=None, server_optimizer=None, **options):
  return pda_tff.build_dp_fedavg(
    _MODEL_FN,
    plan or _plan(),
    _sgd(_RATE),
    server_optimizer or _sgd(1.0),
    **({'noise_seed': 0} | options),
  )


def _pda_dpmd(plan=None, server_optimizer=None, **options):
  settings = dict(
    public_data=_PUBLIC,
    alpha=schedules.constant(0.5),
    public_users_per_round=2,
    public_batch_size=_BATCH,
    public_clip_norm=None,
    noise_seed=0,
  )
  return pda_tff.build_pda_dpmd(
    _MODEL_FN,
    plan or _plan(),
    _sgd(_RATE),
    server_optimizer or _sgd(1.0),
    **(settings | options),
  )


def _run(process, cohorts):
  """The weights after each round, and the last output."""
  state = process.initialize()
  weights, output = [], None
  for cohort in cohorts:
    output = process.next(state, cohort)
    state = output.state
    weights.append(
      [np.asarray(w) for w in process.get_model_weights(state).trainable]
    )
  return weights, output


def _assert_close(actual, expected, tolerance=1e-6):
  for a, e in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def _numpy_rounds(alphas, public_fn, momentum):
  """PDA-DPMD as in the paper, in numpy; noise is 0."""
  weights = [np.zeros((_FEATURES, 1)), np.zeros(1)]
  velocity = [np.zeros_like(w) for w in weights]
  for alpha in alphas:
    updates = [
      linear_model.clipped(
        linear_model.local_delta(weights, client, _BATCH, _RATE), 0.5
      )
      for client in _CLIENTS
    ]
    private = [sum(u) / 4 for u in zip(*updates, strict=True)]
    mixed = [
      alpha * a + (1 - alpha) * b
      for a, b in zip(private, public_fn(weights), strict=True)
    ]
    velocity = [momentum * v + m for v, m in zip(velocity, mixed, strict=True)]
    weights = [w - 0.8 * v for w, v in zip(weights, velocity, strict=True)]
    yield weights


def _mean_public_delta(weights):
  deltas = [
    linear_model.local_delta(weights, user, _BATCH, _RATE) for user in _PUBLIC
  ]
  return [sum(d) / 2 for d in zip(*deltas, strict=True)]


def _public_gradient_step(weights):
  # One step on a batch of the one example that there is.
  example = tuple(a[:1] for a in _EQUAL_PUBLIC[0])
  return linear_model.local_delta(weights, example, 1, _RATE)


@pytest.mark.parametrize('momentum', [None, 0.9])
@pytest.mark.parametrize(
  'mode, data, users, public_fn',
  [
    ('local_training', _PUBLIC, 2, _mean_public_delta),
    ('gradient', _EQUAL_PUBLIC, 1, _public_gradient_step),
  ],
)
def test_whole_rounds_equal_numpy(momentum, mode, data, users, public_fn):
  alphas = [0.7, 0.4, 0.0]
  process = _pda_dpmd(
    server_optimizer=_sgd(0.8, momentum),
    public_data=data,
    public_update=mode,
    public_users_per_round=users,
    alpha=alphas,
  )
  actual, output = _run(process, [_DATASETS] * 3)
  expected = list(_numpy_rounds(alphas, public_fn, momentum or 0.0))
  for a, e in zip(actual, expected, strict=True):
    _assert_close(a, e)
  mirror = output.metrics['finalizer']['method']
  assert mirror['alpha'] == 0.0
  assert mirror['mixed_norm'] == mirror['public_norm']
  assert -1 <= mirror['cosine'] <= 1


def test_alpha_1_is_dp_fedavg_bit_for_bit():
  plan = _plan(noise_multiplier=0.5)
  pda, _ = _run(_pda_dpmd(plan, alpha=schedules.constant(1.0)), [_DATASETS] * 3)
  fedavg, _ = _run(_dp_fedavg(plan), [_DATASETS] * 3)
  for a, b in zip(pda, fedavg, strict=True):
    for x, y in zip(a, b, strict=True):
      np.testing.assert_array_equal(x, y)


def test_alpha_0_never_touches_the_private_aggregate():
  plan = _plan(noise_multiplier=0.5)
  process = _pda_dpmd(plan, alpha=schedules.constant(0.0))
  runs = [_run(process, cohorts)[0] for cohorts in ([_DATASETS], [[]])]
  np.testing.assert_array_equal(runs[0][0][0], runs[1][0][0])
  expected = [-d for d in _mean_public_delta([np.zeros((3, 1)), np.zeros(1)])]
  _assert_close(runs[0][0], expected)


def test_without_noise_and_clip_it_is_stock_fedavg():
  plan = _plan(clip_norm=1e6, expected_cohort=3)
  ours, _ = _run(_dp_fedavg(plan), [_DATASETS] * 2)
  stock = tff.learning.algorithms.build_unweighted_fed_avg(
    _MODEL_FN, _sgd(_RATE), _sgd(1.0)
  )
  theirs, _ = _run(stock, [_DATASETS] * 2)
  for a, b in zip(ours, theirs, strict=True):
    _assert_close(a, b)


def test_noise_enters_as_alpha_times_noise():
  features = 40_000
  zeros = np.zeros((2, features), np.float32), np.zeros((2, 1), np.float32)
  process = pda_tff.build_pda_dpmd(
    linear_model.build_model_fn(features),
    _plan(noise_multiplier=0.5, clip_norm=2.0),
    _sgd(_RATE),
    _sgd(3.0),
    public_data=[zeros],  # Their update is zero.
    public_users_per_round=1,
    alpha=[0.25],
    noise_seed=3,
  )
  (weights,), _ = _run(process, [[]])
  # alpha sigma S / (qN) times the server's rate.
  expected = 0.25 * 0.5 * 2.0 / 4 * 3.0
  assert np.std(weights[0]) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize('build', [_dp_fedavg, _pda_dpmd])
def test_odd_cohorts(build):
  process = build(_plan(noise_multiplier=0.5))
  empty_client = linear_model.make_dataset(
    tuple(a[:0] for a in _CLIENTS[0]), _BATCH
  )
  cohorts = [[], _DATASETS[:1], [_DATASETS[2]], [empty_client]]
  weights, output = _run(process, cohorts)
  moved = [np.abs(w[0]).sum() for w in weights]
  assert all(math.isfinite(m) and m > 0 for m in moved)
  # Every round adds noise and steps, also with nobody in it.
  for before, after in itertools.pairwise(weights):
    assert not np.array_equal(before[0], after[0])
  assert output.metrics['client_work']['num_non_finite'] == 0


def test_clients_that_are_not_finite_are_zero_and_counted():
  bad = tuple(np.full_like(a, np.inf) for a in _CLIENTS[0])
  process = _dp_fedavg()
  with_bad, output = _run(
    process, [[*_DATASETS, linear_model.make_dataset(bad, _BATCH)]]
  )
  without, _ = _run(process, [_DATASETS])
  _assert_close(with_bad[0], without[0])
  assert output.metrics['client_work']['num_non_finite'] == 1
  assert output.metrics['client_work']['num_diverged'] == 1


def test_clients_that_diverge_are_counted():
  # The updates are finite, and too long by far.
  long = tuple(100 * a for a in _CLIENTS[0])
  cohort = [*_DATASETS, linear_model.make_dataset(long, _BATCH)]
  _, output = _run(_dp_fedavg(), [cohort])
  assert output.metrics['client_work']['num_non_finite'] == 0
  assert output.metrics['client_work']['num_diverged'] == 1


def test_clipped_gradients_bound_a_clients_update():
  # Batches of 5, 4 and 1 examples: an update of at most steps * rate * clip.
  steps = math.ceil(len(_CLIENTS[0][0]) / _BATCH)
  process = _dp_fedavg(client_gradient_clip=1e-3)
  weights, _ = _run(process, [[_DATASETS[0]]])
  moved = math.sqrt(sum(np.square(w).sum() for w in weights[0]))
  assert 0 < moved <= steps * _RATE * 1e-3 / 4 * (1 + 1e-5)


def test_public_users_change_by_round_and_repeat_by_seed():
  rng = np.random.default_rng(1)
  users = [linear_model.make_examples(rng, 3, _FEATURES) for _ in range(8)]

  def losses(seed):
    process = _pda_dpmd(
      public_data=users, public_users_per_round=2, public_seed=seed
    )
    state, found = process.initialize(), []
    for _ in range(4):
      output = process.next(state, [])
      # The model stays as it is, so the loss tells the users apart.
      state = output.state._replace(
        global_model_weights=state.global_model_weights
      )
      found.append(float(output.metrics['finalizer']['method']['public_loss']))
    return found

  first = losses(5)
  assert len(set(first)) > 1
  assert first == losses(5) != losses(6)


def test_public_clip():
  process = _pda_dpmd(public_clip_norm=1e-3)
  _, output = _run(process, [_DATASETS])
  mirror = output.metrics['finalizer']['method']
  assert mirror['public_norm'] == pytest.approx(1e-3)


@pytest.mark.parametrize('adaptive', [False, True])
def test_by_default_the_public_clip_is_the_private_one(adaptive):
  changes = dict(clip_norm=1e-3)
  if adaptive:
    changes['adaptive_clipping'] = privacy.AdaptiveClipping(learning_rate=1.0)
  process = _pda_dpmd(plan=_plan(**changes), public_clip_norm='private')
  clip, norms = 1e-3, []
  with runtime.in_process():
    state = process.initialize()
    for _ in range(2):
      state, metrics = process.next(state, _DATASETS)
      norms.append(float(metrics['finalizer']['method']['public_norm']))
      if adaptive:
        # Everybody was clipped: the clip grows, and the public one with it.
        measured = metrics['aggregator']['dp_query_metrics']
        expected, clip = clip, float(measured['clip_norm'])
      else:
        expected = clip
      assert norms[-1] == pytest.approx(expected, rel=1e-5)
  assert (norms[1] > norms[0]) == adaptive


def test_types_are_those_of_a_stock_process():
  stock = tff.learning.algorithms.build_unweighted_fed_avg(
    _MODEL_FN, _sgd(_RATE), _sgd(1.0)
  )
  for process in (_dp_fedavg(), _pda_dpmd()):
    assert isinstance(process, tff.learning.templates.LearningProcess)
    ours, theirs = process.next.type_signature, stock.next.type_signature
    assert ours.parameter[1] == theirs.parameter[1]
    assert (
      process.get_model_weights.type_signature.result
      == stock.get_model_weights.type_signature.result
    )


def test_runs_and_resumes_in_tffs_training_loop(tmp_path):
  process = _pda_dpmd(_plan(noise_multiplier=0.5))

  def train(folder, rounds):
    return tff.simulation.run_training_process(
      process,
      lambda round_num: _DATASETS[: round_num % 3 + 1],
      rounds,
      program_state_manager=tff.program.FileProgramStateManager(folder),
    )

  whole = train(tmp_path / 'whole', 4)
  train(tmp_path / 'parts', 2)
  resumed = train(tmp_path / 'parts', 4)
  for a, b in zip(
    process.get_model_weights(whole).trainable,
    process.get_model_weights(resumed).trainable,
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(public_data=[]), 'public_data must have at least one user'),
    (
      dict(public_data=[tuple(a[:0] for a in _PUBLIC[0])]),
      'public_data must have at least one example for each user',
    ),
    (
      dict(public_data=[_PUBLIC[0], _PUBLIC[0][0]]),
      'public_data must have the same structure .* user 1',
    ),
    (
      dict(public_data=[_PUBLIC[0], (_PUBLIC[1][0], _PUBLIC[1][1][1:])]),
      'public_data must have equal row counts .* user 1',
    ),
    (
      dict(public_data=[_PUBLIC[0][0]], public_users_per_round=1),
      'public_data must have the structure of the model',
    ),
    (
      dict(public_data=[linear_model.make_examples(_RNG, 3, 5)] * 2),
      "public_data must fit the model's input",
    ),
    (
      dict(public_data=[tuple(a.astype(np.int32) for a in _PUBLIC[0])] * 2),
      "public_data must fit the model's input",
    ),
    (dict(alpha=[1.5]), 'alpha must be in'),
    (dict(alpha=[math.nan]), 'alpha must be in'),
    (dict(alpha=[]), 'alpha must be a list'),
    (dict(alpha=0.5), 'a list of numbers, or a schedule.* Found 0.5'),
    (
      dict(public_users_per_round=3),
      'public_users_per_round must be at most 2',
    ),
    (dict(public_update='exact'), 'public_update must be one of'),
    (dict(public_batch_size=0), 'batch_size must be at least 1'),
    (dict(public_clip_norm=0.0), 'public_clip_norm must be positive'),
    (dict(noise_seed=-1), 'noise_seed must be at least 0'),
    (dict(clients_per_round=5), r"must be the plan's expected_cohort, 4.*5"),
    (
      dict(client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES),
      'client_weighting must be .*NUM_EXAMPLES',
    ),
  ],
)
def test_bad_arguments_are_named(options, message):
  with pytest.raises(ValueError, match=message):
    _pda_dpmd(**options)


def test_the_cohort_of_the_plan_is_taken():
  _dp_fedavg(clients_per_round=4)
  with pytest.raises(ValueError, match='clients_per_round must be'):
    _dp_fedavg(clients_per_round=3)


def _bare_keras_model():
  return tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[3])])


@pytest.mark.parametrize(
  'build',
  [
    pda_tff.build_dp_fedavg,
    lambda *args: pda_tff.build_pda_dpmd(
      *args,
      public_data=_PUBLIC,
      public_users_per_round=1,
      alpha=schedules.constant(0.5),
    ),
  ],
)
def test_keras_models_are_refused_with_what_to_do(build):
  with pytest.raises(TypeError, match='from_keras_model.*Found Sequential'):
    build(_bare_keras_model, _plan(), _sgd(0.1), _sgd(1.0))


@pytest.mark.parametrize(
  'model',
  [_bare_keras_model(), _MODEL_FN(), 'a model'],
  ids=['keras', 'tff', 'text'],
)
def test_models_in_place_of_functions_are_refused(model):
  with pytest.raises(TypeError, match='must be a function without arguments'):
    pda_tff.build_dp_fedavg(model, _plan(), _sgd(0.1), _sgd(1.0))


@pytest.mark.parametrize('user', [_DATASETS[0], 3.0, ([1.0, 2.0], [3.0, 4.0])])
def test_public_users_are_arrays(user):
  with pytest.raises(TypeError, match='such as .features, labels.*in user 0'):
    pda_tff.PublicData.from_users([user])


def test_keras_optimizers_are_refused():
  with pytest.raises(TypeError, match='server_optimizer must be a tff'):
    _dp_fedavg(server_optimizer=tf.keras.optimizers.SGD(1.0))


def test_methods_that_need_public_data_say_so():
  with pytest.raises(ValueError, match='public_data must be given for DOPE'):
    pda_tff.build_learning_process(
      _MODEL_FN, _plan(), _sgd(_RATE), _sgd(1.0), method=methods.Dope()
    )
  with pytest.raises(TypeError, match="method must be a Method.*Found 'dope'"):
    pda_tff.build_learning_process(
      _MODEL_FN, _plan(), _sgd(_RATE), _sgd(1.0), method='dope'
    )
