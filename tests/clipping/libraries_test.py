"""Nets of other libraries, none written for `clipping`, against vmap(grad).

Skipped where a library is missing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping
import pytest

from tests.clipping import nets

nn = pytest.importorskip('flax.linen')
F8 = jnp.float64


def _mnist_cnn(x):
  x = nn.relu(nn.Conv(4, (3, 3))(x))
  x = nn.avg_pool(x, (2, 2), (2, 2))
  x = nn.relu(nn.Conv(8, (3, 3))(x))
  x = nn.avg_pool(x, (2, 2), (2, 2))
  return nn.Dense(3)(nn.relu(nn.Dense(16)(x.reshape(len(x), -1))))


def _resnet(x):
  x = nn.Conv(4, (3, 3), use_bias=False)(x)
  for channels, strides in ((4, 1), (8, 2)):
    y = nn.relu(nn.GroupNorm(2)(x))
    short = nn.Conv(channels, (1, 1), strides)(y)
    y = nn.Conv(channels, (3, 3), strides, use_bias=False)(y)
    y = nn.relu(nn.GroupNorm(2)(y))
    x = short + nn.Conv(channels, (3, 3), use_bias=False)(y)
  return nn.Dense(3)(x.mean(axis=(1, 2)))


def _separable(x):
  x = nn.Conv(4, (3, 3))(x)
  x = nn.relu(nn.Conv(4, (3, 3), feature_group_count=4)(x))
  x = nn.max_pool(nn.relu(nn.Conv(8, (1, 1))(x)), (2, 2), (2, 2))
  return nn.Dense(3)(x.mean(axis=(1, 2)))


def _recurrent(tokens):
  x = nn.Embed(7, 4, param_dtype=F8)(tokens)
  x = nn.RNN(nn.OptimizedLSTMCell(5, param_dtype=F8))(x)
  x = nn.RNN(nn.GRUCell(5, param_dtype=F8), reverse=True)(x)
  return nn.Dense(7)(x)


def _layers(x, mask=None):
  y = nn.LayerNorm()(x)
  x = x + nn.MultiHeadDotProductAttention(2)(y, y, mask=mask)
  return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))


def _transformer(tokens):
  embed = nn.Embed(40, 8)
  x = _layers(embed(tokens), nn.make_causal_mask(tokens))
  return embed.attend(nn.LayerNorm()(x))


def _vit(x):
  x = nn.Conv(8, (4, 4), strides=4)(x).reshape(len(x), -1, 8)
  start = nn.Embed(1, 8)(jnp.zeros((len(x), 1), int))
  x = jnp.concatenate([start, x], axis=1)
  x = x + nn.Embed(x.shape[1], 8)(jnp.arange(x.shape[1]))
  return nn.Dense(3)(_layers(x)[:, 0])


def _mixer(x):
  x = nn.Conv(8, (4, 4), strides=4)(x).reshape(len(x), -1, 8)
  y = nn.LayerNorm()(x).swapaxes(1, 2)
  x = x + nn.Dense(4)(nn.gelu(nn.Dense(6)(y))).swapaxes(1, 2)
  x = x + nn.Dense(8)(nn.gelu(nn.Dense(6)(nn.LayerNorm()(x))))
  return nn.Dense(3)(x.mean(axis=1))


def _experts(x):
  x = x.reshape(len(x), -1, 8)
  gates = nn.softmax(nn.Dense(3)(x))
  many = nn.vmap(
    nn.Dense,
    variable_axes={'params': 0},
    split_rngs={'params': True},
    in_axes=None,
    out_axes=-1,
    axis_size=3,
  )
  return nn.Dense(3)((many(8)(x) * gates[..., None, :]).sum(axis=-1).mean(1))


def _deep(x):
  """Layers by `nn.scan`, computed again in the backward pass."""

  class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
      return x + nn.tanh(nn.Dense(8)(nn.LayerNorm()(x))), None

  x = nn.Dense(8)(x.reshape(len(x), -1))
  many = nn.scan(
    nn.remat(Layer),
    variable_axes={'params': 0},
    split_rngs={'params': True},
    length=3,
  )
  return nn.Dense(3)(many()(x, None)[0])


class _Module(nn.Module):
  """A module of a function of a batch."""

  function: object

  @nn.compact
  def __call__(self, x):
    return self.function(x)


def _entropy(logits, y):
  return -(
    jax.nn.log_softmax(logits) * jax.nn.one_hot(y, logits.shape[-1])
  ).sum()


def _images():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(nets.EXAMPLES, 8, 8, 2))
  return x, rng.integers(0, 3, nets.EXAMPLES)


def _tokens(vocabulary):
  tokens = np.random.default_rng(0).integers(0, vocabulary, (nets.EXAMPLES, 4))
  return tokens, tokens[:, ::-1]


def _flax(function, batch):
  net = _Module(function)
  params = net.init(jax.random.key(0), jnp.asarray(batch[0][:1]))['params']

  def loss(params, x, y):
    return _entropy(net.apply({'params': params}, x[None])[0], y)

  return loss, params, batch


def _lora():
  """Low-rank weights on each kernel of a frozen transformer."""
  loss, frozen, batch = _flax(_transformer, _tokens(40))
  leaves, tree = jax.tree.flatten(nets.cast(frozen, F8))
  rng = np.random.default_rng(1)
  shapes = {k: a.shape for k, a in enumerate(leaves) if a.ndim == 2}
  params = {
    k: [rng.normal(size=(rows, 2)), rng.normal(size=(2, columns))]
    for k, (rows, columns) in shapes.items()
  }

  def merged(params, x, y):
    own = list(leaves)
    for k, (a, b) in params.items():
      own[k] = own[k] + 0.1 * a @ b
    return loss(jax.tree.unflatten(tree, own), x, y)

  return merged, params, batch


def _nnx():
  nnx = pytest.importorskip('flax.nnx')

  class Net(nnx.Module):
    def __init__(self, rngs):
      self.conv = nnx.Conv(2, 4, (3, 3), rngs=rngs)
      self.norm = nnx.LayerNorm(4, rngs=rngs)
      self.out = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
      return self.out(nnx.relu(self.norm(self.conv(x))).mean(axis=(1, 2)))

  graph, params = nnx.split(Net(nnx.Rngs(0)))

  def loss(params, x, y):
    return _entropy(nnx.merge(graph, params)(x[None])[0], y)

  return loss, params, _images()


def _equinox():
  eqx = pytest.importorskip('equinox')
  net = eqx.nn.MLP(128, 3, 8, 2, key=jax.random.key(0))
  params, static = eqx.partition(net, eqx.is_inexact_array)

  def loss(params, x, y):
    return _entropy(eqx.combine(params, static)(x.reshape(-1)), y)

  return loss, params, _images()


def _haiku():
  hk = pytest.importorskip('haiku')

  def forward(x):
    x = jax.nn.relu(hk.Conv2D(4, 3)(x))
    start, steps = jnp.zeros((1, 5), x.dtype), x[:, 0].swapaxes(0, 1)
    x, _ = hk.dynamic_unroll(hk.VanillaRNN(5), steps, start)
    return hk.Linear(3)(x[-1])

  net = hk.without_apply_rng(hk.transform(forward))
  batch = _images()
  params = net.init(jax.random.key(0), jnp.asarray(batch[0][:1]))

  def loss(params, x, y):
    return _entropy(net.apply(params, x[None])[0], y)

  return loss, params, batch


_NETS = {
  **{
    f.__name__[1:]: functools.partial(lambda f: _flax(f, _images()), f)
    for f in (_mnist_cnn, _resnet, _separable, _vit, _mixer, _experts, _deep)
  },
  'recurrent': lambda: _flax(_recurrent, _tokens(7)),
  'transformer': lambda: _flax(_transformer, _tokens(40)),
  'lora': _lora,
  'nnx': _nnx,
  'equinox': _equinox,
  'haiku': _haiku,
}


@pytest.mark.slow
@pytest.mark.parametrize('name', _NETS)
def test_sums_and_norms_are_those_of_vmap_grad(name):
  with jax.enable_x64(True):
    loss, params, batch = _NETS[name]()
    params, batch = nets.cast((params, batch), F8)
    run = jax.jit(functools.partial(nets.reference, loss))
    expected, norms, clip_norm = run(params, batch)
    clip = jax.jit(clipping.clipped_grad(loss, float(clip_norm)))
    sums, info = clip(params, *batch)
    np.testing.assert_allclose(info.norms, norms, rtol=1e-6)
    largest = max(np.abs(a).max() for a in jax.tree.leaves(expected))
    for a, b in zip(
      jax.tree.leaves(sums), jax.tree.leaves(expected), strict=True
    ):
      np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * largest)
    assert int(info.clipped) == 2
