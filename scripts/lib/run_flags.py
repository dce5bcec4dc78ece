"""Flags and functions that all training binaries share."""

import dataclasses
import math
import pathlib
from typing import Any, Optional, Union
import warnings

from absl import flags
from pda_fed import audit
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.common import tables
from pda_fed.common import validate
from pda_fed.runs import epsilons
from pda_fed.runs import overview
from scripts.lib import audit_flags
from scripts.lib import host_flags
from scripts.lib import method_flags

_MAX_ROWS = 12
_DEFAULT_DELTA = 1e-6
# Used where neither a flag nor the task sets a value.
_PRETRAINING = runs_lib.Pretraining()

OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'Folder of the run: a new one, or that of a run to resume.',
)
_WARM_START_DIR = flags.DEFINE_string(
  'warm_start_dir',
  None,
  'Folder of pre-trained models. Default: warm_start beside --output_dir.',
)
SEED = flags.DEFINE_integer(
  'seed',
  None,
  'Random seed. It makes the run repeatable, including its noise, for anyone'
  ' who knows the seed. Leave it out if the run should be private.',
  lower_bound=0,
  upper_bound=2**63 - 1,
)
_NOISE_MULTIPLIER = flags.DEFINE_float(
  'noise_multiplier',
  None,
  'sigma, the standard deviation of the noise divided by the clip norm.',
)
_TARGET_EPSILON = flags.DEFINE_float(
  'target_epsilon',
  None,
  'Use the smallest noise that keeps epsilon at or below this value, instead'
  ' of --noise_multiplier.',
)
_DELTA = flags.DEFINE_float(
  'delta',
  None,
  f'The delta of the (epsilon, delta) guarantee. Default: {_DEFAULT_DELTA:g};'
  ' in train_sample_level, that of the data set.',
)
_PUBLIC_CLIP_NORM = flags.DEFINE_string(
  'public_clip_norm',
  'private',
  "Bound on the norm of the public update: a number; 'private', the same as"
  " for private updates (default); or 'none', as in the paper.",
)
_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
  'rounds_per_evaluation',
  None,
  'Rounds between evaluations. Default:'
  f' {runs_lib.RunConfig.rounds_per_evaluation}; in train_sample_level,'
  ' chosen to give about 20 evaluations.',
  lower_bound=1,
)
_ROUNDS_PER_CHECKPOINT = flags.DEFINE_integer(
  'rounds_per_checkpoint',
  None,
  'Rounds between checkpoints. Default: a checkpoint at each evaluation.',
  lower_bound=1,
)
_CHECKPOINTS_KEPT = flags.DEFINE_integer(
  'checkpoints_kept',
  3,
  'Number of checkpoints to keep. Older ones are removed.',
  lower_bound=1,
)
_MAX_VALIDATION_USERS = flags.DEFINE_integer(
  'max_validation_users',
  None,
  'Maximum number of users in an evaluation. Default: all.',
)
_MAX_TEST_USERS = flags.DEFINE_integer(
  'max_test_users',
  None,
  'Maximum number of users in the final test. Default: all.',
)
_FINAL_TEST = flags.DEFINE_bool(
  'final_test',
  True,
  'Whether to evaluate on the test data at the end. A finished run with a'
  ' --seed can still be tested later. Without a seed it cannot: its secret'
  ' seeds are removed when it ends.',
)
DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  'Check the flags, the data and --output_dir, print the plan of the run and'
  ' its epsilon, and exit without writing anything.',
)
_ROUNDS_PER_DISPATCH = flags.DEFINE_integer(
  'rounds_per_dispatch',
  None,
  'Maximum number of rounds that the engine runs per call. Default: 1; in'
  ' train_sample_level, one epoch.',
)


def _default(name: str) -> str:
  value = getattr(_PRETRAINING, name)
  return f' Default: {value:g}; in train_sample_level, that of the data set.'


_PRETRAINING_LEARNING_RATE = flags.DEFINE_float(
  'pretraining_learning_rate',
  None,
  'Learning rate of the warm start.' + _default('learning_rate'),
)
_PRETRAINING_BATCH_SIZE = flags.DEFINE_integer(
  'pretraining_batch_size',
  None,
  'Batch size of the warm start, in examples.' + _default('batch_size'),
)
_PRETRAINING_PATIENCE = flags.DEFINE_integer(
  'pretraining_patience',
  None,
  'Stop the warm start after this many epochs without a better loss on'
  ' held-out public data.' + _default('patience'),
)
_PRETRAINING_MAX_EPOCHS = flags.DEFINE_integer(
  'pretraining_max_epochs',
  None,
  'Maximum number of epochs of the warm start.' + _default('max_epochs'),
)
_PRETRAINING_SEED = flags.DEFINE_integer(
  'pretraining_seed',
  None,
  "Seed of the warm start. Default: the run's seed. Runs with different seeds"
  ' that set the same value here share one warm start.',
)


