r"""Measures a DP-SGD step: ours, tensorflow-privacy's and Opacus's.

    python -m bench.sample_level_step --work=emnist,cifar10 --batch_size=64
    python -m bench.sample_level_step --work=wrn-16-4 --batch_size=512 \
        --peer=opacus --compute_dtype=float32,bfloat16
    python -m bench.sample_level_step --work=cifar10,emnist,wikitext2 \
        --peer=none --mirror=false,true --compute_dtype=bfloat16 --steps=200

Batches are random numbers with the data's shape. Our steps run in one compiled
program, as in training, including Poisson batches and their padding. The peers
are `VectorizedDPKerasSGDOptimizer` in a tf.function, and Opacus's hooks, on
batches of fixed size. Measurements alternate, so that other load on the machine
affects all of them alike.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Callable
import dataclasses
import statistics
import time

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import schedules
from pda_fed.common import tables
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.runs import sample_level_config

_WORK = flags.DEFINE_list(
  'work',
  ['emnist'],
  'Work to measure: cifar10, emnist, wikitext2, or the name of a residual'
  " network for images of CIFAR-10's shape, such as wrn-16-4.",
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 0, "Expected number of examples in a step. 0 means the paper's."
)
_STEPS = flags.DEFINE_integer(
  'steps', 5, 'Number of steps in a measured call.', lower_bound=1
)
_CALLS = flags.DEFINE_integer(
  'calls', 3, 'Number of measured calls.', lower_bound=1
)
_MIRROR = flags.DEFINE_list(
  'mirror', ['false'], 'Whether to use public batches: false, true or both.'
)
_COMPUTE_DTYPE = flags.DEFINE_list(
  'compute_dtype', ['float32'], 'Data types: float32, bfloat16 or both.'
)
_SIDE_BY_SIDE = flags.DEFINE_list(
  'side_by_side', ['1'], 'Numbers of runs to compute at once.'
)
_MULTIPLICITY = flags.DEFINE_integer(
  'augmentation_multiplicity',
  1,
  'Number of variations of each image.',
  lower_bound=1,
)
_PEER = flags.DEFINE_enum(
  'peer',
  'tensorflow_privacy',
  ['tensorflow_privacy', 'opacus', 'none'],
  'Library to compare with. opacus needs torch and opacus.',
)
_EXAMPLES = 2000


def _examples(
  task: sample_level_config.TaskDefaults,
) -> batches_lib.ExampleArrays:
  rng = np.random.default_rng(0)
  if isinstance(task.spec, sample_level_config.language.LanguageSpec):
    tokens = rng.integers(0, task.spec.vocabulary_size, (_EXAMPLES, 36))
    tokens = tokens.astype(np.uint16)
    return batches_lib.ExampleArrays(
      jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:])
    )
  images = rng.integers(0, 256, (_EXAMPLES, *task.spec.image_shape))
  labels = rng.integers(0, task.spec.num_classes, _EXAMPLES)
  return batches_lib.ExampleArrays(
    jnp.asarray(images.astype(np.uint8)), jnp.asarray(labels.astype(np.int32))
  )


def _plan(batch: int) -> privacy.PrivacyPlan:
  return privacy.PrivacyPlan(
    population=_EXAMPLES,
    expected_cohort=batch,
    rounds=_STEPS.value,
    delta=1e-4,
    noise_multiplier=1.0,
    clip_norm=1.0,
  )


def _inputs(task, batch: int, mirror: bool, seed: int):
  rounds = range(_STEPS.value)
  rows, present = pda_jax.draw_batches(_plan(batch), rounds, seed)
  public = None
  if mirror:
    rng = np.random.default_rng(seed)
    public = rng.integers(0, _EXAMPLES, (len(rounds), task.public_batch_size))
  return pda_jax.StepInputs(
    round_num=np.arange(len(rounds), dtype=np.int32),
    rows=rows,
    present=present,
    learning_rate=np.full(len(rounds), 0.1, np.float32),
    epoch=np.zeros(len(rounds), np.int32),
    public_rows=public,
    schedules={'alpha': np.full(len(rounds), 0.9, np.float32)}
    if mirror
    else {},
  )


def _ours(
  task, batch: int, mirror: bool, dtype: str, runs: int
) -> Callable[[], float]:
  """Returns a function that measures the seconds of a step of one run."""
  model = task.spec.jax_model()
  settings = pda_jax.SampleLevelSettings(
    plan=_plan(batch),
    mean_clip_norm=1.0 if task.clips_mean else None,
    compute_dtype=dtype,
    augmentation='all' if _MULTIPLICITY.value > 1 else 'none',
    augmentation_multiplicity=_MULTIPLICITY.value,
    method=methods.PdaDpmd(alpha=schedules.constant(0.9))
    if mirror
    else methods.ColdStart(),
  )
  examples = _examples(task)
  standardization = None
  if examples.inputs.ndim == 4:
    standardization = augmentation.Standardization.of(
      np.asarray(examples.inputs[:100])
    )
  trainer = pda_jax.SampleTrainer(model, settings, standardization)
  state = trainer.init(model.initial_params(0))
  data = pda_jax.TrainingArrays(examples, examples if mirror else None)
  # All runs get the same batches, so that shapes agree.
  inputs = _inputs(task, batch, mirror, seed=0)
  key = pda_jax.noise_key(1)
  if runs > 1:
    state, inputs = (
      jax.tree_util.tree_map(lambda a: jnp.stack([a] * runs), tree)
      for tree in (state, inputs)
    )
    noise, key = np.ones(runs, np.float32), np.stack([key] * runs)
    run = trainer.run_side_by_side
  else:
    noise, run = 1.0, trainer.run

  def measure() -> float:
    started = time.perf_counter()
    result, _ = run(state, data, inputs, _STEPS.value, noise, key)
    jax.block_until_ready(result.params)
    return (time.perf_counter() - started) / _STEPS.value / runs

  return measure


def _keras_model(spec):
  import tensorflow as tf

  layers = tf.keras.layers
  if isinstance(spec, sample_level_config.language.LanguageSpec):
    return tf.keras.Sequential(
      [
        layers.Input((35,), dtype=tf.int32),
        layers.Embedding(spec.vocabulary_size, spec.embedding_size),
        # pfor, which the peer uses, does not support a rolled LSTM.
        *(
          layers.LSTM(spec.lstm_size, return_sequences=True, unroll=True)
          for _ in range(spec.num_layers)
        ),
        layers.Dense(spec.vocabulary_size),
      ]
    )
  stack = [layers.Input(spec.image_shape)]
  for c in spec.convolutions:
    stack.append(
      layers.Conv2D(
        c.filters, c.size, c.stride, c.padding, activation=spec.activation
      )
    )
    if c.pool_size is not None:
      stack.append(layers.MaxPool2D(c.pool_size, c.pool_stride))
  stack.append(layers.Flatten())
  stack += [layers.Dense(size, spec.activation) for size in spec.dense_sizes]
  return tf.keras.Sequential([*stack, layers.Dense(spec.num_classes)])


def _tensorflow_privacy(task, batch: int) -> Callable[[], float]:
  """Returns a function that measures the seconds of a step."""
  import tensorflow as tf
  from tensorflow_privacy.privacy.optimizers import (
    dp_optimizer_keras_vectorized as peer,
  )

  model = _keras_model(task.spec)
  optimizer = peer.VectorizedDPKerasSGDOptimizer(
    l2_norm_clip=1.0,
    noise_multiplier=1.0,
    num_microbatches=batch,
    learning_rate=0.1,
  )
  examples = _examples(task)
  inputs = np.asarray(examples.inputs[:batch])
  if inputs.ndim == 4:
    inputs = inputs.astype(np.float32) / 255
  targets = np.asarray(examples.targets[:batch]).astype(np.int32)

  @tf.function
  def step(inputs, targets):
    with tf.GradientTape() as tape:
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        targets, model(inputs)
      )
      if losses.shape.rank > 1:
        losses = tf.reduce_sum(losses, axis=1)
    optimizer.minimize(losses, model.trainable_variables, tape=tape)
    return tf.reduce_mean(losses)

  def measure() -> float:
    started = time.perf_counter()
    for _ in range(_STEPS.value):
      loss = step(inputs, targets)
    loss.numpy()
    return (time.perf_counter() - started) / _STEPS.value

  return measure


def _opacus(task, batch: int) -> Callable[[], float]:
  """Returns a function that measures the seconds of a step."""
  from bench import opacus_peer

  images, labels = (np.asarray(a[:batch]) for a in _examples(task))
  return opacus_peer.build_step(task.spec, images, labels, _STEPS.value)


def _task(name: str) -> sample_level_config.TaskDefaults:
  """Returns the settings of a data set, or of a residual network."""
  if name in sample_level_config.TASKS:
    return sample_level_config.TASKS[name]
  if not name.startswith('wrn-'):
    raise ValueError(
      f'work must be among {", ".join(sample_level_config.TASKS)}, or the name'
      f' of a residual network. Found {name!r}.'
    )
  task = sample_level_config.TASKS['cifar10']
  spec = models.wide_residual_net(name, task.spec.image_shape, 10)
  return dataclasses.replace(task, spec=spec)


def _measure_work(name: str) -> list[list[str]]:
  task = _task(name)
  batch = _BATCH_SIZE.value or task.batch_size
  measures = {}
  for dtype in _COMPUTE_DTYPE.value:
    for mirror in _MIRROR.value:
      for runs in map(int, _SIDE_BY_SIDE.value):
        title = f'ours, {dtype}'
        title += ', mirror step' if mirror == 'true' else ''
        title += f', {runs} side by side' if runs > 1 else ''
        measures[title] = _ours(task, batch, mirror == 'true', dtype, runs)
  if _PEER.value == 'tensorflow_privacy':
    measures['tensorflow-privacy'] = _tensorflow_privacy(task, batch)
  elif _PEER.value == 'opacus':
    if _MULTIPLICITY.value > 1:
      raise ValueError(
        '--augmentation_multiplicity must be 1 with --peer=opacus, which does'
        f' not support variations. Found {_MULTIPLICITY.value}.'
      )
    measures['Opacus'] = _opacus(task, batch)
  for measure in measures.values():
    measure()  # Compiles.
  seconds = {title: [] for title in measures}
  for _ in range(_CALLS.value):
    for title, measure in measures.items():
      seconds[title].append(measure())
  medians = {title: statistics.median(s) for title, s in seconds.items()}
  first = next(iter(medians.values()))
  return [
    [name, batch, title, f'{1000 * s:.2f}', f'{s / first:.2f}']
    for title, s in medians.items()
  ]


def main() -> None:
  """Measures and prints a table."""
  for name in _WORK.value:
    _task(name)
  print(f'{jax.devices()[0].device_kind}, JAX {jax.__version__}')
  rows = []
  for name in _WORK.value:
    for row in _measure_work(name):
      # Print at once, in case the program is interrupted.
      print(*row, flush=True)
      rows.append(row)
  header = ['work', 'batch', 'what', 'ms per step and run', 'times the first']
  print(tables.format_table(header, rows))


if __name__ == '__main__':
  cli.run(main)
