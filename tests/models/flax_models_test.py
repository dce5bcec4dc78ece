"""Modules of Flax as models, and the paper's models among them."""

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed.models import batches
from pda_fed.models import convolutional
from pda_fed.models import convolve
from pda_fed.models import language
from pda_fed.models import losses
import pytest


class _Linen(nn.Module):
  norm: bool = False
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Dense(5, name='hidden')(x.reshape(len(x), -1)))
    if self.norm:
      x = nn.BatchNorm(use_running_average=False)(x)
    drop = nn.Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    return nn.Dense(3, name='logits')(drop(x))


class _Nnx(nnx.Module):
  def __init__(self, rngs, norm=False):
    self.hidden = nnx.Linear(8, 5, rngs=rngs)
    self.norm = nnx.BatchNorm(5, rngs=rngs) if norm else None
    self.drop = nnx.Dropout(0.5, rngs=rngs)
    self.logits = nnx.Linear(5, 3, rngs=rngs)

  def __call__(self, x):
    x = nnx.relu(self.hidden(x.reshape(len(x), -1)))
    return self.logits(self.drop(x))


@pytest.mark.parametrize('module', [_Linen(), _Nnx], ids=['linen', 'nnx'])
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_a_module_of_flax(module, dtype):
  model = models.from_flax(module, jnp.zeros((2, 4)))
  params = batches.cast(model.init(1), dtype)
  assert batches.named_shapes(model) == {
    'hidden/bias': (5,),
    'hidden/kernel': (8, 5),
    'logits/bias': (3,),
    'logits/kernel': (5, 3),
  }
  x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)
  hidden, logits = params['hidden'], params['logits']
  inside = jax.nn.relu(x.reshape(-1).astype(dtype) @ hidden['kernel'])
  expected = (inside + 0 * hidden['bias']) @ logits['kernel']
  found = model.logits(params, x)
  assert found.dtype == dtype
  np.testing.assert_allclose(
    np.float32(found), np.float32(expected), atol=1e-5 if dtype == 'f4' else 0.1
  )
  value, sums = model.loss(params, x, 2)
  assert float(value) == pytest.approx(
    float(losses.cross_entropy(found, jnp.array(2)))
  )
  assert sums['accuracy'][0] == (found.argmax() == 2)
  other = model.init(2)['hidden']['kernel']
  assert not np.allclose(other, model.init(1)['hidden']['kernel'])


@pytest.mark.parametrize(
  'module',
  [_Linen(norm=True), lambda rngs: _Nnx(rngs, norm=True)],
  ids=['linen', 'nnx'],
)
def test_averages_of_a_batch_are_refused(module):
  with pytest.raises(ValueError, match=r"Found \['(batch_stats|Batch)"):
    models.from_flax(module, jnp.zeros((2, 4)))


def test_dropout_drops_with_a_key_alone():
  model = models.from_flax(_Linen(), jnp.zeros((2, 4)))
  params, x = model.init(0), jnp.ones((2, 4))

  def loss(**options):
    return float(model.loss(params, x, 0, **options)[0])

  assert loss() == loss(key=jax.random.key(1))
  found = {loss(key=jax.random.key(i), dropout=0.5) for i in range(8)}
  assert len(found) > 2
  with pytest.raises(ValueError, match='dropout must be 0 for Dense'):
    other = models.from_flax(nn.Dense(3), jnp.zeros(8))
    other.loss(other.init(0), jnp.ones(8), 0, key=None, dropout=0.5)


def _counts(spec):
  shapes = batches.named_shapes(spec.jax_model())
  return {name: int(np.prod(shape)) for name, shape in shapes.items()}


def test_cifar10_is_the_papers():
  counts = _counts(convolutional.CIFAR10)
  layers = [*(f'conv_{i}' for i in range(1, 7)), 'dense_1', 'logits']
  per_layer = [counts[f'{n}/kernel'] + counts[f'{n}/bias'] for n in layers]
  assert per_layer == [896, 9248, 18496, 36928, 73856, 147584, 262272, 1290]
  assert convolutional.CIFAR10.num_parameters == 550_570


