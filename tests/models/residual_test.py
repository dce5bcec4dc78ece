"""Sizes of wide residual nets, and the net against formulas of its parts."""

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed.models import batches
from pda_fed.models import residual
import pytest

_SMALL = residual.ResidualSpec(
  image_shape=(8, 8, 3), num_classes=5, depth=10, width=1, norm_groups=4
)


def test_wrn_16_4_has_the_published_layers():
  spec = models.wide_residual_net('wrn-16-4', (32, 32, 3), 10)
  shapes = batches.named_shapes(spec.jax_model())
  kernels = [s for s in shapes.values() if len(s) == 4]
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


def test_initial_weights():
  model = _SMALL.jax_model()
  params, other = model.init(0), model.init(1)
  assert not np.array_equal(params['conv']['kernel'], other['conv']['kernel'])
  # He: a variance of 2 over the inputs.
  kernel = params['block_03_conv_2']['kernel']
  np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 64)), rtol=0.02)
  assert (params['norm']['scale'] == 1).all()


def test_a_residual_net_whose_blocks_are_zero_is_its_shortcuts():
  model = _SMALL.jax_model()
  params = model.init(0)
  image = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8, 3)))
  blocks = [f'block_{i + 1:02d}' for i in range(len(_SMALL.blocks))]
  for block in blocks:
    second = params[f'{block}_conv_2']
    params[f'{block}_conv_2'] = jax.tree.map(jnp.zeros_like, second)
  before = model.logits(params, image)
  # What happens before a convolution of zeros has no effect.
  for block in blocks:
    first = params[f'{block}_conv_1']
    params[f'{block}_conv_1'] = jax.tree.map(lambda w: w + 1, first)
  np.testing.assert_array_equal(before, model.logits(params, image))
  params['conv'] = jax.tree.map(lambda w: 2 * w + 1, params['conv'])
  assert not np.allclose(before, model.logits(params, image))


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
