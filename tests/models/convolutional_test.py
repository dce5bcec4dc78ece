"""Sizes of the paper's models, and layers against JAX's own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax.sample_level import per_example
from pda_fed.models import convolutional
from pda_fed.models import jax_convolutional
from pda_fed.models import jax_language
from pda_fed.models import jax_layers
from pda_fed.models import jax_model
from pda_fed.models import language
import pytest


def test_cifar10_is_the_papers():
  shapes = convolutional.CIFAR10.parameter_shapes
  counts = [int(np.prod(s)) for s in shapes]
  per_layer = [k + b for k, b in zip(counts[::2], counts[1::2], strict=True)]
  assert per_layer == [896, 9248, 18496, 36928, 73856, 147584, 262272, 1290]
  assert convolutional.CIFAR10.num_parameters == 550_570


def test_emnist_is_the_papers():
  counts = [int(np.prod(s)) for s in convolutional.EMNIST.parameter_shapes]
  # 8 x 8 x 16; 4 x 4 x 16 x 32; 4 x 4 pixels of 32 to 32; 32 to 47.
  assert counts == [1024, 16, 8192, 32, 16384, 32, 1504, 47]


def test_wikitext_is_the_papers():
  spec = language.LanguageSpec()
  counts = [int(np.prod(s)) for s in spec.parameter_shapes]
  lstm = [57_600, 57_600, 480]
  assert counts == [960_000, *lstm, *lstm, 960_000, 8000]
  assert spec.num_parameters == 2_159_360


_LINEAR = convolutional.linear((7,), 3)
_MLP = dataclasses.replace(_LINEAR, dense_sizes=(5, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
  'spec', [convolutional.EMNIST, convolutional.DIGITS, _LINEAR, _MLP]
)
def test_the_model_has_the_specs_shapes(spec):
  model = jax_convolutional.ConvolutionalModel(spec)
  params = model.initial_params(0)
  assert [p.shape for p in params] == spec.parameter_shapes
  images = jnp.ones((2, *spec.image_shape))
  trace = model.run(tuple(map(jnp.asarray, params)), images, jnp.zeros(2, int))
  assert trace.losses.shape == (2,)
  assert trace.outputs[-1].shape == (2, spec.num_classes)
  again = model.initial_params(0)
  assert all(np.array_equal(a, b) for a, b in zip(params, again, strict=True))


def test_activation_is_a_value():
  images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 1)))
  losses = []
  for activation in ('tanh', 'relu'):
    spec = convolutional.ConvolutionalSpec(
      image_shape=(8, 8, 1),
      convolutions=convolutional.DIGITS.convolutions,
      dense_sizes=(4,),
      num_classes=3,
      activation=activation,
    )
    model = jax_convolutional.ConvolutionalModel(spec)
    params = tuple(map(jnp.asarray, model.initial_params(0)))
    losses.append(model.run(params, images, jnp.zeros(2, int)).losses)
  assert not np.allclose(*losses)


def test_images_that_are_too_small_are_refused():
  with pytest.raises(ValueError, match='at least one pixel'):
    convolutional.ConvolutionalSpec(
      image_shape=(2, 2, 1),
      convolutions=(
        convolutional.Convolution(filters=1, size=3, padding='VALID'),
      ),
      dense_sizes=(),
      num_classes=2,
    )


def test_sizes_without_convolutions():
  assert _LINEAR.num_parameters == 7 * 3 + 3
  assert _MLP.parameter_shapes[::2] == [(7, 5), (5, 4), (4, 3)]
  of_images = convolutional.linear((8, 8, 2), 3)
  assert of_images.parameter_shapes == [(128, 3), (3,)]


@pytest.mark.parametrize('shape', [(), (8, 8), (1, 2, 3, 4)])
def test_shapes_of_neither_images_nor_tables(shape):
  with pytest.raises(ValueError, match='image_shape must be height.*Found'):
    convolutional.linear(shape, 3)
  layers = convolutional.DIGITS.convolutions
  with pytest.raises(ValueError, match=r'without convolutions.*Found \(7,\)'):
    dataclasses.replace(_LINEAR, convolutions=layers)


@pytest.mark.slow
@pytest.mark.parametrize('padding', ['SAME', 'VALID'])
@pytest.mark.parametrize(('size', 'stride'), [(3, 1), (8, 2), (4, 2), (1, 1)])
@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
def test_patches_times_kernel_are_the_convolution(
  size, stride, padding, backend, monkeypatch
):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(2, 11, 10, 3)), jnp.float32)
  kernel = jnp.asarray(rng.normal(size=(size, size, 3, 5)), jnp.float32)
  layer = jax_layers.Convolution(0, size, stride, padding)
  expected = jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    padding,
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  found = jax_layers.patches(layer, x) @ kernel.reshape(-1, 5)
  np.testing.assert_allclose(
    found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4
  )


@pytest.mark.slow
def test_convolutions_and_products_are_the_same_model(monkeypatch):
  spec = convolutional.EMNIST
  model = jax_convolutional.ConvolutionalModel(spec)
  params = tuple(map(jnp.asarray, model.initial_params(0)))
  rng = np.random.default_rng(0)
  images = jnp.asarray(rng.normal(size=(3, *spec.image_shape)), jnp.float32)
  found = []
  for backend in ('cpu', 'gpu'):
    monkeypatch.setattr(jax, 'default_backend', lambda b=backend: b)
    sums, stats = jax.jit(
      lambda p: per_example.clipped_sum(
        model, p, images, jnp.arange(3), jnp.ones(3), 1.0
      )
    )(params)
    found.append((*sums.total, stats.loss))
  for a, b in zip(*found, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ('channels', 'backend', 'axes'),
  [(1, 'gpu', 3), (7, 'gpu', 3), (8, 'gpu', 4), (8, 'cpu', 3)],
)
def test_a_gpu_convolves_images_of_many_channels(
  channels, backend, axes, monkeypatch
):
  # What went in is images, or patches: tests of what a GPU runs rely on it.
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  params = (jnp.zeros((3, 3, channels, 2)), jnp.zeros(2))
  recorder = jax_layers.Recorder(params, None)
  layer = jax_layers.Convolution(0, 3, 1, 'SAME')
  recorder.convolution(layer, jnp.zeros((4, 6, 6, channels)))
  assert recorder.inputs[0].ndim == axes


@pytest.mark.parametrize(('size', 'stride'), [(2, 2), (2, 1), (3, 2)])
def test_max_pool(size, stride):
  x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 8, 3)))
  window, strides = (1, size, size, 1), (1, stride, stride, 1)
  expected = jax.lax.reduce_window(
    x, -jnp.inf, jax.lax.max, window, strides, 'VALID'
  )
  found = jax_layers.max_pool(x, size, stride)
  np.testing.assert_array_equal(found, expected)


def test_cross_entropy_by_hand():
  logits = jnp.log(jnp.array([[0.2, 0.3, 0.5]]))
  found = jax_layers.cross_entropy(logits, jnp.array([1]))
  np.testing.assert_allclose(found, [-np.log(0.3)], rtol=1e-6)
  assert jax_layers.is_hit(logits, jnp.array([2])) == 1


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'factor'), [('sum', 5), ('mean', 1)])
def test_loss_of_a_sequence(kind, factor):
  spec = language.LanguageSpec(
    vocabulary_size=7, embedding_size=3, lstm_size=4, loss_per_sequence=kind
  )
  model = jax_language.LanguageModel(spec)
  params = tuple(map(jnp.asarray, model.initial_params(0)))
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, 6)))
  trace = model.run(params, tokens[:, :-1], tokens[:, 1:])
  np.testing.assert_allclose(
    trace.losses, factor * trace.token_losses, rtol=1e-6
  )
  # Words are looked at from the left alone.
  other = tokens.at[:, 4].set((tokens[:, 4] + 1) % 7)
  later = model.run(params, other[:, :-1], tokens[:, 1:])
  np.testing.assert_allclose(
    trace.outputs[-1][:, :4], later.outputs[-1][:, :4], atol=1e-6
  )
  assert not np.allclose(trace.outputs[-1][:, 4], later.outputs[-1][:, 4])


def test_dropout_drops_its_share_and_keeps_the_mean():
  key = jax.random.key(0)
  dropped = jax_layers.drop(jnp.ones(10_000), 0.3, key, place=0)
  assert abs(float((dropped == 0).mean()) - 0.3) < 0.02
  assert abs(float(dropped.mean()) - 1) < 0.02
  assert jax_layers.drop(jnp.ones(3), 0.3, None, 0).sum() == 3


@pytest.mark.parametrize(
  'size, filters',
  [
    (2, [32]),
    (8, [32]),
    (16, [32, 64]),
    (28, [32, 64]),
    (64, [32, 64, 128, 128]),
  ],
)
def test_a_model_for_images_of_any_size(size, filters):
  # The shorter side counts.
  for shape in ((size, 3 * size, 2), (3 * size, size, 2)):
    spec = convolutional.for_images(shape, 5)
    # Two of each block.
    assert [c.filters for c in spec.convolutions[::2]] == filters
  assert spec.parameter_shapes[-1] == (5,)
  assert convolutional.for_images((32, 32, 3), 10) == convolutional.CIFAR10


@pytest.mark.parametrize('shape', [(1, 9, 3), (8, 8), (0, 4, 1), ()])
def test_shapes_that_are_no_images(shape):
  with pytest.raises(ValueError, match='image_shape must be height'):
    convolutional.for_images(shape, 10)


def test_a_padded_row_may_be_what_a_model_cannot_take():
  class Direction(jax_model.Model):
    shapes = [(2,)]

    def initial_params(self, seed):
      return [np.ones(2, np.float32)]

    def losses(self, params, x, y):
      losses = (x / jnp.linalg.norm(x, axis=1)[:, None]) @ params[0] - y
      return losses**2, jnp.ones_like(losses)

  model = Direction()
  params = model.check_params(model.initial_params(0))
  x, y = np.float32([[3.0, 4.0], [0.0, 0.0]]), np.float32([0.5, 0.0])
  _, padded = model.gradients(params, (x, y), np.float32([1, 0]))
  _, alone = model.gradients(params, (x[:1], y[:1]), np.float32([1]))
  np.testing.assert_allclose(padded[0], alone[0])
  _, nothing = model.gradients(params, (0 * x, y), np.float32([0, 0]))
  assert nothing[0].tolist() == [0, 0]