def test_emnist_is_the_papers():
  # 8 x 8 x 16; 4 x 4 x 16 x 32; 4 x 4 pixels of 32 to 32; 32 to 47.
  kernels = [n for s, n in _counts(convolutional.EMNIST).items() if 'k' in s]
  assert kernels == [1024, 8192, 16384, 1504]
  assert convolutional.EMNIST.num_parameters == 27_231


def test_the_papers_language_models():
  counts = _counts(language.LanguageSpec())
  assert counts['embedding/embedding'] == counts['logits/kernel'] == 960_000
  assert counts['lstm_2/kernel'] == counts['lstm_1/recurrent_kernel'] == 57_600
  assert language.LanguageSpec().num_parameters == 2_159_360
  assert models.RecurrentSpec().num_parameters == 4_050_748


def test_activation_is_a_value():
  image = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8, 1)))
  found = []
  for activation in ('tanh', 'relu'):
    spec = convolutional.ConvolutionalSpec(
      image_shape=(8, 8, 1),
      convolutions=convolutional.DIGITS.convolutions,
      dense_sizes=(4,),
      num_classes=3,
      activation=activation,
    )
    model = spec.jax_model()
    found.append(model.logits(model.init(0), image))
  assert not np.allclose(*found)


@pytest.mark.parametrize('backend', ['cpu', 'gpu'])
@pytest.mark.parametrize('padding', ['SAME', 'VALID', ((1, 2), (0, 1))])
@pytest.mark.parametrize(('size', 'stride'), [(3, 1), (8, 2), (1, 1)])
def test_convolve(size, stride, padding, backend, monkeypatch):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(2, 11, 10, 3)), jnp.float32)
  kernel = jnp.asarray(rng.normal(size=(size, size, 3, 5)), jnp.float32)
  arguments = x, kernel, (stride, stride), padding
  options = {'dimension_numbers': ('NHWC', 'HWIO', 'NHWC')}
  expected = jax.lax.conv_general_dilated(*arguments, **options)
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  program = str(
    jax.make_jaxpr(lambda x: convolve.convolve(x, *arguments[1:], **options))(x)
  )
  assert ('conv_general_dilated' in program) == (backend == 'gpu')
  found = convolve.convolve(*arguments, **options)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('size', 'stride'), [(2, 2), (2, 1), (3, 2)])
def test_max_pool(size, stride):
  x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 8, 3)))
  window, strides = (1, size, size, 1), (1, stride, stride, 1)
  expected = jax.lax.reduce_window(
    x, -jnp.inf, jax.lax.max, window, strides, 'VALID'
  )
  found = convolve.max_pool(x, size, stride)
  np.testing.assert_array_equal(found, expected)


def test_cross_entropy_by_hand():
  logits = jnp.log(jnp.array([0.2, 0.3, 0.5]))
  value, sums = losses.classification(logits, jnp.array(1))
  np.testing.assert_allclose(value, -np.log(0.3), rtol=1e-6)
  assert sums['accuracy'][0] == 0
  assert losses.classification(logits, jnp.array(2))[1]['accuracy'][0] == 1


@pytest.mark.parametrize(('kind', 'factor'), [('sum', 5), ('mean', 1)])
def test_loss_of_a_sequence(kind, factor):
  spec = language.LanguageSpec(
    vocabulary_size=7, embedding_size=3, lstm_size=4, loss_per_sequence=kind
  )
  model = spec.jax_model()
  params = model.init(0)
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 7, 6))
  value, sums = model.loss(params, tokens[:-1], tokens[1:])
  total, count = sums['loss']
  assert float(value) == pytest.approx(factor * float(total / count))
  # Words are looked at from the left alone.
  other = tokens.at[4].set((tokens[4] + 1) % 7)
  one, two = (model.logits(params, t[:-1]) for t in (tokens, other))
  np.testing.assert_allclose(one[:4], two[:4], atol=1e-6)
  assert not np.allclose(one[4], two[4])
