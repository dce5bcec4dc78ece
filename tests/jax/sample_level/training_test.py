"""Steps over examples: limit cases, noise, microbatches, side by side."""

import dataclasses
import functools

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.jax.sample_level import gradients
from pda_fed.models import batches
import pytest

from tests.jax import small_models

_ROUNDS = 3
_PLAIN = small_models.step_settings()
_KEY = pda_jax.noise_key(7)
# The values of its schedule are inputs.
_PDA = methods.PdaDpmd(alpha=schedules.constant(0.5))


@pytest.fixture(autouse=True, scope='module')
def fixture_quick_compilation():
  with small_models.quick_compilation():
    yield


@pytest.fixture(name='task', params=['pooled', 'small_text'], scope='module')
def fixture_task(request):
  return _task(request.param)


@pytest.fixture(name='images', scope='module')
def fixture_images():
  return _task('pooled')


@functools.cache
def _task(name):
  """A model, its weights, and examples that are private and public alike."""
  model, inputs, targets = small_models.create(name)
  examples = pda_jax.ExampleArrays(inputs, targets)
  return model, small_models.params_of(model), examples


# Programs are compiled once for all tests.
_trainer = functools.cache(pda_jax.SampleTrainer)


def _inputs(alpha=None, rows=None, rate=0.5):
  rng = np.random.default_rng(0)
  rows = rng.permuted(np.tile(np.arange(5), (_ROUNDS, 1)), axis=1)
  present = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
  public, values = None, {}
  if alpha is not None:
    values = {'alpha': np.full(_ROUNDS, alpha, np.float32)}
    public = rng.integers(0, 5, (_ROUNDS, 3))
  return pda_jax.StepInputs(
    round_num=np.arange(_ROUNDS, dtype=np.int32),
    rows=rows,
    present=present,
    learning_rate=np.full(_ROUNDS, rate, np.float32),
    epoch=np.zeros(_ROUNDS, np.int32),
    public_rows=public,
    schedules=values,
  )


def _run(
  task,
  settings,
  inputs,
  noise=0.0,
  num_rounds=_ROUNDS,
  key=_KEY,
  standard=None,
):
  model, params, examples = task
  uses_public = inputs.public_rows is not None
  if uses_public:
    settings = dataclasses.replace(settings, method=_PDA)
  if standard is None:
    trainer = _trainer(model, settings)
  else:
    trainer = pda_jax.SampleTrainer(model, settings, standard)
  state = trainer.init(params)
  data = pda_jax.TrainingArrays(examples, examples if uses_public else None)
  return trainer.run(state, data, inputs, num_rounds, noise, key)


def _assert_equal(found, expected, tolerance=1e-5):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def _first(params):
  return jax.tree.leaves(params)[0]


@functools.cache
def _gradient(model):
  def loss(params, *examples):
    one = functools.partial(batches.loss_of_one, model, params)
    return jax.vmap(one)(*examples)[0].mean()

  return jax.jit(jax.grad(loss))


def _mean_gradient(task, params, rows):
  model, _, examples = task
  return _gradient(model)(params, *examples.take(rows))


@pytest.mark.slow
@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_without_noise_and_clip_it_is_sgd(task, momentum):
  settings = dataclasses.replace(_PLAIN, optimizer=optax.sgd(1.0, momentum))
  inputs = _inputs()
  state, metrics = _run(task, settings, inputs)
  params = task[1]
  accumulator = jax.tree.map(np.zeros_like, params)
  for t in range(_ROUNDS):
    rows = inputs.rows[t][inputs.present[t]]
    gradient = _mean_gradient(task, params, rows)
    # The sum over the batch by the expected batch of 4.
    share = len(rows) / 4
    accumulator = jax.tree.map(
      lambda a, g, s=share: momentum * a + s * g, accumulator, gradient
    )
    params = jax.tree.map(lambda p, a: p - 0.5 * a, params, accumulator)
  _assert_equal(state.params, params, 1e-4)
  assert metrics['clients'].tolist() == [4, 2, 5]


