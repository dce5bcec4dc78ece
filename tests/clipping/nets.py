"""Losses of libraries and in plain JAX, none written for `clipping`.

Each function returns a loss of one example, its weights and a batch of five
examples. Together they use every operation that is recognized.
"""

import functools

from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

EXAMPLES = 5


def _normal(*shapes, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=shape) / 2 for shape in shapes]


def _entropy(logits, y):
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  hot = jax.nn.one_hot(y, logits.shape[-1])
  return -(jax.nn.log_softmax(logits) * hot).sum()


def _images(*shape):
  rng = np.random.default_rng(1)
  return rng.normal(size=(EXAMPLES, *shape)), rng.integers(0, 3, EXAMPLES)


def _tokens(vocabulary, length):
  tokens = np.random.default_rng(1).integers(0, vocabulary, (EXAMPLES, length))
  return tokens, tokens[:, ::-1]


def _conv(x, kernel, strides=1, padding='SAME', **options):
  """A convolution of one image or sequence, channels last."""
  spatial = 'DHW'[3 - (kernel.ndim - 2) :]
  numbers = f'N{spatial}C', f'{spatial}IO', f'N{spatial}C'
  strides = (strides,) * (kernel.ndim - 2)
  return jax.lax.conv_general_dilated(
    x[None], kernel, strides, padding, dimension_numbers=numbers, **options
  )[0]


def mlp():
  w, b, v = _normal((7, 6), (6,), (6, 3))
  x, y = _images(7)

  def loss(params, x, y):
    return _entropy(jnp.tanh(x @ params['w'] + params['b']) @ params['v'], y)

  return loss, {'w': w, 'b': b, 'v': v}, (x, y)


def cnn():
  """Strides, dilations, groups, a transposed convolution, group norm."""
  kernels = _normal(
    (3, 3, 2, 4), (3, 3, 4, 8), (3, 3, 4, 8), (3, 3, 1, 8), (2, 2, 8, 4)
  )
  scale, bias, dense = _normal((8,), (8,), (4, 3))
  x, y = _images(8, 8, 2)

  def norm(x, scale, bias):
    split = x.reshape(*x.shape[:2], 2, 4)
    mean = split.mean(axis=(0, 1, 3), keepdims=True)
    variance = split.var(axis=(0, 1, 3), keepdims=True)
    split = (split - mean) * jax.lax.rsqrt(variance + 1e-5)
    return split.reshape(x.shape) * scale + bias

  def loss(params, x, y):
    k = params['kernels']
    x = jax.nn.relu(_conv(x, k[0]))
    x = jax.nn.relu(norm(_conv(x, k[1], 2), params['scale'], params['bias']))
    x = jax.nn.silu(_conv(x, k[2], feature_group_count=2, rhs_dilation=(2, 2)))
    x = _conv(x, k[3], padding='VALID', feature_group_count=8)
    x = _conv(x, k[4], padding=[(1, 1), (1, 1)], lhs_dilation=(2, 2))
    return _entropy(x.mean(axis=(0, 1)) @ params['dense'], y)

  params = {'kernels': kernels, 'scale': scale, 'bias': bias, 'dense': dense}
  return loss, params, (x, y)


def cnn_1d_3d():
  k1, k3, dense = _normal((3, 2, 4), (2, 2, 2, 1, 3), (3, 3))
  x, y = _images(16, 2)

  def loss(params, x, y):
    x = jnp.tanh(_conv(x, params['k1'], 2)).reshape(2, 4, 4, 1)
    x = jnp.tanh(_conv(x, params['k3'], padding='VALID'))
    return _entropy(x.mean(axis=(0, 1, 2)) @ params['dense'], y)

  return loss, {'k1': k1, 'k3': k3, 'dense': dense}, (x, y)


@jax.custom_vjp
def _clip_gradient(x):
  return x


_clip_gradient.defvjp(
  lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),)
)


def odds_and_ends():
  """Shared, cut, merged and frozen weights, a penalty, custom rules."""
  w, cut, v, rows, a, b = _normal(
    (6, 6), (12, 6), (6, 3), (7, 6), (6, 2), (2, 6)
  )
  x, y = _images(4, 6)

  def loss(params, x, y):
    for _ in range(2):
      x = _clip_gradient(jax.nn.relu(x @ params['w']))
    x = jnp.tanh(x @ params['cut'][:6] + x @ params['cut'][6:].T)
    x = x @ (jax.lax.stop_gradient(params['w']) + params['a'] @ params['b'])
    standard = params['v'] - params['v'].mean(axis=0)
    x = x + params['rows'][y + 2] / (1 + jnp.square(params['rows'][0]))
    x = jnp.concatenate([params['rows'][3:4], x])
    return _entropy((x @ standard).sum(axis=0), y) + (params['w'] ** 2).sum()

  params = {'w': w, 'cut': cut, 'v': v, 'rows': rows, 'a': a, 'b': b}
  params['unused'] = v
  return loss, params, (x, y)


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
  x = nn.Embed(7, 4, param_dtype=jnp.float64)(tokens)
  x = nn.RNN(nn.OptimizedLSTMCell(5, param_dtype=jnp.float64))(x)
  x = nn.RNN(nn.GRUCell(5, param_dtype=jnp.float64), reverse=True)(x)
  return nn.Dense(7)(x)


