r"""Measures clipped gradients of examples as multiples of a plain gradient.

    python -m bench.clipped_grad --net=cnn,lstm --batch_size=32
    python -m bench.clipped_grad --dtype=bfloat16 --steps=5 --seconds=150

Nets are Flax modules and batches are random numbers. Beside a plain gradient of
the batch's mean loss stand `clipping.clipped_grad` and, where it is installed,
jax_privacy's `clipped_grad`. Calls alternate, so that other load on the machine
affects all of them alike; times are medians. Memory is what XLA plans for
temporary arrays. Each net prints a line of JSON for each way.
"""

from collections.abc import Callable
import importlib.util
import json
import statistics
import time

from absl import app
from absl import flags
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import clipping

_NETS = flags.DEFINE_list(
  'net',
  ['cnn', 'wrn', 'lstm', 'gpt', 'gpt-lora', 'gpt-large', 'gpt-large-lora'],
  'Nets to measure.',
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 0, "Number of examples; 0 means each net's own."
)
_DTYPE = flags.DEFINE_enum(
  'dtype', 'float32', ['float32', 'bfloat16'], 'Data type of the forward pass.'
)
_STEPS = flags.DEFINE_integer('steps', 1, 'Number of steps in a call.')
_CALLS = flags.DEFINE_integer('calls', 5, 'Number of measured calls.')
_SECONDS = flags.DEFINE_float(
  'seconds', 1e9, 'No net is begun after this time.', lower_bound=0
)
_MICROBATCH = flags.DEFINE_integer(
  'peer_microbatch', 0, 'Examples that jax_privacy takes at once; 0 for all.'
)


def _dense(size, **options):
  return nn.Dense(size, dtype=_DTYPE.value, **options)


def _conv(channels, size=3, strides=1):
  return nn.Conv(channels, (size, size), strides, dtype=_DTYPE.value)


class _Cnn(nn.Module):
  """The paper's net for CIFAR-10."""

  @nn.compact
  def __call__(self, x):
    for channels in (32, 64, 128):
      for _ in range(2):
        x = jnp.tanh(_conv(channels)(x))
      x = nn.max_pool(x, (2, 2), (2, 2))
    return _dense(10)(jnp.tanh(_dense(128)(x.reshape(len(x), -1))))


class _Wrn(nn.Module):
  """WRN-16-4 with group normalization."""

  @nn.compact
  def __call__(self, x):
    def norm(x):
      return nn.relu(nn.GroupNorm(16, dtype=_DTYPE.value)(x))

    x = _conv(16)(x)
    for stage, channels in enumerate((64, 128, 256)):
      for block in range(2):
        strides = 2 if stage and not block else 1
        y = norm(x)
        short = x if block else _conv(channels, 1, strides)(y)
        x = short + _conv(channels)(norm(_conv(channels, 3, strides)(y)))
    return _dense(10)(norm(x).mean(axis=(1, 2)))