@pytest.mark.slow
def test_alpha_of_1_is_dp_sgd_bit_for_bit_and_of_0_is_public_sgd(task):
  settings = small_models.step_settings(0.1, mean_clip_norm=0.1)
  plain, _ = _run(task, settings, _inputs(), noise=1.0)
  mixed, _ = _run(task, settings, _inputs(alpha=1.0), noise=1.0)
  _assert_equal(plain.params, mixed.params, 0)
  public, _ = _run(task, settings, _inputs(alpha=0.0), noise=1.0)
  params = task[1]
  for rows in _inputs(alpha=0.0).public_rows:
    gradient = _mean_gradient(task, params, rows)
    params = jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient)
  _assert_equal(public.params, params)


def test_noise_first_then_mix(images):
  # Without noise or with it, the public part is the same; the private one is
  # alpha times the noise of DP-SGD.
  settings = small_models.step_settings(0.1)

  def step(alpha, noise):
    inputs = _inputs(alpha=alpha)
    return _run(images, settings, inputs, noise, num_rounds=1)[0].params

  def noise(alpha):
    return jax.tree.map(jnp.subtract, step(alpha, 2.0), step(alpha, 0.0))

  _assert_equal(noise(0.25), jax.tree.map(lambda n: 0.25 * n, noise(1.0)))


