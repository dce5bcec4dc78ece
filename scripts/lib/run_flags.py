"""Flags that all training binaries share, and what they have in common."""

import dataclasses
import math
import pathlib
from typing import Any, Optional, Union
import warnings

from absl import flags
from pda_fed import audit
from pda_fed import experiments
from pda_fed import privacy
from pda_fed.common import tables
from pda_fed.common import validate
from pda_fed.experiments import epsilons
from pda_fed.experiments import overview
from scripts.lib import audit_flags
from scripts.lib import host_flags
from scripts.lib import method_flags

_MAX_ROWS = 12
_DEFAULT_DELTA = 1e-6
# Flags that have no value leave these, or what a task has in their place.
_PRETRAINING = experiments.Pretraining()

OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'The folder of the run: new, or that of a run to go on with.',
)
_WARM_START_DIR = flags.DEFINE_string(
  'warm_start_dir',
  None,
  'Where pre-trained models are kept; by default warm_start beside'
  ' --output_dir.',
)
SEED = flags.DEFINE_integer(
  'seed',
  None,
  'Makes the run repeatable, its noise included, for whoever knows the seed. A'
  ' run that is meant to be private takes none.',
  lower_bound=0,
  upper_bound=2**63 - 1,
)
_NOISE_MULTIPLIER = flags.DEFINE_float(
  'noise_multiplier',
  None,
  'sigma, the standard deviation of the noise over the clip.',
)
_TARGET_EPSILON = flags.DEFINE_float(
  'target_epsilon',
  None,
  'Instead of --noise_multiplier: take the smallest noise that keeps it.',
)
_DELTA = flags.DEFINE_float(
  'delta',
  None,
  f'Delta of (epsilon, delta). Default: {_DEFAULT_DELTA:g}; in'
  ' train_sample_level that of the data set.',
)
_PUBLIC_CLIP_NORM = flags.DEFINE_string(
  'public_clip_norm',
  'private',
  "Bound on the norm of the public update: a number; 'private', the clip of"
  " private updates (default); or 'none', as in the paper.",
)
_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
  'rounds_per_evaluation',
  None,
  'Rounds between evaluations. Default:'
  f' {experiments.RunConfig.rounds_per_evaluation}; in train_sample_level about'
  ' 20 evaluations.',
  lower_bound=1,
)
_ROUNDS_PER_CHECKPOINT = flags.DEFINE_integer(
  'rounds_per_checkpoint',
  None,
  'Rounds between checkpoints; by default at each evaluation.',
  lower_bound=1,
)
_CHECKPOINTS_KEPT = flags.DEFINE_integer(
  'checkpoints_kept', 3, 'Older checkpoints are removed.', lower_bound=1
)
_MAX_VALIDATION_USERS = flags.DEFINE_integer(
  'max_validation_users', None, 'The most of an evaluation; default: all.'
)
_MAX_TEST_USERS = flags.DEFINE_integer(
  'max_test_users', None, 'The most of the final test; default: all.'
)
_FINAL_TEST = flags.DEFINE_bool(
  'final_test',
  True,
  'Whether the test is done at the end. It can be asked for later if there is a'
  ' --seed: without one, a run that has ended keeps nothing secret.',
)
DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  'Check flags, data and --output_dir, show what the run would do and what'
  ' epsilon it would have, and end without writing anything.',
)
_ROUNDS_PER_DISPATCH = flags.DEFINE_integer(
  'rounds_per_dispatch',
  None,
  'The most rounds that an engine runs at a time. Default: 1; in'
  ' train_sample_level an epoch.',
)


def _default(name: str) -> str:
  value = getattr(_PRETRAINING, name)
  return f' Default: {value:g}; in train_sample_level that of the data set.'


