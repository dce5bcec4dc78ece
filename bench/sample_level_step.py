r"""Measures a DP-SGD step: ours and Opacus's.

    python -m bench.sample_level_step --work=emnist,cifar10 --batch_size=64
    python -m bench.sample_level_step --work=wrn-16-4 --batch_size=512 \
        --opacus --compute_dtype=float32,bfloat16
    python -m bench.sample_level_step --work=cifar10,emnist,wikitext2 \
        --mirror=false,true --compute_dtype=bfloat16 --steps=200

Batches are random numbers with the data's shape. Our steps run in one compiled
program, as in training, including Poisson batches and their padding. The peer
has batches of fixed size. Measurements alternate, so that other load on the
machine affects all of them alike.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Callable
import dataclasses
import time

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import jax as pda_jax
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.common import tables
from pda_fed.jax.sample_level import augmentation
from pda_fed.jax.sample_level import batches as batches_lib
from pda_fed.models import convolutional

from bench import timing

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
_OPACUS = flags.DEFINE_bool(
  'opacus', False, 'Also measure Opacus, which needs torch and opacus.'
)
_EXAMPLES = 2000
_MODELS = {
  'cifar10': convolutional.CIFAR10,
  'emnist': convolutional.EMNIST,
  'wikitext2': models.LanguageSpec(),
}


@dataclasses.dataclass(frozen=True)
class _Task:
  """A model, with the paper's batches."""

  spec: models.ModelSpec
  batch_size: int
  public_batch_size: int
  clips_mean: bool


def _examples(task: _Task) -> batches_lib.ExampleArrays:
  rng = np.random.default_rng(0)
  if isinstance(task.spec, models.LanguageSpec):
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
  steps = _STEPS.value
  rows, present = pda_jax.draw_batches(_plan(batch), range(steps), seed)
  public = None
  if mirror:
    rng = np.random.default_rng(seed)
    public = rng.integers(0, _EXAMPLES, (steps, task.public_batch_size))
  return pda_jax.StepInputs(
    round_num=np.arange(steps, dtype=np.int32),
    rows=rows,
    present=present,
    learning_rate=np.full(steps, 0.1, np.float32),
    epoch=np.zeros(steps, np.int32),
    public_rows=public,
    schedules={'alpha': np.full(steps, 0.9, np.float32)} if mirror else {},
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
  state = trainer.init(model.init(0))
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


def _opacus(task, batch: int) -> Callable[[], float]:
  """Returns a function that measures the seconds of a step."""
  from bench import opacus_peer

  images, labels = (np.asarray(a[:batch]) for a in _examples(task))
  return opacus_peer.build_step(task.spec, images, labels, _STEPS.value)


def _task(name: str) -> _Task:
  """Returns the work of a data set, or of a residual network."""
  if name not in _MODELS and not name.startswith('wrn-'):
    raise ValueError(
      f'work must be among {", ".join(_MODELS)}, or the name of a residual'
      f' network. Found {name!r}.'
    )
  defaults = runs_lib.RunSpec.for_data(name if name in _MODELS else 'cifar10')
  model = _MODELS.get(name) or models.wide_residual_net(name, (32, 32, 3), 10)
  return _Task(
    model,
    int(defaults.plan.expected_cohort),
    defaults.public.batch_size,
    defaults.server.mean_clip_norm is not None,
  )


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
  if _OPACUS.value:
    measures['Opacus'] = _opacus(task, batch)
  medians, _ = timing.in_turn(measures, _CALLS.value)
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