@pytest.mark.slow
def test_noise_has_its_standard_deviation_and_is_new_each_step():
  task = _task('text')
  settings = small_models.step_settings(0.5, expected_cohort=10.0)
  empty = _inputs(rate=1.0)._replace(present=np.zeros((_ROUNDS, 5), bool))
  weights = [task[1]]
  for steps in (1, 2, 3):
    state, metrics = _run(task, settings, empty, 3.0, num_rounds=steps)
    weights.append(state.params)
  noises = [
    flatten_util.ravel_pytree(jax.tree.map(jnp.subtract, x, y))[0]
    for x, y in zip(weights[1:], weights[:-1], strict=True)
  ]
  # sigma S / qN = 3 * 0.5 / 10, though the batches are empty.
  assert int(metrics['clients'].sum()) == 0
  for noise in noises:
    assert len(noise) > 5000
    assert abs(noise.std() / 0.15 - 1) < 0.05
    assert abs(noise.mean()) < 0.01
  assert abs(np.corrcoef(noises)[0, 1]) < 0.05
  other, _ = _run(task, settings, empty, 3.0, key=pda_jax.noise_key(8))
  assert not np.allclose(_first(other.params), _first(weights[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('varied', 'multiplicity'), [(False, 1), (True, 1), (True, 2)]
)
def test_microbatches_are_the_batch(images, varied, multiplicity):
  # Varied images, too: a run that goes on with another size repeats its noise,
  # and must repeat all else.
  settings = small_models.step_settings(
    0.3,
    augmentation='all' if varied else 'none',
    augmentation_multiplicity=multiplicity,
  )
  standard = augmentation.Standardization(np.zeros(1), np.ones(1))
  rows = np.pad(_inputs().rows, ((0, 0), (0, 1)))
  present = np.pad(_inputs().present, ((0, 0), (0, 1)))
  inputs = _inputs()._replace(rows=rows, present=present)
  whole, metrics = _run(images, settings, inputs, standard=standard)
  for size in (2, 3):
    micro = dataclasses.replace(settings, microbatch_size=size)
    parts, metrics_of_parts = _run(images, micro, inputs, standard=standard)
    _assert_equal(parts.params, whole.params)
    np.testing.assert_allclose(
      metrics['train_loss'], metrics_of_parts['train_loss'], rtol=1e-5
    )
  plain, _ = _run(
    images, dataclasses.replace(settings, augmentation='none'), inputs
  )
  assert np.allclose(_first(plain.params), _first(whole.params)) != varied


@pytest.mark.slow
def test_variations_of_an_image_differ(images):
  # Equal ones would change nothing; they are then one image.
  standard = augmentation.Standardization(np.zeros(1), np.ones(1))
  found = []
  for kind, multiplicity in (('none', 1), ('none', 3), ('all', 1), ('all', 3)):
    settings = dataclasses.replace(
      _PLAIN, augmentation=kind, augmentation_multiplicity=multiplicity
    )
    state, metrics = _run(images, settings, _inputs(), standard=standard)
    found.append(np.asarray(_first(state.params)))
    assert metrics['clients'].tolist() == _inputs().present.sum(axis=1).tolist()
  np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)
  assert not np.allclose(found[2], found[3], atol=1e-5)


def test_the_mean_is_clipped_once_more():
  task = _task('pooled')
  settings = small_models.step_settings(1.0, mean_clip_norm=0.25)
  _, metrics = _run(task, settings, _inputs(), noise=5.0)
  np.testing.assert_allclose(metrics['private_norm'], 0.25, rtol=1e-5)


@pytest.mark.parametrize(
  ('options', 'bound'),
  [
    ({}, None),
    ({'public_update': 'clipped'}, 0.1),
    ({'public_clip_norm': 0.01}, 0.01),
  ],
)
def test_public_update_in_the_private_unit(options, bound):
  settings = small_models.step_settings(0.1, **options)
  _, metrics = _run(_task('pooled'), settings, _inputs(alpha=0.5))
  # Gradients are far above 0.1 here.
  if bound is None:
    assert (metrics['public_norm'] > 0.2).all()
  else:
    assert (metrics['public_norm'] <= 1.001 * bound).all()
    assert (metrics['public_norm'] > 0.2 * bound).all()


@pytest.mark.slow
def test_fewer_rounds_than_there_is_room_for(images):
  settings = small_models.step_settings(0.3)
  inputs = _inputs()
  two, _ = _run(images, settings, inputs, 1.0, num_rounds=2)
  first = jax.tree_util.tree_map(lambda a: a[:2], inputs)
  alone, _ = _run(images, settings, first, 1.0, num_rounds=2)
  _assert_equal(two.params, alone.params, 1e-6)


@pytest.mark.slow
def test_side_by_side_runs_are_those_of_their_own():
  model, params, examples = _task('small_text')
  settings = small_models.step_settings(
    0.3, optimizer=optax.sgd(1.0, 0.5), method=_PDA
  )
  trainer = _trainer(model, settings)
  data = pda_jax.TrainingArrays(examples, examples)
  runs = [
    (_inputs(alpha=0.5, rate=0.1), 1.0, pda_jax.noise_key(1)),
    (_inputs(alpha=0.9, rate=0.3), 2.0, pda_jax.noise_key(2)),
  ]
  state = trainer.init(params)

  def stack(*trees):
    return jax.tree_util.tree_map(lambda *a: np.stack(a), *trees)

  together, _ = trainer.run_side_by_side(
    stack(state, state),
    data,
    stack(*(inputs for inputs, _, _ in runs)),
    _ROUNDS,
    np.array([noise for _, noise, _ in runs], np.float32),
    np.stack([key for _, _, key in runs]),
  )
  for i, (inputs, noise, key) in enumerate(runs):
    alone, _ = trainer.run(state, data, inputs, _ROUNDS, noise, key)
    own = jax.tree.map(lambda p, i=i: p[i], together.params)
    _assert_equal(own, alone.params)


def test_averages_are_of_weights(images):
  settings = dataclasses.replace(_PLAIN, averaging=0.5)
  state, _ = _run(images, settings, _inputs(), num_rounds=1)
  # At t = 0 the average keeps a tenth of the first weights.
  expected = jax.tree.map(
    lambda a, b: 0.1 * a + 0.9 * b, images[1], state.params
  )
  _assert_equal(state.average, expected, 1e-6)


def test_batches_have_room_for_all_examples():
  plan = privacy.PrivacyPlan(
    population=50,
    expected_cohort=5,
    rounds=30,
    delta=1e-2,
    noise_multiplier=1.0,
    clip_norm=1.0,
  )
  rows, present = pda_jax.draw_batches(plan, range(30), seed=3)
  assert rows.shape[1] % 8 == 0
  for t in range(30):
    expected = plan.cohort(t, 3)
    np.testing.assert_array_equal(rows[t][present[t]], expected)
  # No batch is cut, however large.
  assert batches_lib.batch_room(5, largest=49) == 56
  assert batches_lib.batch_room(500, largest=0, multiple=100) == 700


def test_evaluation_counts_every_example_once(task):
  model, params, examples = task
  trainer = _trainer(model, _PLAIN)
  sums = batches.metric_sums(model, params, examples)
  expected = {n: float(v.sum() / w.sum()) for n, (v, w) in sums.items()}
  for size in (2, 5, 100):
    found = trainer.evaluate(params, examples, batch_size=size)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_images_are_standardised_and_varied():
  images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3))
  images = images.astype(np.uint8)
  images[..., 2] = 9
  standard = augmentation.Standardization.of(images)
  found = np.asarray(standard.apply(jnp.asarray(images)))
  np.testing.assert_allclose(found.mean(axis=(0, 1, 2)), 0, atol=1e-4)
  np.testing.assert_allclose(found.std(axis=(0, 1, 2)), [1, 1, 0], atol=1e-4)
  # 1 pixel is an eighth of the shorter side.
  image = jnp.arange(96.0).reshape(1, 8, 12, 1) + 1
  varied = augmentation.flip_and_crop(
    jnp.tile(image, (64, 1, 1, 1)), jax.random.key(0)
  )
  # Every one is a crop of the padded image or of its mirror image.
  crops = set()
  for one in (image[0, :, :, 0], image[0, :, ::-1, 0]):
    padded = np.pad(np.asarray(one), 1)
    crops |= {
      padded[i : i + 8, j : j + 12].tobytes()
      for i in range(3)
      for j in range(3)
    }
  found = {np.asarray(v[..., 0]).tobytes() for v in varied}
  assert found <= crops
  assert len(found) > 10


