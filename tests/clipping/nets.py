"""Small losses in plain JAX, none written for `clipping`.

Each function returns a loss of one example, its weights and a batch of five
examples. Together they use every operation that is recognized.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

EXAMPLES = 5


def _normal(*shapes, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=shape) / 2 for shape in shapes]


def _entropy(logits, target):
  logits = logits.astype(jnp.float32) if logits.dtype.itemsize < 4 else logits
  taken = jnp.take_along_axis(logits, target[..., None], -1)[..., 0]
  return (jax.nn.logsumexp(logits, axis=-1) - taken).sum()


def _images(*shape, seed=1):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(EXAMPLES, *shape)), rng.integers(0, 3, EXAMPLES)


def _tokens(vocabulary, length, seed=1):
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, vocabulary, (EXAMPLES, length + 1))
  return tokens[:, :-1], tokens[:, 1:]


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


def _layer_norm(x, scale):
  x = x - x.mean(axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def _attention(x, p):
  q, k, v = (jnp.einsum('td,dhe->the', x, p[name]) for name in 'qkv')
  scores = jnp.einsum('the,she->hts', q, k)
  mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
  weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
  return jnp.einsum('hts,she,hed->td', weights, v, p['o'])


def _blocks(layers, width=8, seed=0):
  heads = 2
  shapes = {
    **{name: (width, heads, width // heads) for name in 'qkv'},
    'o': (heads, width // heads, width),
    'up': (width, 2 * width),
    'down': (2 * width, width),
    'scale': (width,),
  }
  arrays = _normal(*((layers, *s) for s in shapes.values()), seed=seed)
  return dict(zip(shapes, arrays, strict=True))


def _block(x, p):
  x = x + _attention(_layer_norm(x, p['scale']), p)
  return x + jax.nn.gelu(x @ p['up']) @ p['down']


def transformer(vocabulary=11, length=6):
  """Tied embeddings, positions, two layers, of which one is computed again."""
  table, places = _normal((vocabulary, 8), (length, 8))

  def loss(params, tokens, targets):
    x = params['table'][tokens] + params['places']
    for layer, run in enumerate((_block, jax.checkpoint(_block))):
      x = run(
        x, jax.tree.map(lambda p, layer=layer: p[layer], params['blocks'])
      )
    return _entropy(x @ params['table'].T, targets)

  params = {'table': table, 'places': places, 'blocks': _blocks(2)}
  return loss, params, _tokens(vocabulary, length)


def scan_over_layers():
  """A scan with weights for each step, and others that all steps share."""
  table, shared = _normal((30, 8), (8, 8))

  def loss(params, tokens, targets):
    @jax.checkpoint
    def layer(x, p):
      x = _block(x, p)
      return x + jnp.tanh(x @ params['shared']), x.sum()

    x, sums = jax.lax.scan(layer, params['table'][tokens], params['blocks'])
    return _entropy(x @ params['table'].T, targets) + sums.mean()

  params = {'table': table, 'shared': shared, 'blocks': _blocks(3)}
  return loss, params, _tokens(30, 5)


def lstm(vocabulary=9, length=7):
  """Joined kernels in a scan, a learned start, a scan in reverse."""
  table, *kernels = _normal((vocabulary, 4), *[(4, 6)] * 4)
  recurrent = _normal(*[(6, 6)] * 4, seed=3)
  bias, start, gru, logits = _normal((24,), (6,), (6, 6), (6, vocabulary))

  def loss(params, tokens, targets):
    def step(carry, x):
      h, c = carry
      gates = x @ jnp.concatenate(params['kernels'], axis=-1)
      gates += (
        h @ jnp.concatenate(params['recurrent'], axis=-1) + params['bias']
      )
      i, f, g, o = jnp.split(gates, 4)
      c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
      h = jax.nn.sigmoid(o) * jnp.tanh(c)
      return (h, c), h

    def back(h, x):
      h = jnp.tanh(x + h @ params['gru'])
      return h, h

    start = params['start']
    x = params['table'][tokens]
    _, x = jax.lax.scan(step, (start, jnp.zeros_like(start)), x)
    _, x = jax.lax.scan(back, jnp.zeros_like(start), x, reverse=True)
    return _entropy(x @ params['logits'], targets)

  params = {
    'table': table,
    'kernels': kernels,
    'recurrent': recurrent,
    'bias': bias,
    'start': start,
    'gru': gru,
    'logits': logits,
  }
  return loss, params, _tokens(vocabulary, length)


def experts():
  """Weights with batch axes, mixed by a gate."""
  gate, up, down = _normal((6, 3), (3, 6, 8), (3, 8, 4))
  x, y = _images(5, 6)

  def loss(params, x, y):
    chosen = jax.nn.softmax(x @ params['gate'])
    inside = jnp.einsum('te,td->etd', chosen, x)
    outs = jax.vmap(lambda x, u, d: jnp.tanh(x @ u) @ d)(
      inside, params['up'], params['down']
    )
    return _entropy(outs.sum(axis=(0, 1)), y)

  return loss, {'gate': gate, 'up': up, 'down': down}, (x, y)


def lora():
  """Low-rank weights on a frozen net, and frozen ones among the weights."""
  base, frozen = _normal((6, 6), (6, 6))
  a, b = _normal((6, 2), (2, 6), seed=4)
  x, y = _images(4, 6)

  def loss(params, x, y):
    x = jnp.tanh(x @ base + x @ params['a'] @ params['b'])
    merged = jax.lax.stop_gradient(params['frozen']) + params['a'] @ params['b']
    return _entropy(jnp.tanh(x @ merged).sum(axis=0), y)

  return loss, {'a': a, 'b': b, 'frozen': frozen}, (x, y)


@jax.custom_vjp
def _clip_gradient(x):
  return x


_clip_gradient.defvjp(
  lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),)
)


def odds_and_ends():
  """Shared and cut weights, standardized ones, a penalty, custom rules."""
  w, cut, v, rows = _normal((6, 6), (12, 6), (6, 3), (7, 6))
  x, y = _images(4, 6)

  def loss(params, x, y):
    for _ in range(2):
      x = _clip_gradient(jax.nn.relu(x @ params['w']))
    x = jnp.tanh(x @ params['cut'][:6] + x @ params['cut'][6:].T)
    standard = params['v'] - params['v'].mean(axis=0)
    x = x + params['rows'][y + 2] / (1 + jnp.square(params['rows'][0]))
    x = jnp.concatenate([params['rows'][3:4], x])
    return _entropy((x @ standard).sum(axis=0), y) + (params['w'] ** 2).sum()

  params = {'w': w, 'cut': cut, 'v': v, 'rows': rows, 'unused': v}
  return loss, params, (x, y)


ALL = (
  mlp,
  cnn,
  cnn_1d_3d,
  transformer,
  scan_over_layers,
  lstm,
  experts,
  lora,
  odds_and_ends,
)
BY_NAME = {net.__name__: net for net in ALL}


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
