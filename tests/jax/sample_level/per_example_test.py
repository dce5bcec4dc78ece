"""Gradients of examples against a loop over examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax.sample_level import layer_sums
from pda_fed.jax.sample_level import per_example
from pda_fed.models import convolutional
from pda_fed.models import jax_convolutional
from pda_fed.models import jax_language
from pda_fed.models import language
import pytest

from tests.jax import small_models


@pytest.fixture(autouse=True, scope='module')
def fixture_quick_compilation():
  with small_models.quick_compilation():
    yield


def _gradients(model, params, inputs, targets):
  """Of each example by itself, one after the other."""

  def loss(params, x, y):
    return model.run(params, x[None], y[None]).losses[0]

  gradient = jax.jit(jax.grad(loss))
  return [gradient(params, x, y) for x, y in zip(inputs, targets, strict=True)]


def _norm(gradient):
  return float(np.sqrt(sum(np.square(g, dtype='f8').sum() for g in gradient)))


def _clipped(model, params, inputs, targets, mask, clip_norm):
  return _compiled(model, clip_norm)(params, inputs, targets, mask)


@functools.cache
def _compiled(model, clip_norm):
  return jax.jit(
    lambda *arguments: per_example.clipped_sum(model, *arguments, clip_norm)
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', small_models.NAMES)
def test_clipped_sum_is_that_of_a_loop(name):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  single = _gradients(model, params, inputs, targets)
  norms = [_norm(g) for g in single]
  # Some are clipped and some are not; the last one is padding.
  clip_norm = float(np.median(norms[:4]))
  mask = np.array([1, 1, 1, 1, 0])
  expected = [np.zeros(s) for s in model.shapes]
  for gradient, norm, counts in zip(single, norms, mask, strict=True):
    scale = counts * min(1.0, clip_norm / norm)
    for total, array in zip(expected, gradient, strict=True):
      total += scale * np.asarray(array, np.float64)
  sums, stats = _clipped(model, params, inputs, targets, mask, clip_norm)
  assert len(sums.total) == len(expected)
  for found, array in zip(sums.total, expected, strict=True):
    # Norms are rounded up: of what is clipped a little more is taken off.
    np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-4)
  assert int(sums.num_clients) == 4
  assert int(sums.num_clipped) == 2
  assert int(sums.num_non_finite) == 0
  squares = np.square(norms[:4]).sum()
  np.testing.assert_allclose(stats.squared_norm, squares, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('name', small_models.NAMES)
def test_gradients_are_those_of_a_loop(name):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  single = _gradients(model, params, inputs, targets)
  for i, expected in enumerate(single):
    one = np.arange(len(inputs)) == i
    sums, _ = _clipped(model, params, inputs, targets, one, float('inf'))
    for found, array in zip(sums.total, expected, strict=True):
      np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-5)


def _with_copies(inputs, targets, copies):
  """Varied copies of examples, those of an example together."""
  inputs, targets = (jnp.repeat(a, copies, axis=0) for a in (inputs, targets))
  if not jnp.issubdtype(inputs.dtype, jnp.integer):
    noise = np.random.default_rng(3).normal(size=inputs.shape)
    return inputs + jnp.asarray(noise, inputs.dtype), targets
  # Other tokens for every second copy.
  return inputs.at[1::2].set((inputs[1::2] + 1) % 6), targets


def _mean_gradients(model, params, inputs, targets, copies):
  """Of each example: the mean over its copies, one copy after the other."""
  single = _gradients(model, params, inputs, targets)
  groups = [single[i : i + copies] for i in range(0, len(single), copies)]
  return [
    [
      np.mean([np.asarray(a, 'f8') for a in arrays], axis=0)
      for arrays in zip(*g, strict=True)
    ]
    for g in groups
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['narrow', 'wide_deep', 'residual', 'mlp', 'small_text', 'text']
)
def test_copies_of_an_example_are_averaged_before_the_clip(name):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  inputs, targets = _with_copies(inputs, targets, 3)
  single = _mean_gradients(model, params, inputs, targets, 3)
  norms = [_norm(g) for g in single]
  clip_norm = float(np.median(norms[:4]))
  mask = np.array([1, 1, 1, 1, 0])
  sums, stats = jax.jit(
    lambda *arguments: per_example.clipped_sum(
      model, *arguments, mask, clip_norm, copies=3
    )
  )(params, inputs, targets)
  scales = mask * np.minimum(1, clip_norm / np.array(norms))
  for place, found in enumerate(sums.total):
    expected = sum(s * g[place] for s, g in zip(scales, single, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  assert (int(sums.num_clients), int(sums.num_clipped)) == (4, 2)
  squares = np.square(norms[:4]).sum()
  np.testing.assert_allclose(stats.squared_norm, squares, rtol=1e-4)
  losses = model.run(params, inputs, targets).token_losses[:12]
  np.testing.assert_allclose(stats.loss, losses.sum() / 3, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', small_models.NAMES)
def test_formed_gradients_are_those_of_a_loop(name):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  inputs, targets = _with_copies(inputs, targets, 2)
  single = _mean_gradients(model, params, inputs, targets, 2)
  gradients, _ = jax.jit(
    lambda *arguments: per_example.example_gradients(
      model, *arguments, copies=2
    )
  )(params, inputs, targets)
  for place, found in enumerate(gradients):
    expected = np.stack([gradient[place] for gradient in single])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
@pytest.mark.parametrize('name', ['stacked', 'wide_deep'])
def test_a_copy_that_is_not_finite_drops_its_example(
  name, backend, monkeypatch
):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  inputs, targets = _with_copies(inputs, targets, 2)
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  clip = jax.jit(
    lambda inputs, mask: per_example.clipped_sum(
      model, params, inputs, targets, mask, 1.0, copies=2
    )[0]
  )
  sums = clip(inputs.at[3, 1, 1, 0].set(jnp.nan), np.ones(5))
  assert int(sums.num_non_finite) == 1
  expected = clip(inputs, np.array([1, 0, 1, 1, 1])).total
  for found, array in zip(sums.total, expected, strict=True):
    np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)


@pytest.fixture(name='as_on_a_gpu')
def fixture_as_on_a_gpu(monkeypatch):
  """A compiled sum, by the program that a GPU would run."""

  def create(model, params, targets, clip_norm, dtype):
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    return jax.jit(
      lambda images, mask: per_example.clipped_sum(
        model,
        params,
        images,
        targets,
        mask,
        clip_norm,
        compute_dtype=jnp.dtype(dtype),
      )[0]
    )

  return create


@pytest.mark.slow
@pytest.mark.parametrize(
  ('dtype', 'tolerance'), [('float32', 1e-6), ('bfloat16', 2e-4)]
)
@pytest.mark.parametrize('name', small_models.IMAGES)
def test_clipped_sum_of_images_as_on_a_gpu(name, dtype, tolerance, as_on_a_gpu):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  rest = np.array([1, 0, 1, 0, 1])
  # The CPU's are compared with a loop above.
  expected, _ = _clipped(model, params, inputs, targets, rest, 1e-2)
  compiled = as_on_a_gpu(model, params, targets, 1e-2, dtype)
  # What is not finite is dropped, wherever in the image it is.
  spoiled = inputs.at[1, 5, 5, 1].set(jnp.inf).at[3].set(jnp.nan)
  sums = compiled(spoiled, np.ones(5))
  assert int(sums.num_non_finite) == 2
  for found, array in zip(sums.total, expected.total, strict=True):
    np.testing.assert_allclose(found, array, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize('value', [np.nan, -np.inf, 3.4e38, 3.39e38, 1e30])
@pytest.mark.parametrize(
  'name', ['wide', 'wide_deep', 'fanning_out', 'strided_deep', 'stacked']
)
def test_no_image_moves_a_gpus_sum_by_more_than_the_clip(
  name, value, as_on_a_gpu
):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  compiled = as_on_a_gpu(model, params, targets, 1e-2, 'bfloat16')
  spoiled = inputs.at[1, 2, 3, 1].set(value)
  # 3.4e38 is finite, but not in bfloat16.
  with_it = compiled(spoiled, np.ones(5)).total
  without = compiled(spoiled, np.array([1, 0, 1, 1, 1])).total
  difference = [a - b for a, b in zip(with_it, without, strict=True)]
  assert _norm(difference) <= 1e-2 * (1 + 1e-4)
  # Padding has no part at all.
  clean = compiled(inputs, np.array([1, 0, 1, 1, 1])).total
  for found, array in zip(without, clean, strict=True):
    np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)


@pytest.mark.parametrize('name', ['wide_deep', 'stacked', 'strided_deep'])
def test_formed_gradients_of_what_is_not_finite_as_on_a_gpu(name, monkeypatch):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  clip = jax.jit(
    lambda images, mask: per_example.clipped_sum_of_changed(
      model, params, images, targets, mask, 1e-2
    )[0]
  )
  spoiled = inputs.at[1, 2, 3, 1].set(jnp.inf).at[3].set(jnp.nan)
  sums = clip(spoiled, np.ones(5))
  assert int(sums.num_non_finite) == 2
  expected = clip(inputs, np.array([1, 0, 1, 0, 1])).total
  for found, array in zip(sums.total, expected, strict=True):
    np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_no_image_moves_the_sum_of_a_residual_net_by_more_than_the_clip(
  as_on_a_gpu,
):
  model, inputs, targets = small_models.create('residual')
  params = small_models.params_of(model)
  compiled = as_on_a_gpu(model, params, targets, 1e-2, 'bfloat16')
  without = compiled(inputs, np.array([1, 0, 1, 1, 1])).total
  for value in (np.nan, np.inf, 3.4e38, 1e30, 5.0):
    with_it = compiled(inputs.at[1, 2, 3, 1].set(value), np.ones(5)).total
    difference = [a - b for a, b in zip(with_it, without, strict=True)]
    assert _norm(difference) <= 1e-2 * (1 + 1e-4), value


@pytest.mark.parametrize('size', [1e3, 1e4, 1e5, 1e6])
def test_ghost_norms_that_cancel_are_not_too_small(size):
  # Inputs that hardly differ between positions, and deltas whose sum is 0: the
  # gradient is a tiny part of what is added up.
  rng = np.random.default_rng(0)
  x = 1 + 1e-3 * rng.normal(size=(20, 64, 300))
  delta = rng.normal(size=(20, 64, 40))
  delta -= delta.mean(axis=1, keepdims=True)
  scale = np.linalg.norm(x, axis=(1, 2)) * np.linalg.norm(delta, axis=(1, 2))
  delta *= size / scale[:, None, None]
  x, delta = x.astype(np.float32), delta.astype(np.float32)
  kernels = np.einsum('bpi,bpo->bio', x.astype('f8'), delta.astype('f8'))
  biases = delta.sum(axis=1, dtype='f8')
  true = np.square(kernels).sum(axis=(1, 2)) + np.square(biases).sum(axis=1)
  sums = layer_sums.ghost_sums(jnp.asarray(x), jnp.asarray(delta))
  # A norm below the clip, 1, must not be found for one above it.
  assert (np.asarray(sums.squared_norms) >= np.minimum(true, 1)).all()


def test_an_image_made_for_roundings_to_one_side_is_clipped():
  # Two patches that hardly differ, and deltas that nearly cancel: all roundings
  # of 1,152 products go down, and a squared norm was found to be -160.
  spec = convolutional.ConvolutionalSpec(
    image_shape=(2, 4, 288),
    convolutions=(
      convolutional.Convolution(filters=64, size=2, stride=2, padding='VALID'),
    ),
    dense_sizes=(),
    num_classes=2,
    activation='relu',
  )
  model = jax_convolutional.ConvolutionalModel(spec)
  params = [np.zeros(shape, np.float32) for shape in model.shapes]
  params[1][:] = 1e-6
  params[2][0] = 20, -20
  params[2][64] = -20 * 0.998, 20 * 0.998
  params[3][:] = -7, 7
  clip = jax.jit(
    lambda x: per_example.clipped_sum(
      model, tuple(params), x, np.zeros(1, np.int32), np.ones(1), 1.0
    )
  )
  largest = 0.0
  for first in np.random.default_rng(0).uniform(1, 2, 40).astype(np.float32):
    for apart in (7, 15, 20, 25, 31):
      image = np.full((1, 2, 4, 288), first)
      image[:, :, 2:] += apart * np.spacing(first)
      sums, _ = clip(image)
      largest = max(largest, _norm(sums.total))
  assert 0 < largest <= 1 + 1e-4


def test_ghost_norms_are_hardly_rounded_up():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(4, 35, 30)).astype(np.float32)
  delta = rng.normal(size=(4, 35, 40)).astype(np.float32)
  kernels = np.einsum('bpi,bpo->bio', x, delta, dtype='f8')
  biases = delta.sum(axis=1, dtype='f8')
  true = np.square(kernels).sum(axis=(1, 2)) + np.square(biases).sum(axis=1)
  sums = layer_sums.ghost_sums(jnp.asarray(x), jnp.asarray(delta))
  np.testing.assert_allclose(sums.squared_norms, true, rtol=1e-3)


@pytest.mark.parametrize(
  ('name', 'dtype', 'copies'),
  [
    ('wide', 'bfloat16', 1),
    ('narrow', 'bfloat16', 1),
    ('narrow', 'bfloat16', 3),
    ('text', 'float32', 1),
    ('text', 'bfloat16', 1),
    ('text', 'bfloat16', 3),
  ],
)
def test_no_example_moves_the_sum_by_more_than_the_clip(name, dtype, copies):
  model, inputs, targets = small_models.create(name)
  params = small_models.params_of(model)
  count = len(inputs)
  inputs, targets = _with_copies(inputs, targets, copies)
  clip_norm = 1e-3
  clip = jax.jit(
    lambda mask: per_example.clipped_sum(
      model,
      params,
      inputs,
      targets,
      mask,
      clip_norm,
      compute_dtype=jnp.dtype(dtype),
      copies=copies,
    )
  )
  for i in range(count):
    sums, _ = clip(np.arange(count) == i)
    # In bfloat16 too: what is clipped is what is summed.
    np.testing.assert_allclose(_norm(sums.total), clip_norm, rtol=1e-4)


@pytest.mark.slow
def test_deltas_that_cancel_before_they_are_rounded():
  # An LSTM whose state is 1, and words as frequent as the model expects: the
  # deltas of 35 positions cancel, and only their rounding to bfloat16 is left.
  steps, units = 35, 256
  model = jax_language.LanguageModel(
    language.LanguageSpec(
      vocabulary_size=300,
      embedding_size=8,
      lstm_size=units,
      num_layers=1,
      loss_per_sequence='sum',
    )
  )
  params = [np.zeros(shape, np.float32) for shape in model.shapes]
  params[3] = np.repeat(np.float32([30, -30, 30, 30]), units)
  params[-1][:] = -60
  params[-1][:2] = np.log([12 / steps, 1 - 12 / steps])
  inputs = np.zeros((1, steps), np.int32)
  targets = np.int32(np.arange(steps) >= 12)[None]
  clip_norm = 0.1
  # Compiled as users' programs are: XLA leaves out casts in these alone.
  with small_models.quick_compilation(False):
    sums, _ = jax.jit(
      lambda *arguments: per_example.clipped_sum(
        model, *arguments, clip_norm, compute_dtype=jnp.bfloat16
      )
    )(tuple(params), inputs, targets, np.ones(1, bool))
  assert int(sums.num_clipped) == 1
  assert 0.1 * clip_norm < _norm(sums.total) <= clip_norm


def test_deltas_too_small_to_be_squared():
  # A gradient of 1e-19 times 2e18: the Gram matrix of deltas is 0.
  x = np.full((1, 1, 64), 2e18, np.float32)
  delta = np.full((1, 1, 32), 1e-20, np.float32)
  delta[0, 0, 0] = 1e-19
  sums = layer_sums.ghost_sums(jnp.asarray(x), jnp.asarray(delta))
  true = np.linalg.norm(x.astype('f8')) * np.linalg.norm(delta.astype('f8'))
  assert true > 1
  assert float(sums.squared_norms[0]) >= true**2


def test_products_of_bfloat16_deltas_are_as_good_as_those_of_float32():
  rng = np.random.default_rng(0)
  weighted = rng.normal(size=(6, 50, 9)).astype(np.float32)
  delta = jnp.asarray(rng.normal(size=(6, 50, 40)), jnp.bfloat16)
  found = jax.jit(layer_sums.weighted_product)(weighted, delta)
  expected = np.einsum(
    'bpi,bpo->io', weighted.astype(np.float64), np.asarray(delta, np.float64)
  )
  # Weights rounded to bfloat16 once would be off by 2e-2.
  np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)


def test_an_example_that_is_not_finite_becomes_zeros():
  model, inputs, targets = small_models.create('pooled')
  params = small_models.params_of(model)
  spoiled = inputs.at[1].set(jnp.nan).at[2].set(3e38)
  sums, _ = _clipped(model, params, spoiled, targets, np.ones(5), 1.0)
  assert int(sums.num_non_finite) == 2
  rest = np.array([1, 0, 0, 1, 1])
  expected, _ = _clipped(model, params, inputs, targets, rest, 1.0)
  for found, array in zip(sums.total, expected.total, strict=True):
    np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)


def test_padding_may_hold_anything():
  model, inputs, targets = small_models.create('wide')
  params = small_models.params_of(model)
  mask = np.array([1, 0, 1, 1, 1])
  sums, stats = _clipped(model, params, inputs, targets, mask, 1.0)
  spoiled = inputs.at[1].set(jnp.inf)
  again, stats_again = _clipped(model, params, spoiled, targets, mask, 1.0)
  for found, array in zip(again.total, sums.total, strict=True):
    np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)
  np.testing.assert_allclose(stats.loss, stats_again.loss, rtol=1e-6)
  # A weight is a presence: no example counts twice.
  double, _ = _clipped(model, params, inputs, targets, 2 * mask, 1.0)
  for found, array in zip(double.total, sums.total, strict=True):
    np.testing.assert_array_equal(found, array)


def test_ghost_norms_where_they_are_cheaper():
  # CIFAR-10's last convolution and WikiText-2's logits; its first convolution.
  assert layer_sums.is_ghost_cheaper(64, 1152, 128)
  assert layer_sums.is_ghost_cheaper(35, 120, 8000)
  assert not layer_sums.is_ghost_cheaper(1024, 27, 32)


@pytest.mark.parametrize('shape', [(1, 96, 2680), (1, 300, 300)])
def test_small_gradients_beside_large_ones_count(shape):
  # Summed over both axes at once the small squares were lost beside 1.
  kernels = np.full(shape, 2**-12.05, np.float32)
  kernels[:, ::32, ::32] = 1
  find = jax.jit(lambda k: layer_sums.direct_sums(k, jnp.zeros((1, 1, 4)))[0])
  exact = np.square(kernels, dtype=np.float64).sum()
  # Of squares: a norm is off by half of it.
  np.testing.assert_allclose(find(kernels), exact, rtol=1e-5)