@pytest.mark.parametrize(
  'options',
  [
    {'averaging': 1.0},
    {'public_update': 'other'},
    {'augmentation': 'other'},
    {'augmentation_multiplicity': 0},
    {'compute_dtype': 'float16'},
    {'microbatch_size': 0},
    {'mean_clip_norm': -1.0},
  ],
)
def test_bad_settings(options):
  with pytest.raises(ValueError, match=next(iter(options))):
    dataclasses.replace(_PLAIN, **options)


def test_weights_of_another_model_are_refused(images):
  with pytest.raises(ValueError, match='another model'):
    _trainer(images[0], _PLAIN).init({'logits': images[1]['logits']})


@pytest.mark.slow
@pytest.mark.parametrize('name', small_models.NAMES)
@pytest.mark.parametrize('copies', [1, 2])
def test_clipped_sums_are_those_of_a_loop(name, copies):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  examples = pda_jax.ExampleArrays(inputs, targets)
  one = jax.jit(jax.grad(lambda p, *e: batches.loss_of_one(model, p, *e)[0]))
  each = [one(params, *examples.take(i)) for i in range(5)]
  norms = np.array(
    [np.linalg.norm(flatten_util.ravel_pytree(g)[0]) for g in each]
  )
  clip_norm = float(np.sort(norms)[2:4].mean())
  # One row is padding, and one image holds what is no number.
  present = np.array([1, 1, 0, 1, 1], bool)
  is_image = inputs.dtype == jnp.float32
  if is_image:
    examples = examples._replace(inputs=inputs.at[1].set(jnp.nan))
    norms[1] = 0
  settings = small_models.step_settings(
    clip_norm, augmentation_multiplicity=copies
  )
  step = _inputs()._replace(rows=np.arange(5), present=present)
  sums, stats = jax.jit(gradients.Gradients(model, settings).private_sums)(
    params, examples, step, jax.random.key(0), jnp.float32(clip_norm)
  )
  scales = np.where(norms > clip_norm, clip_norm / np.maximum(norms, 1e-9), 1)
  scales *= present & (norms > 0)
  expected = jax.tree.map(
    lambda *g: sum(s * a for s, a in zip(scales, g, strict=True)), *each
  )
  _assert_equal(sums.total, expected, 2e-5 * clip_norm)
  assert int(sums.num_non_finite) == is_image
  assert int(sums.num_clients) == 4
  assert int(sums.num_clipped) == (norms[present] > clip_norm).sum()
  np.testing.assert_allclose(
    stats.squared_norm, np.square(norms[present]).sum(), rtol=1e-3
  )