def _layers(x, mask=None):
  y = nn.LayerNorm()(x)
  x = x + nn.MultiHeadDotProductAttention(2)(y, y, mask=mask)
  return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))


def _transformer(tokens, vocabulary=40):
  embed = nn.Embed(vocabulary, 8)
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


def _flax(function, batch):
  net = _Module(function)
  init = jax.jit(net.init)
  params = init(jax.random.key(0), jnp.asarray(batch[0][:1]))['params']

  def loss(params, x, y):
    return _entropy(net.apply({'params': params}, x[None])[0], y)

  return loss, params, batch


def lora():
  """Low-rank weights on each kernel of a frozen transformer."""
  loss, frozen, batch = _flax(_transformer, _tokens(40, 4))
  leaves, tree = jax.tree.flatten(cast(frozen, jnp.float64))
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

  return loss, params, _images(8, 8, 2)


def equinox():
  eqx = pytest.importorskip('equinox')
  net = eqx.nn.MLP(128, 3, 8, 2, key=jax.random.key(0))
  params, static = eqx.partition(net, eqx.is_inexact_array)

  def loss(params, x, y):
    return _entropy(eqx.combine(params, static)(x.reshape(-1)), y)

  return loss, params, _images(8, 8, 2)


def haiku():
  hk = pytest.importorskip('haiku')

  def forward(x):
    x = jax.nn.relu(hk.Conv2D(4, 3)(x))
    start, steps = jnp.zeros((1, 5), x.dtype), x[:, 0].swapaxes(0, 1)
    x, _ = hk.dynamic_unroll(hk.VanillaRNN(5), steps, start)
    return hk.Linear(3)(x[-1])

  net = hk.without_apply_rng(hk.transform(forward))
  batch = _images(8, 8, 2)
  params = net.init(jax.random.key(0), jnp.asarray(batch[0][:1]))

  def loss(params, x, y):
    return _entropy(net.apply(params, x[None])[0], y)

  return loss, params, batch


def tied(vocabulary, length):
  """A transformer whose table of embeddings also gives the logits."""
  transformer = functools.partial(_transformer, vocabulary=vocabulary)
  return _flax(transformer, _tokens(vocabulary, length))


PLAIN = {f.__name__: f for f in (mlp, cnn, cnn_1d_3d, odds_and_ends)}
BY_NAME = {
  **PLAIN,
  **{
    f.__name__[1:]: functools.partial(lambda f: _flax(f, _images(8, 8, 2)), f)
    for f in (_mnist_cnn, _resnet, _separable, _vit, _mixer, _experts, _deep)
  },
  'recurrent': lambda: _flax(_recurrent, _tokens(7, 4)),
  'transformer': lambda: tied(40, 4),
  'lora': lora,
  'nnx': _nnx,
  'equinox': equinox,
  'haiku': haiku,
}


def cast(tree, dtype):
  """Casts the floating-point arrays of a pytree."""

  def one(a):
    a = jnp.asarray(a)
    return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

  return jax.tree.map(one, tree)


def reference(loss, params, batch):
  """The clipped sum and the norms by `vmap(grad)`; two of five are clipped."""
  axes = (None, *[0] * len(batch))
  gradients = jax.vmap(jax.grad(loss), in_axes=axes)(params, *batch)
  squares = jax.tree.map(
    lambda g: jnp.square(g).sum(axis=range(1, g.ndim)), gradients
  )
  norms = jnp.sqrt(functools.reduce(jnp.add, jax.tree.leaves(squares)))
  clip_norm = jnp.sort(norms)[2:4].mean()
  scales = jnp.minimum(1, clip_norm / norms)
  sums = jax.tree.map(lambda g: jnp.tensordot(scales, g, axes=1), gradients)
  return sums, norms, clip_norm


def norm_of(tree):
  """The norm of a pytree, in float64."""
  leaves = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree))
  return float(np.sqrt(sum(np.square(leaf).sum() for leaf in leaves)))