class _Gpt(nn.Module):
  """A decoder; low-rank weights are added to its kernels if there are any."""

  width: int
  layers: int
  vocabulary: int

  @nn.compact
  def __call__(self, tokens, lora=None):
    dtype, width = _DTYPE.value, self.width

    def dense(name, x, size):
      y = _dense(size, name=name)(x)
      if lora is None:
        return y
      a, b = (m.astype(dtype) for m in lora[name])
      return y + x @ a @ b

    def norm(x):
      return nn.LayerNorm(dtype=dtype)(x)

    x = nn.Embed(self.vocabulary, width, dtype=dtype)(tokens)
    places = nn.initializers.normal()
    x += self.param('places', places, x.shape[1:]).astype(dtype)
    mask = nn.make_causal_mask(tokens)
    for k in range(self.layers):
      y, heads = norm(x), (*x.shape[:-1], width // 64, 64)
      q, w, v = (dense(f'{n}{k}', y, width).reshape(heads) for n in 'qwv')
      y = nn.dot_product_attention(q, w, v, mask=mask, dtype=dtype)
      x += dense(f'o{k}', y.reshape(x.shape), width)
      x += dense(
        f'down{k}', nn.gelu(dense(f'up{k}', norm(x), 4 * width)), width
      )
    return _dense(self.vocabulary)(norm(x))

  def low_rank(self, rank=8):
    def pair(name):
      rows, columns = {'up': (1, 4), 'down': (4, 1)}.get(name, (1, 1))
      shapes = (rows * self.width, rank), (rank, columns * self.width)
      return [np.full(shape, 0.01, 'f4') for shape in shapes]

    names = 'q', 'w', 'v', 'o', 'up', 'down'
    return {f'{n}{k}': pair(n) for k in range(self.layers) for n in names}


class _Lstm(nn.Module):
  """The paper's net for WikiText-2, with Flax's cells."""

  @nn.compact
  def __call__(self, tokens):
    x = nn.Embed(33278, 200, dtype=_DTYPE.value)(tokens)
    for _ in range(2):
      x = nn.RNN(nn.OptimizedLSTMCell(200, dtype=_DTYPE.value))(x)
    return _dense(33278)(x)


# Each net's module, batch size, length of sequences and number of classes.
_WORK = {
  'cnn': (_Cnn(), 500, None, 10),
  'wrn': (_Wrn(), 256, None, 10),
  'gpt': (_Gpt(512, 8, 8000), 64, 128, 8000),
  'gpt-large': (_Gpt(768, 12, 32000), 32, 256, 32000),
  'lstm': (_Lstm(), 250, 35, 33278),
}


def _batch(size, length, classes):
  rng = np.random.default_rng(0)
  if length is None:
    x = rng.normal(size=(size, 32, 32, 3)).astype('f4')
    return x, rng.integers(0, classes, size)
  tokens = rng.integers(0, classes, (size, length + 1))
  return tokens[:, :-1], tokens[:, 1:]


def _entropy(logits, y):
  logits = logits.astype(jnp.float32)
  taken = jnp.take_along_axis(logits, y[..., None], -1)[..., 0]
  return (jax.nn.logsumexp(logits, axis=-1) - taken).sum()


def _ways(name: str) -> tuple[dict[str, Callable], tuple]:
  """Returns functions of weights, a batch and frozen weights, and all these."""
  net, size, *kind = _WORK[name.removesuffix('-lora')]
  x, y = _batch(_BATCH_SIZE.value or size, *kind)
  params, rest = net.init(jax.random.key(0), x[:1]), ()
  if name.endswith('-lora'):
    params, rest = net.low_rank(), (params,)

  def logits(params, x, *base):
    return net.apply(base[0], x, params) if base else net.apply(params, x)

  def mean_loss(params, x, y, *rest):
    return _entropy(logits(params, x, *rest), y) / len(x)

  def one(rest):
    return lambda p, x, y: _entropy(logits(p, x[None], *rest)[0], y)

  ways = {
    'plain': jax.grad(mean_loss),
    'clipped_grad': lambda p, x, y, *rest: clipping.clipped_grad(
      one(rest), 1.0
    )(p, x, y)[0],
  }
  if importlib.util.find_spec('jax_privacy') is not None:
    from jax_privacy import clipping as peer

    options = {'batch_argnums': (1, 2), 'keep_batch_dim': False}
    options['microbatch_size'] = _MICROBATCH.value or None
    ways['jax_privacy'] = lambda p, x, y, *rest: peer.clipped_grad(
      one(rest), l2_clip_norm=1.0, **options
    )(p, x, y)
  return ways, (params, x, y, *rest)


def _compiled(way, arguments) -> tuple[Callable, int]:
  """Returns a call of all steps, and the bytes of its temporary arrays."""

  def step(params, *rest):
    sums = way(params, *rest)
    return jax.tree.map(lambda w, g: w - 1e-4 * g.astype(w.dtype), params, sums)

  def call(params, *rest):
    if _STEPS.value == 1:  # No loop: in one, XLA for CPUs convolves slowly.
      return step(params, *rest)
    body = lambda params, _: (step(params, *rest), None)  # noqa: E731
    return jax.lax.scan(body, params, length=_STEPS.value)[0]

  arguments = jax.tree.map(jnp.asarray, arguments)
  compiled = jax.jit(call).lower(*arguments).compile()
  memory = compiled.memory_analysis().temp_size_in_bytes
  return lambda: jax.block_until_ready(compiled(*arguments)), memory


def _measure(name: str) -> None:
  """Measures the ways of a net in turn, and prints what it found."""
  start = time.perf_counter()
  ways, arguments = _ways(name)
  calls = {way: _compiled(f, arguments) for way, f in ways.items()}
  compiled = time.perf_counter() - start
  times = {way: [] for way in calls}
  for k in range(_CALLS.value + 1):
    for way, (call, _) in calls.items():
      start = time.perf_counter()
      call()
      if k:  # The first call warms up.
        times[way].append((time.perf_counter() - start) / _STEPS.value)
  medians = {way: statistics.median(t) for way, t in times.items()}
  for way, (_, memory) in calls.items():
    found = {
      'net': name,
      'way': way,
      'ms': round(1000 * medians[way], 3),
      'of_plain': round(medians[way] / medians['plain'], 3),
      'megabytes': round(memory / 1e6),
      'compiled_s': round(compiled, 1),
    }
    print(json.dumps(found), flush=True)


def main(argv):
  """Measures net after net."""
  del argv
  start = time.perf_counter()
  for name in _NETS.value:
    if time.perf_counter() - start < _SECONDS.value:
      _measure(name)


if __name__ == '__main__':
  app.run(main)
