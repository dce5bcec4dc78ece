r"""Trains with sample-level privacy: images, tables, text; DP-SGD and PDA-DPMD.

    python -m scripts.train_sample_level --method=pda --seed=0 \
        --output_dir=out/pda

trains on the handwritten digits that come with scikit-learn, in less than two
minutes. The data sets of the paper are read in the format of their authors:

    python -m scripts.train_sample_level --dataset=cifar10 --data_dir=data \
        --flagfile=scripts/presets/cifar10.flags --method=pda --seed=0 \
        --output_dir=out/cifar10

Defaults are the paper's for each of its data sets. --dataset=images reads your
own images, and --dataset=table your own tables; see docs/sample_level.md.
--runs_file trains many runs in one process, which share data and compiled
programs; each line of the file has the flags of a run. To resume a run that was
stopped, give the same command again.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Sequence
import dataclasses
import math
import pathlib
import shlex
import sys
from typing import Any, Optional
import warnings

from absl import flags
from absl.testing import flagsaver
from data_prep import sample_level
from pda_fed import errors
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.models import convolutional
from pda_fed.models import language
from pda_fed.models import residual
from pda_fed.runs import sample_level_config
from scripts.lib import host_flags
from scripts.lib import method_flags
from scripts.lib import pretraining_flags
from scripts.lib import run_flags

_DATASET = flags.DEFINE_enum(
  'dataset', 'digits', list(sample_level.DATASETS), 'The data set.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  'Folder of the data set. For --dataset=images and --dataset=table, the .npz'
  ' file.',
)
_PUBLIC_DATASET = flags.DEFINE_string(
  'public_dataset',
  None,
  'Text from another source to use as public data, such as WikiText-103: a'
  ' file of tokens, or the folder of one. All sequences of the data set are'
  ' then private.',
)
_PUBLIC_EXAMPLES = flags.DEFINE_integer(
  'public_examples',
  None,
  "Number of training examples that are public. Default: the paper's 2,000 for"
  ' cifar10, 27,918 for emnist and 1,951 for wikitext2; 144 for the digits.'
  ' Images and tables have no default: give a value, or put public examples'
  ' into the file.',
)
_VALIDATION_EXAMPLES = flags.DEFINE_integer(
  'validation_examples',
  None,
  'Number of private examples held out for validation, to choose settings.'
  ' Default: 0, and 144 for the digits. WikiText has its own validation data.',
)
_SPLIT_SEED = flags.DEFINE_integer(
  'split_seed',
  0,
  'Seed of the split into public and private examples.',
  lower_bound=0,
)
_VOCABULARY_SIZE = flags.DEFINE_integer(
  'vocabulary_size',
  8000,
  'Number of words in the vocabulary of a text, including the unknown word.',
)
_MODEL = flags.DEFINE_string(
  'model',
  None,
  'Model for images: wrn-DEPTH-WIDTH, such as wrn-16-4, a wide residual'
  " network with group normalization. Default: the paper's convolutional"
  ' network.',
)
_ACTIVATION = flags.DEFINE_enum(
  'activation',
  'tanh',
  ['tanh', 'relu'],
  'Activation function of models for images and tables.',
)
_DENSE_SIZES = flags.DEFINE_list(
  'dense_sizes',
  [],
  'With --dataset=table: units of the dense layers before the logits, such as'
  ' 64,32. Default: none, a linear model.',
)
_BATCH_SIZE = flags.DEFINE_float(
  'batch_size',
  None,
  'Expected number of private examples in a step (Poisson sampling).',
)
_EPOCHS = flags.DEFINE_float(
  'epochs', None, 'Number of epochs over the private examples.'
)
_CLIP_NORM = flags.DEFINE_float(
  'clip_norm', 1.0, "Bound on the norm of an example's gradient."
)
_LEARNING_RATE = flags.DEFINE_float(
  'learning_rate', None, 'Learning rate of SGD.'
)
_LEARNING_RATE_DECAY = flags.DEFINE_enum(
  'learning_rate_decay',
  'none',
  list(sample_level_config.LEARNING_RATE_DECAYS),
  'How the learning rate decays to 0 at the last step.',
)
_MOMENTUM = flags.DEFINE_float('momentum', 0.0, 'Momentum of SGD.')
_MEAN_CLIP = flags.DEFINE_bool(
  'mean_clip',
  None,
  'Whether to clip the noised mean as well. Default: yes for images (as in the'
  ' paper) and tables, no for text.',
)
_PUBLIC_BATCH_SIZE = flags.DEFINE_integer(
  'public_batch_size', None, 'Number of public examples in a step.'
)
_PUBLIC_UPDATE = flags.DEFINE_enum(
  'public_update',
  'gradient',
  ['gradient', 'clipped'],
  "gradient: the gradient of a public batch's mean loss. clipped: the mean of"
  " its examples' gradients, each clipped like a private one.",
)
_AUGMENTATION = flags.DEFINE_enum(
  'augmentation',
  'none',
  ['none', 'public', 'all'],
  'Which images to flip and crop at random in private training.',
)
_MULTIPLICITY = flags.DEFINE_integer(
  'augmentation_multiplicity',
  1,
  'With --augmentation=all: number of variations of each private image. The'
  ' gradient is averaged over them before it is clipped.',
)
_AVERAGING = flags.DEFINE_float(
  'averaging',
  0.0,
  'Decay of a moving average of the weights, which becomes the result. 0'
  ' means no averaging.',
)
_COMPUTE_DTYPE = flags.DEFINE_enum(
  'compute_dtype',
  'float32',
  ['float32', 'bfloat16'],
  'Data type of the forward and backward passes. Norms, sums and noise are'
  ' float32.',
)
_MICROBATCH_SIZE = flags.DEFINE_integer(
  'microbatch_size',
  None,
  'Examples whose gradients are computed at a time. Default: all.',
)
_TEST_CURVE = flags.DEFINE_bool(
  'test_curve',
  False,
  "Whether to add test metrics to metrics.csv, as in the paper's figures.",
)
_RUNS_FILE = flags.DEFINE_string(
  'runs_file',
  None,
  'File of runs, one per line. The flags of a line are added to those of the'
  ' command line.',
)
_SIDE_BY_SIDE = flags.DEFINE_integer(
  'side_by_side',
  1,
  'Maximum number of runs of --runs_file to compute at once, if they differ'
  ' only in seeds, learning rates, alpha or noise. For small models on a GPU.',
  lower_bound=1,
)
flags.adopt_module_key_flags(pretraining_flags)
flags.adopt_module_key_flags(run_flags)

# Enough rows for a curve.
_EVALUATIONS = 20
_DIGITS_VALIDATION = 144


def _or(value: Any, default: Any) -> Any:
  return default if value is None else value


def _dense_sizes() -> tuple[int, ...]:
  sizes = _DENSE_SIZES.value
  is_whole = all(size.isdecimal() for size in sizes)
  if not is_whole or (sizes and _DATASET.value != 'table'):
    raise ValueError(
      '--dense_sizes must be positive integers, and only given for'
      f' --dataset=table. Found {",".join(sizes):.80} for {_DATASET.value}.'
    )
  return tuple(map(int, sizes))


def _spec(
  task: sample_level_config.TaskDefaults, data: sample_level.SampleLevelData
) -> sample_level_config.Spec:
  dense_sizes = _dense_sizes()
  shape = data.train.inputs.shape[1:]
  if _MODEL.value is not None:
    if data.is_text or len(shape) != 3:
      raise ValueError(
        f'--model must not be given for {data.name}, which has no images. Found'
        f' {_MODEL.value}.'
      )
    if flags.FLAGS['activation'].present:
      raise ValueError(
        '--activation must not be given with --model: residual networks use'
        f' ReLU. Found {_ACTIVATION.value}.'
      )
    return residual.wide_residual_net(_MODEL.value, shape, data.num_classes)
  if data.is_text:
    return dataclasses.replace(task.spec, vocabulary_size=data.num_classes)
  spec = task.spec
  if data.name == 'images':
    spec = convolutional.for_images(shape, data.num_classes)
  elif data.name == 'table':
    spec = convolutional.linear(shape, data.num_classes)
    spec = dataclasses.replace(spec, dense_sizes=dense_sizes)
  return dataclasses.replace(spec, activation=_ACTIVATION.value)


def _split_config(
  task: sample_level_config.TaskDefaults, data: sample_level.SampleLevelData
) -> sample_level.SplitConfig:
  public_examples = _or(_PUBLIC_EXAMPLES.value, task.public_examples)
  if _PUBLIC_DATASET.value is not None or data.public is not None:
    if _PUBLIC_EXAMPLES.value is not None:
      raise ValueError(
        '--public_examples must not be given with public data from another'
        ' source (--public_dataset, or in the file): all examples of the data'
        f' set are then private. Found {_PUBLIC_EXAMPLES.value}.'
      )
    public_examples = None
  elif public_examples is None:
    raise ValueError(
      '--public_examples must be given, the number of training examples that'
      f' are public: {_DATA_DIR.value} holds no public examples.'
    )
  digits = _DIGITS_VALIDATION if _DATASET.value == 'digits' else 0
  return sample_level.SplitConfig(
    public_examples=public_examples,
    validation_examples=_or(_VALIDATION_EXAMPLES.value, digits),
    seed=_SPLIT_SEED.value,
  )


def _load(task: sample_level_config.TaskDefaults):
  """Returns the data, the split settings and the split."""
  # It imports JAX.
  from pda_fed.runs.engines import jax_sample_level

  is_text = isinstance(task.spec, language.LanguageSpec)
  size = _VOCABULARY_SIZE.value if is_text else None
  data = jax_sample_level.load_data(_DATASET.value, _DATA_DIR.value, size)
  config = _split_config(task, data)
  split = jax_sample_level.load_split(data, config, _PUBLIC_DATASET.value)
  return data, config, split


def _warn_of_rounds_without_private_data(
  config: sample_level_config.SampleLevelConfig,
) -> None:
  """Warns of rounds that spend epsilon without using private data."""
  if 'alpha' not in config.method.schedules:
    return
  rounds, epoch = config.plan.rounds, config.plan.rounds_per_epoch
  # alpha_t is constant within an epoch.
  firsts = range(0, rounds, epoch)
  alphas = [config.schedules(range(t, t + 1))['alpha'][0] for t in firsts]
  unused = alphas.count(0)
  if unused:
    warnings.warn(
      f'alpha_t is 0 in {unused:,} of {len(firsts):,} epochs: they only use'
      ' public data, but still count for epsilon.',
      stacklevel=2,
    )


def _public_clip_norm() -> Optional[float]:
  """Returns the bound on the public gradient. The clip norm is constant."""
  found = run_flags.public_clip_norm()
  return _CLIP_NORM.value if found == 'private' else found


def _config(
  given: Optional[Sequence[str]] = None,
) -> tuple[sample_level_config.SampleLevelConfig, dict[str, Any]]:
  """Returns the settings of the flags, and more entries for config.json."""
  task = sample_level_config.TASKS[_DATASET.value]
  data, split_config, split = _load(task)
  batch = _or(_BATCH_SIZE.value, task.batch_size)
  epochs = _or(_EPOCHS.value, task.epochs)
  if not 0 < epochs < math.inf:
    raise ValueError(f'epochs must be positive and finite. Found {epochs:g}.')
  population = len(split.private)
  if not 0 < batch <= population:
    raise ValueError(
      f'batch_size must be in (0, {population}], the number of private'
      f' examples. Found {batch:g}.'
    )
  plan = run_flags.plan_with_noise(
    task.noise_multiplier,
    default_delta=task.delta,
    population=population,
    expected_cohort=batch,
    rounds=max(1, int(epochs * population // batch)),
    clip_norm=_CLIP_NORM.value,
    unit=data.unit,
  )
  epoch = plan.rounds_per_epoch
  clips_mean = _or(_MEAN_CLIP.value, task.clips_mean)
  config = sample_level_config.SampleLevelConfig(
    **run_flags.loop_settings(
      pretraining_flags.changed(task.pretraining),
      rounds_per_dispatch=epoch,
      rounds_per_evaluation=max(1, round(epochs / _EVALUATIONS)) * epoch,
    ),
    dataset=_DATASET.value,
    data_dir=_DATA_DIR.value,
    data_hash=sample_level.data_hash(data, split),
    public_dataset=_PUBLIC_DATASET.value,
    engine='jax',
    plan=plan,
    split=split_config,
    spec=_spec(task, data),
    method=method_flags.build(schedules.cosine(task.K), epochs, given),
    learning_rate=_or(_LEARNING_RATE.value, task.learning_rate),
    learning_rate_decay=_LEARNING_RATE_DECAY.value,
    momentum=_MOMENTUM.value,
    mean_clip_norm=_CLIP_NORM.value if clips_mean else None,
    public_batch_size=_or(_PUBLIC_BATCH_SIZE.value, task.public_batch_size),
    public_update=_PUBLIC_UPDATE.value,
    public_clip_norm=_public_clip_norm(),
    augmentation=_AUGMENTATION.value,
    augmentation_multiplicity=_MULTIPLICITY.value,
    averaging=_AVERAGING.value,
    compute_dtype=_COMPUTE_DTYPE.value,
    microbatch_size=_MICROBATCH_SIZE.value,
    test_curve=_TEST_CURVE.value,
  )
  _warn_of_rounds_without_private_data(config)
  sizes = {
    name: len(getattr(split, name) or ())
    for name in ('private', 'public', 'validation', 'test')
  }
  caveats = list(data.caveats)
  if config.split.validation_examples:
    caveats.append(
      f'{sizes["validation"]:,} validation examples were taken from the'
      ' private ones. They are not trained on, and epsilon does not cover the'
      ' validation metrics.'
    )
  if _PUBLIC_DATASET.value is not None:
    caveats.append(
      'Public sequences that also occur in the private text were left out.'
      ' Which ones are left reveals something about private sequences, and'
      ' epsilon does not cover it.'
    )
  return config, {'data': {'examples': sizes}, 'caveats': caveats}


def _read_run(path: pathlib.Path, line: Sequence[str]):
  """Returns config, more entries of config.json and folder of a line."""
  with flagsaver.flagsaver():
    try:
      rest = flags.FLAGS([sys.argv[0], *cli.with_presets(line)])[1:]
      if rest:
        raise ValueError(f'unexpected argument {rest[0]!r}')
      if not run_flags.OUTPUT_DIR.value:
        raise ValueError('--output_dir must be given')
      return *_config(line), run_flags.OUTPUT_DIR.value
    except (flags.Error, ValueError) as e:
      raise ValueError(f'{path}, {shlex.join(line)}: {e}') from e


def _run_many(path: pathlib.Path) -> None:
  """Makes the runs of a file, one after another or side by side."""
  # It imports JAX.
  from pda_fed.runs.engines import side_by_side

  lines = cli.read_command_lines(path)
  for line in lines:  # Before flagsaver, which would remove them.
    method_flags.define_named(cli.expanded(line), str(path))
  runs = [_read_run(path, line) for line in lines]
  folders = [pathlib.Path(folder).resolve() for *_, folder in runs]
  for folder in folders:
    if folders.count(folder) > 1:
      raise ValueError(
        f'{path} must name each --output_dir once. Found {folder} more than'
        ' once.'
      )
  # The other runs are finished, or resume from a checkpoint on their own.
  new = [
    config
    for (config, *_), folder in zip(runs, folders, strict=True)
    if runs_lib.RunFolder(folder).is_new()
  ]
  together = side_by_side.open_engines(new, _SIDE_BY_SIDE.value)
  exit_codes = []
  for i, (line, (config, about, output_dir)) in enumerate(
    zip(lines, runs, strict=True)
  ):
    print(f'[{i + 1}/{len(runs)}] {output_dir}', file=sys.stderr, flush=True)
    is_new = any(config is other for other in new)
    open_engine = together if is_new else runs_lib.open_engine
    with flagsaver.flagsaver():
      flags.FLAGS([sys.argv[0], *cli.with_presets(line)])
      try:
        run_flags.train(config, open_engine, about)
      except errors.StoppedError:
        raise
      except errors.PdaFedError as e:
        exit_codes.append(e.exit_code)
        cli.say_error(f'{output_dir}: {e}')
  if exit_codes:
    code = exit_codes[0] if len(set(exit_codes)) == 1 else 1
    cli.fail(f'{len(exit_codes)} of {len(runs)} runs failed.', exit_code=code)


def main() -> None:
  """Runs with the flags' settings."""
  if _RUNS_FILE.value is not None:
    if run_flags.DRY_RUN.value:
      raise ValueError('--dry_run must not be given with --runs_file.')
    if host_flags.DISTRIBUTED.value:
      raise ValueError('--distributed must not be given with --runs_file.')
    _run_many(pathlib.Path(_RUNS_FILE.value))
    return
  run_flags.require(run_flags.OUTPUT_DIR)
  config, about = _config()
  run_flags.run(config, runs_lib.open_engine, about)


if __name__ == '__main__':
  cli.run(main)