def test_a_loss_alone_is_a_model():
  def loss(params, x, y):
    return (params @ x - y) ** 2

  trainer = pda_jax.SampleTrainer(loss, _PLAIN)
  data = pda_jax.TrainingArrays(pda_jax.ExampleArrays(jnp.eye(5), jnp.ones(5)))
  inputs = _inputs()
  state, _ = trainer.run(trainer.init(jnp.zeros(5)), data, inputs, 1, 0.0, _KEY)
  expected = np.zeros(5)
  expected[inputs.rows[0][inputs.present[0]]] = 0.5 * 2 / 4
  np.testing.assert_allclose(state.params, expected, rtol=1e-5)


def test_inputs_without_targets():
  trainer = pda_jax.SampleTrainer(lambda params, x, y: params @ x - y, _PLAIN)
  data = pda_jax.TrainingArrays(pda_jax.ExampleArrays(jnp.eye(5), jnp.ones(4)))
  with pytest.raises(ValueError, match='private must have as many inputs.*4'):
    trainer.run(trainer.init(jnp.zeros(5)), data, _inputs(), 1, 0.0, _KEY)


def test_a_step_is_that_of_rounds_in_one_call():
  def loss(params, x, y):
    return (params @ x - y) ** 2

  settings = small_models.step_settings(0.5, method=_PDA)
  plan = settings.plan
  data = pda_jax.TrainingArrays(
    *(pda_jax.ExampleArrays(jnp.eye(100)[:, :3], jnp.arange(100.0)),) * 2
  )
  trainer, seeds = pda_jax.SampleTrainer(loss, settings), privacy.SeedStreams(3)
  start = trainer.init(jnp.zeros(3))
  state = start
  for cohort in plan.cohorts(range(100), seeds):
    state, metrics = trainer.step(state, data, cohort, public_batch_size=4)
  steps = range(plan.rounds)
  rows, present = pda_jax.draw_batches(plan, steps, seeds.sampling)
  ones = np.ones(plan.rounds, np.float32)
  inputs = pda_jax.StepInputs(
    round_num=np.asarray(steps, np.int32),
    rows=rows,
    present=present,
    learning_rate=ones,
    epoch=np.zeros(plan.rounds, np.int32),
    public_rows=np.stack(
      [pda_jax.draw_rows(seeds.public, t, 100, 4) for t in steps]
    ),
    schedules={'alpha': 0.5 * ones},
  )
  key = pda_jax.noise_key(seeds.noise)
  expected, _ = trainer.run(start, data, inputs, plan.rounds, 1.0, key)
  _assert_equal(state.params, expected.params, 1e-6)
  assert metrics['clients'] == present[-1].sum()
  with pytest.raises(privacy.ReusedNoiseError):
    trainer.step(state, data, cohort)