_PRETRAINING_LEARNING_RATE = flags.DEFINE_float(
  'pretraining_learning_rate',
  None,
  'Of the warm start.' + _default('learning_rate'),
)
_PRETRAINING_BATCH_SIZE = flags.DEFINE_integer(
  'pretraining_batch_size',
  None,
  'Examples in a step of the warm start.' + _default('batch_size'),
)
_PRETRAINING_PATIENCE = flags.DEFINE_integer(
  'pretraining_patience',
  None,
  'Epochs without a better loss on held-out public data after which it stops.'
  + _default('patience'),
)
_PRETRAINING_MAX_EPOCHS = flags.DEFINE_integer(
  'pretraining_max_epochs',
  None,
  'After which the warm start stops anyway.' + _default('max_epochs'),
)
_PRETRAINING_SEED = flags.DEFINE_integer(
  'pretraining_seed',
  None,
  "Of the warm start; by default the run's seed. One for all seeds shares one"
  ' warm start between them.',
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
  default_pretraining: experiments.Pretraining = _PRETRAINING, **defaults: Any
) -> dict[str, Any]:
  """Returns the fields of a `RunConfig` that these flags fill.

  Args:
    default_pretraining: A task's, where a flag is not given.
    **defaults: Likewise of other fields.
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
  """Returns a plan with the noise that the flags give, or keep to.

  Args:
    default_noise_multiplier: Without a flag.
    default_delta: Likewise.
    **plan: The other fields.
  """
  plan['delta'] = default_delta if _DELTA.value is None else _DELTA.value
  noise, target = _NOISE_MULTIPLIER.value, _TARGET_EPSILON.value
  if target is None:
    noise = default_noise_multiplier if noise is None else noise
    return privacy.PrivacyPlan(**plan, noise_multiplier=noise)
  if noise is not None:
    raise ValueError(
      '--noise_multiplier must not be given with --target_epsilon, which solves'
      f' for it. Found {noise!r}.'
    )
  try:
    with warnings.catch_warnings():  # One about delta is for the result.
      warnings.simplefilter('ignore')
      # Adaptive clipping costs the same, but does not allow any noise.
      fixed = {**plan, 'adaptive_clipping': None}
      start = privacy.PrivacyPlan(**fixed, noise_multiplier=1.0)
      accountant = privacy.tightest_accountant(start)
      found = privacy.calibrate(start, target, accountant)
  except ModuleNotFoundError as e:
    raise ValueError(
      f'--target_epsilon needs {e.name}, which is not installed: solve with'
      ' scripts.privacy elsewhere, and give --noise_multiplier.'
    ) from e
  return privacy.PrivacyPlan(**plan, noise_multiplier=found.noise_multiplier)


def _cautions(plan: privacy.PrivacyPlan) -> list[str]:
  """Returns a warning if nobody chose the noise."""
  if _NOISE_MULTIPLIER.value is not None or _TARGET_EPSILON.value is not None:
    return []
  return [
    f'noise_multiplier was not given: the default, {plan.noise_multiplier:g},'
    ' is used. Give --noise_multiplier or --target_epsilon.'
  ]


def _num_weights(config: experiments.RunConfig) -> Optional[int]:
  """Returns the number of the model's weights; None for an unknown model."""
  spec = getattr(config, 'spec', None)
  return spec and sum(math.prod(shape) for shape in spec.jax_model().shapes)


def _show_plan(
  config: experiments.RunConfig, about: dict[str, Any], change_engine=False
) -> None:
  """Checks the output folder and prints what a run would do."""
  folder = experiments.RunFolder(pathlib.Path(require(OUTPUT_DIR)))
  folder.check(config, change_engine=change_engine)
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


def run(
  config: experiments.RunConfig, open_engine, about: dict[str, Any], **options
) -> None:
  """Trains and prints the result; with --dry_run, shows the plan alone.

  Args:
    config: The run's settings.
    open_engine: Opens the engine of (config, seeds).
    about: What else config.json should say.
    **options: See `experiments.train`.
  """
  place = host_flags.settings()
  if DRY_RUN.value:
    _show_plan(config, about, **options)
    return

  def lead(open_engine) -> None:
    print_result(train(config, open_engine, about, **options))

  if place is None:
    lead(open_engine)
  else:
    host_flags.run(place, config, open_engine, lead)


def train(
  config: experiments.RunConfig, open_engine, about: dict[str, Any], **options
) -> experiments.RunFolder:
  """Runs the loop with progress, in the folder that the flags name."""
  folder = experiments.RunFolder(pathlib.Path(require(OUTPUT_DIR)))
  folder.check(config, **options)  # Before anything is printed.
  progress = experiments.create_progress()
  progress.cautions = _cautions(config.plan)
  return experiments.train(
    config,
    open_engine,
    require(OUTPUT_DIR),
    warm_start_dir=_WARM_START_DIR.value,
    about=about,
    progress=progress,
    **options,
  )


def _thinned(rows: list) -> list:
  """At most about a dozen rows, the first and the last among them."""
  step = -(-len(rows) // _MAX_ROWS)
  return [*rows[:-1:step], rows[-1]] if len(rows) > 1 else rows


def print_result(folder: experiments.RunFolder) -> None:
  """Prints rows of metrics.csv, the test and the guarantee."""
  config, rows, result = folder.read_finished()
  shown = {'loss': '{:.3f}', 'accuracy': '{:.2%}', 'perplexity': '{:.2f}'}
  if any(row.get('diverged_clients') for row in rows):
    shown['diverged_clients'] = '{:.1f}'
    rows[0]['diverged_clients'] = 0.0  # Before the first round nobody trains.
  # A run without validation data has the test alone.
  known = {**rows[-1], **(result['test'] or {})}
  shown = {n: form for n, form in shown.items() if known.get(n) is not None}

  def cells(values: dict[str, float]) -> list[str]:
    # Absent: not evaluated. None: JSON's null, for what is no number.
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
    print('Epsilon needs dp_accounting: scripts.privacy --fill adds it.')
  else:
    print(plan.describe(rows[-1]['epsilon']))
  for line in (config['noise'], *config.get('caveats', [])):
    print(line)
  if result.get('audit'):
    print()
    for line in audit.describe(result['audit']):
      print(line)
  print(f'Wrote {folder.path}.')
