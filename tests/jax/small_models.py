"""Models of each layer type, small enough for a loop over examples."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import jax as pda_jax
from pda_fed import privacy
from pda_fed.models import convolutional
from pda_fed.models import language
from pda_fed.models import residual


def _images(
  convolutions,
  dense_sizes=(5,),
  activation='tanh',
  shape=(6, 6, 2),
):
  spec = convolutional.ConvolutionalSpec(
    image_shape=shape,
    convolutions=convolutions,
    dense_sizes=dense_sizes,
    num_classes=4,
    activation=activation,
  )
  rng = np.random.default_rng(1)
  return (
    spec.jax_model(),
    jnp.asarray(rng.normal(size=(5, *shape)), jnp.float32),
    jnp.asarray(rng.integers(0, 4, 5)),
  )


def _residual():
  spec = residual.ResidualSpec(
    image_shape=(7, 6, 2), num_classes=4, depth=10, width=1, norm_groups=4
  )
  rng = np.random.default_rng(1)
  return (
    spec.jax_model(),
    jnp.asarray(rng.normal(size=(5, *spec.image_shape)), jnp.float32),
    jnp.asarray(rng.integers(0, 4, 5)),
  )


def _text(**sizes):
  spec = language.LanguageSpec(vocabulary_size=6, **sizes)
  tokens = np.random.default_rng(2).integers(0, 6, (5, 9))
  return (
    spec.jax_model(),
    jnp.asarray(tokens[:, :-1]),
    jnp.asarray(tokens[:, 1:]),
  )


def create(name):
  """Returns a model, inputs and targets of five examples."""
  conv = convolutional.Convolution
  return {
    # Many positions and narrow: gradients of examples.
    'narrow': lambda: _images((conv(filters=2, size=3),), ()),
    'pooled': lambda: _images(
      (conv(filters=3, size=3, pool_size=2, pool_stride=2),), activation='relu'
    ),
    'residual': _residual,
    'mlp': lambda: _images((), (6, 5), 'relu', shape=(7,)),
    'small_text': lambda: _text(embedding_size=3, lstm_size=2, num_layers=1),
    'text': lambda: _text(embedding_size=20, lstm_size=24),
  }[name]()


NAMES = ('narrow', 'pooled', 'residual', 'mlp', 'small_text', 'text')


def params_of(model, seed=0):
  """Weights, larger than at the start so that nothing is nearly linear."""
  return jax.tree.map(lambda w: 2 * w, model.init(seed))


def step_settings(clip_norm=1e18, expected_cohort=4.0, **options):
  """Settings of steps; by default, nothing is clipped."""
  plan = privacy.PrivacyPlan(
    population=100,
    expected_cohort=expected_cohort,
    rounds=5,
    delta=1e-3,
    noise_multiplier=1.0,
    clip_norm=clip_norm,
  )
  return pda_jax.SampleLevelSettings(plan=plan, **options)


@contextlib.contextmanager
def quick_compilation(quick=True):
  """Compiles in half of the time, to slower programs; what a test wants.

  Args:
    quick: False for programs as they are outside of tests.
  """
  before = jax.config.values['jax_disable_most_optimizations']
  jax.config.update('jax_disable_most_optimizations', quick)
  try:
    yield
  finally:
    jax.config.update('jax_disable_most_optimizations', before)
