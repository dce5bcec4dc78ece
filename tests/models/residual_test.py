"""Sizes of wide residual nets, and the net against formulas of its parts."""

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed.models import jax_layers
from pda_fed.models import residual
import pytest

_SMALL = residual.ResidualSpec(
  image_shape=(8, 8, 3), num_classes=5, depth=10, width=1, norm_groups=4
)


def test_wrn_16_4_has_the_published_layers():
  spec = models.wide_residual_net('wrn-16-4', (32, 32, 3), 10)
  shapes = spec.parameter_shapes
  kernels = [s for s in shapes if len(s) == 4]
  # 13 of 3 x 3 and a shortcut of 1 x 1 in the first block of each stage.
  assert [s[0] for s in kernels].count(3) == 13
  assert [s for s in kernels if s[0] == 1] == [
    (1, 1, 16, 64),
    (1, 1, 64, 128),
    (1, 1, 128, 256),
  ]
  # De et al. 2022 give 2.7 million; without the biases of convolutions these
  # are the 2,748,890 of the net with batch normalization.
  biases = sum(s[-1] for s in kernels)
  assert spec.num_parameters - biases == 2_748_890


def test_the_model_has_the_specs_shapes():
  model = _SMALL.jax_model()
  params = model.initial_params(0)
  assert [p.shape for p in params] == _SMALL.parameter_shapes
  places = [layer.kernel for layer in model.layers]
  assert places == list(range(0, len(params), 2))
  other = model.initial_params(1)
  assert not np.array_equal(params[0], other[0])
  # He: a variance of 2 over the inputs.
  kernel = models.wide_residual_net('wrn-16-4', (32, 32, 3), 10)
  large = kernel.jax_model().initial_params(0)[-6]
  np.testing.assert_allclose(large.std(), np.sqrt(2 / (9 * 256)), rtol=0.01)


def test_a_residual_net_whose_blocks_are_zero_is_its_shortcuts():
  model = _SMALL.jax_model()
  params = [np.array(p) for p in model.initial_params(0)]
  convolutions = [
    layer for layer in model.layers if isinstance(layer, jax_layers.Convolution)
  ]
  # The second convolution of each block; the first layer is no block's.
  second = []
  rest = iter(convolutions[1:])
  for block in _SMALL.blocks:
    if block.has_projection:
      next(rest)
    next(rest)
    second.append(next(rest))
  for layer in second:
    params[layer.kernel][:] = 0
  images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 3)))
  run = jax.jit(model.run)
  before = run(tuple(params), images, jnp.zeros(2, int)).losses
  # What happens before a convolution of zeros has no effect.
  for layer in model.layers:
    if isinstance(layer, jax_layers.Convolution) and layer.size == 3:
      if layer not in second and layer is not convolutions[0]:
        params[layer.kernel] += 1
  after = run(tuple(params), images, jnp.zeros(2, int)).losses
  np.testing.assert_array_equal(before, after)


def test_groups_are_normalized_by_themselves():
  x = np.random.default_rng(0).normal(2.0, 3.0, size=(2, 4, 4, 6))
  found = np.asarray(jax_layers.normalize_groups(jnp.asarray(x), 2))
  groups = found.reshape(2, 16, 2, 3).transpose(0, 2, 1, 3).reshape(4, -1)
  np.testing.assert_allclose(groups.mean(axis=1), 0, atol=1e-6)
  np.testing.assert_allclose(groups.std(axis=1), 1, atol=1e-5)
  # An image does not depend on the others of its batch.
  alone = jax_layers.normalize_groups(jnp.asarray(x[:1]), 2)
  np.testing.assert_allclose(alone[0], found[0], atol=1e-6)
  flat = jax_layers.normalize_groups(jnp.ones((1, 2, 2, 4)), 2)
  np.testing.assert_array_equal(flat, 0)


@pytest.mark.parametrize(
  ('changed', 'message'),
  [
    ({'depth': 15}, r'depth must be 10, 16, 22, .* Found 15'),
    ({'depth': 4}, 'depth must be'),
    ({'width': 0}, 'width must be'),
    ({'norm_groups': 3}, 'norm_groups must divide 16'),
    ({'image_shape': (8, 8)}, 'image_shape must be height, width and channels'),
    ({'num_classes': 0}, 'num_classes must be'),
  ],
)
def test_sizes_that_no_net_has(changed, message):
  sizes = {'image_shape': (8, 8, 3), 'num_classes': 5} | changed
  with pytest.raises(ValueError, match=message):
    residual.ResidualSpec(**sizes)


@pytest.mark.parametrize('name', ['wrn', 'wrn-16', 'resnet18', 'wrn-16-4-2'])
def test_names_of_no_net(name):
  with pytest.raises(ValueError, match='must be wrn-DEPTH-WIDTH'):
    models.wide_residual_net(name, (8, 8, 3), 10)


def test_a_residual_net_has_no_keras_model():
  with pytest.raises(ValueError, match='engine must be jax for ResidualSpec'):
    _SMALL.keras_model(0)
