"""Steps over examples: limit cases, noise, microbatches, side by side."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
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
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


@functools.cache
def _gradient(model):
  def loss(params, *examples):
    return model.run(params, *examples).losses.mean()

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
  accumulator = [np.zeros(p.shape) for p in params]
  for t in range(_ROUNDS):
    rows = inputs.rows[t][inputs.present[t]]
    gradient = _mean_gradient(task, params, rows)
    # The sum over the batch by the expected batch of 4.
    gradient = [g * len(rows) / 4 for g in gradient]
    accumulator = [
      momentum * a + g for a, g in zip(accumulator, gradient, strict=True)
    ]
    params = tuple(
      p - 0.5 * a for p, a in zip(params, accumulator, strict=True)
    )
  _assert_equal(state.params, params, 1e-4)
  assert metrics['clients'].tolist() == [4, 2, 5]


@pytest.mark.slow
def test_alpha_of_1_is_dp_sgd_bit_for_bit_and_of_0_is_public_sgd(task):
  settings = small_models.step_settings(0.1, mean_clip_norm=0.1)
  plain, _ = _run(task, settings, _inputs(), noise=1.0)
  mixed, _ = _run(task, settings, _inputs(alpha=1.0), noise=1.0)
  for a, b in zip(plain.params, mixed.params, strict=True):
    np.testing.assert_array_equal(a, b)
  public, _ = _run(task, settings, _inputs(alpha=0.0), noise=1.0)
  params = task[1]
  for rows in _inputs(alpha=0.0).public_rows:
    gradient = _mean_gradient(task, params, rows)
    params = tuple(p - 0.5 * g for p, g in zip(params, gradient, strict=True))
  _assert_equal(public.params, params)


def test_noise_first_then_mix(images):
  # Without noise or with it, the public part is the same; the private one is
  # alpha times the noise of DP-SGD.
  settings = small_models.step_settings(0.1)

  def step(alpha, noise):
    inputs = _inputs(alpha=alpha)
    return _run(images, settings, inputs, noise, num_rounds=1)[0].params

  alone = [b - a for a, b in zip(step(1.0, 0.0), step(1.0, 2.0), strict=True)]
  mixed = [b - a for a, b in zip(step(0.25, 0.0), step(0.25, 2.0), strict=True)]
  _assert_equal(mixed, [0.25 * n for n in alone])


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
    np.concatenate([np.ravel(a - b) for a, b in zip(x, y, strict=True)])
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
  assert not np.allclose(other.params[0], weights[-1][0])


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
  assert np.allclose(plain.params[0], whole.params[0]) != varied


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
    found.append(np.asarray(state.params[0]))
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
    _assert_equal([p[i] for p in together.params], alone.params)


def test_averages_are_of_weights(images):
  settings = dataclasses.replace(_PLAIN, averaging=0.5)
  state, _ = _run(images, settings, _inputs(), num_rounds=1)
  # At t = 0 the average keeps a tenth of the first weights.
  expected = [
    0.1 * a + 0.9 * b for a, b in zip(images[1], state.params, strict=True)
  ]
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
  trace = model.run(params, *examples)
  expected = float(trace.token_losses.mean())
  for size in (2, 5, 100):
    found = trainer.evaluate(params, examples, batch_size=size)
    np.testing.assert_allclose(found['loss'], expected, rtol=1e-5)
    np.testing.assert_allclose(
      found['accuracy'], float(trace.hits.sum()) / examples.targets.size
    )


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


@pytest.mark.slow
def test_an_image_is_varied_by_its_place_alone():
  images = jax.random.normal(jax.random.key(1), (6, 8, 8, 1))
  whole = augmentation.flip_and_crop(images, jax.random.key(0))
  alone = [
    augmentation.flip_and_crop(images[i : i + 2], jax.random.key(0), i)
    for i in (0, 2, 4)
  ]
  np.testing.assert_array_equal(whole, jnp.concatenate(alone))


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
    _trainer(images[0], _PLAIN).init(images[1][:-1])