def test_a_step_has_one_result():
  def loss(params, x, y):
    return (params @ x - y) ** 2

  plan = small_models.step_settings(0.5).plan
  data = pda_jax.TrainingArrays(
    pda_jax.ExampleArrays(jnp.eye(100)[:, :3], jnp.arange(100.0))
  )
  cohort = privacy.Cohort(range(100), [1, 2, 5], 0, privacy.SeedStreams(3))
  start = np.zeros(3, np.float32)

  def step(data=data, **changes):
    settings = small_models.step_settings(0.5)
    settings = dataclasses.replace(settings, **changes)
    trainer = pda_jax.SampleTrainer(loss, settings)
    return trainer.step(trainer.init(start), data, cohort)[0].params

  _assert_equal(step(), step(), 0)  # Reveals nothing new.
  # Another sum of the same examples, with the same noise.
  other = dataclasses.replace(plan, clip_norm=0.25)
  with pytest.raises(privacy.ReusedNoiseError):
    step(plan=other)
  few = jax.tree.map(lambda array: array[:5], data)
  with pytest.raises(ValueError, match='private must have an example for row'):
    step(few)
  with pytest.raises(ValueError, match='below the rounds of the plan, 1: its'):
    cohort = privacy.Cohort(range(100), [1], 1, privacy.SeedStreams())
    step(plan=dataclasses.replace(plan, rounds=1))


def test_examples_are_clipped_to_what_noise_is_in_proportion_to():
  # A state of another plan, such as a checkpoint's: its noise is for its clip.
  settings = small_models.step_settings(0.5)
  data = pda_jax.TrainingArrays(
    pda_jax.ExampleArrays(jnp.eye(5), jnp.full(5, 9.0))
  )
  trainer = pda_jax.SampleTrainer(lambda w, x, y: (w @ x - y) ** 2, settings)
  inputs = _inputs(rate=1.0)
  state = trainer.init(jnp.zeros(5))._replace(clip_norm=jnp.float32(0.125))
  state, _ = trainer.run(state, data, inputs, 1, 0.0, _KEY)
  found = np.asarray(state.params) * settings.plan.expected_cohort
  assert 0.124 < np.abs(found).max() <= 0.125


@pytest.mark.parametrize(
  'options',
  [
    {'compute_dtype': 'bfloat16'},
    {'augmentation_multiplicity': 3, 'microbatch_size': 2},
    {'method': methods.Dope(), 'microbatch_size': 3},
  ],
)
def test_no_example_moves_a_sum_by_more_than_the_clip(options):
  model, params, examples = _task('mlp')
  clip = 0.5
  settings = small_models.step_settings(clip, **options)
  before = None
  if settings.method.acts_before_clip:
    shift = tuple(jnp.full(w.shape, 0.7) for w in jax.tree.leaves(params))
    before = functools.partial(settings.method.before_clip, public=shift)
  inputs = jax.tree.map(lambda a: a[2], _inputs())
  run = jax.jit(
    lambda *args: gradients.Gradients(model, settings).private_sums(
      params, *args, jax.random.key(0), jnp.float32(clip), before
    )
  )
  largest = 0.0
  for value in (np.nan, np.inf, 3e38, 1e30, 1e10, 1e4, 1.0, 1e-30):
    spoiled = examples._replace(
      inputs=examples.inputs.at[1].set(value * examples.inputs[1])
    )
    without = inputs._replace(present=inputs.present & (inputs.rows != 1))
    (whole, _), (rest, _) = run(spoiled, inputs), run(spoiled, without)
    moved = jax.tree.map(
      lambda a, b: np.asarray(a, 'f8') - np.asarray(b, 'f8'),
      *(whole.total, rest.total),
    )
    norm = np.sqrt(sum(np.square(m).sum() for m in jax.tree.leaves(moved)))
    assert norm <= clip * (1 + 1e-6), value
    _assert_equal(rest.total, run(examples, without)[0].total, 0)
    largest = max(largest, norm)
  assert largest > 0.99 * clip