flags.adopt_module_key_flags(audit_flags)
flags.adopt_module_key_flags(host_flags)
flags.adopt_module_key_flags(method_flags)


def require(flag: flags.FlagHolder) -> Any:
  """Returns a flag's value, which must be given."""
  if not flag.value:
    raise ValueError(f'--{flag.name} must be given.')
  return flag.value


def _given(**values: Any) -> dict[str, Any]:
  return {name: value for name, value in values.items() if value is not None}


def public_clip_norm() -> Union[float, str, None]:
  """Returns --public_clip_norm: a number, 'private', or None."""
  text = _PUBLIC_CLIP_NORM.value
  if text in ('private', 'none'):
    return None if text == 'none' else text
  try:
    number = float(text)
  except ValueError as e:
    raise ValueError(
      f"public_clip_norm must be a number, 'private' or 'none'. Found {text!r}."
    ) from e
  validate.positive(public_clip_norm=number)
  return number


def loop_settings(
  default_pretraining: runs_lib.Pretraining = _PRETRAINING, **defaults: Any
) -> dict[str, Any]:
  """Returns the fields of a `RunConfig` that these flags fill.

  Args:
    default_pretraining: Values of the pre-training settings that no flag sets.
    **defaults: Values of other fields that no flag sets.
  """
  pretraining = dataclasses.replace(
    default_pretraining,
    **_given(
      learning_rate=_PRETRAINING_LEARNING_RATE.value,
      batch_size=_PRETRAINING_BATCH_SIZE.value,
      patience=_PRETRAINING_PATIENCE.value,
      max_epochs=_PRETRAINING_MAX_EPOCHS.value,
      seed=_PRETRAINING_SEED.value,
    ),
  )
  return defaults | _given(
    pretraining=pretraining,
    audit=audit_flags.build(),
    seed=SEED.value,
    rounds_per_evaluation=_ROUNDS_PER_EVALUATION.value,
    rounds_per_checkpoint=_ROUNDS_PER_CHECKPOINT.value,
    checkpoints_kept=_CHECKPOINTS_KEPT.value,
    max_validation_users=_MAX_VALIDATION_USERS.value,
    max_test_users=_MAX_TEST_USERS.value,
    final_test=_FINAL_TEST.value,
    rounds_per_dispatch=_ROUNDS_PER_DISPATCH.value,
  )


def plan_with_noise(
  default_noise_multiplier: float,
  *,
  default_delta: float = _DEFAULT_DELTA,
  **plan,
) -> privacy.PrivacyPlan:
  """Returns a plan with the noise of the flags, given or solved for.

  Args:
    default_noise_multiplier: Noise multiplier if no flag sets it.
    default_delta: delta if no flag sets it.
    **plan: The other fields of the plan.
  """
  plan['delta'] = default_delta if _DELTA.value is None else _DELTA.value
  noise, target = _NOISE_MULTIPLIER.value, _TARGET_EPSILON.value
  if target is None:
    noise = default_noise_multiplier if noise is None else noise
    return privacy.PrivacyPlan(**plan, noise_multiplier=noise)
  if noise is not None:
    raise ValueError(
      '--noise_multiplier must not be given with --target_epsilon, which'
      f' solves for it. Found {noise!r}, given or from a --flagfile.'
    )
  try:
    return privacy.PrivacyPlan.for_epsilon(target, **plan)
  except ModuleNotFoundError as e:
    raise ValueError(
      f'--target_epsilon needs {e.name}, which is not installed. Solve for the'
      ' noise with scripts.privacy on another machine, and give'
      ' --noise_multiplier.'
    ) from e


def _cautions(plan: privacy.PrivacyPlan) -> list[str]:
  """Returns a warning if no flag sets the noise."""
  if _NOISE_MULTIPLIER.value is not None or _TARGET_EPSILON.value is not None:
    return []
  return [
    'noise_multiplier was not given: using the default,'
    f' {plan.noise_multiplier:g}. Give --noise_multiplier or --target_epsilon.'
  ]


def _num_weights(config: runs_lib.RunConfig) -> Optional[int]:
  """Returns the number of the model's weights; None for an unknown model."""
  spec = getattr(config, 'spec', None)
  return spec and sum(math.prod(shape) for shape in spec.jax_model().shapes)


def _show_plan(config: runs_lib.RunConfig, about: dict[str, Any]) -> None:
  """Checks the output folder and prints the plan of a run."""
  folder = runs_lib.RunFolder(pathlib.Path(require(OUTPUT_DIR)))
  folder.check(config)
  spent = epsilons.spent(config.plan, [config.plan.rounds])
  epsilon = spent and spent[config.plan.rounds]
  sizes = next(iter(about['data'].values()))
  num_weights = _num_weights(config)
  lines = overview.describe(
    config, epsilon, sizes=sizes, num_weights=num_weights
  )
  print('\n'.join(lines))
  cautions = overview.cautions(config.plan, epsilon, num_weights)
  for caution in (*_cautions(config.plan), *cautions):
    warnings.warn(caution, stacklevel=2)


def run(config: runs_lib.RunConfig, open_engine, about: dict[str, Any]) -> None:
  """Trains and prints the result; with --dry_run, only prints the plan.

  Args:
    config: The run's settings.
    open_engine: Function of (config, seeds) that opens the engine.
    about: More entries for config.json.
  """
  place = host_flags.settings()
  if DRY_RUN.value:
    _show_plan(config, about)
    return

  def lead(open_engine) -> None:
    print_result(train(config, open_engine, about))

  if place is None:
    lead(open_engine)
  else:
    host_flags.run(place, config, open_engine, lead)


def train(
  config: runs_lib.RunConfig, open_engine, about: dict[str, Any], **options
) -> runs_lib.RunFolder:
  """Trains in the folder of the flags and shows progress."""
  folder = runs_lib.RunFolder(pathlib.Path(require(OUTPUT_DIR)))
  folder.check(config, **options)  # Before anything is printed.
  progress = runs_lib.create_progress()
  progress.cautions = _cautions(config.plan)
  return runs_lib.train(
    config,
    open_engine,
    require(OUTPUT_DIR),
    warm_start_dir=_WARM_START_DIR.value,
    about=about,
    progress=progress,
    **options,
  )


def _thinned(rows: list) -> list:
  """Returns about a dozen rows, including the first and the last."""
  step = -(-len(rows) // _MAX_ROWS)
  return [*rows[:-1:step], rows[-1]] if len(rows) > 1 else rows


def print_result(folder: runs_lib.RunFolder) -> None:
  """Prints rows of metrics.csv, the test metrics and the guarantee."""
  config, rows, result = folder.read_finished()
  shown = {'loss': '{:.3f}', 'accuracy': '{:.2%}', 'perplexity': '{:.2f}'}
  if any(row.get('diverged_clients') for row in rows):
    shown['diverged_clients'] = '{:.1f}'
    rows[0]['diverged_clients'] = 0.0  # No client has trained yet.
  # A run without validation data only has test metrics.
  known = {**rows[-1], **(result['test'] or {})}
  shown = {n: form for n, form in shown.items() if known.get(n) is not None}

  def cells(values: dict[str, float]) -> list[str]:
    # Absent: not evaluated. None: null in JSON, a value that is not finite.
    found = {n: values.get(n, '') for n in shown}
    return [
      form.format(math.nan if found[n] is None else found[n])
      if found[n] != ''
      else ''
      for n, form in shown.items()
    ]

  def spent(row) -> str:
    epsilon = row['epsilon']
    return '?' if epsilon is None else privacy.round_up(epsilon)

  table = [[r['round'], spent(r), *cells(r)] for r in _thinned(rows)]
  if result['test'] is not None:
    table.append(['test', table[-1][1], *cells(result['test'])])
  print(tables.format_table(['round', 'epsilon', *shown], table))
  plan = folder.read_plan()
  print()
  if result['epsilon'] is None and plan.noise_multiplier:
    print(
      'dp_accounting is not installed: add epsilon with scripts.privacy --fill.'
    )
  else:
    print(plan.statement(rows[-1]['epsilon']))
  for line in (config['noise'], *config.get('caveats', [])):
    print(line)
  if result.get('audit'):
    print()
    for line in audit.describe(result['audit']):
      print(line)
  print(f'Wrote {folder.path}.')
