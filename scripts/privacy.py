r"""Computes epsilon, or the noise or rounds for a target epsilon.

    python -m scripts.privacy --preset=stackoverflow
    python -m scripts.privacy --population=10000 --expected_cohort=100 \
        --rounds=500 --delta=1e-5 --target_epsilon=4
    python -m scripts.privacy --preset=cifar10 --target_epsilon=2 \
        --solve_rounds --json
    python -m scripts.privacy --data_dir=data/stackexchange \
        --expected_cohort=100 --rounds=100 --delta=1e-4 --noise_multiplier=1 \
        --private_search=poisson --search_runs=20 --num_searches=3
    python -m scripts.privacy --fill=out/comparison

A preset is a plan of the paper; other flags change it. --target_epsilon solves
for the noise or, with --solve_rounds, for the number of rounds.
--private_search also shows the epsilon of a search that releases its best run.
--fill adds epsilon to the outputs of runs on machines without dp_accounting.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import dataclasses
import json
import math
from typing import Any, Optional

from absl import flags
import data_prep
import numpy as np
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.compare import options as options_lib
from pda_fed.compare import private_search
from pda_fed.privacy import presets
from pda_fed.runs import overview
from pda_fed.runs import training
from scripts.lib import spec_flags

_PRESET = flags.DEFINE_enum(
  'preset', None, list(presets.PRESETS), 'A plan of the paper to start from.'
)
_POPULATION = flags.DEFINE_integer(
  'population',
  None,
  'N, the number of private users. Default: the number in --data_dir.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Folder of the users that prepare_users wrote.'
)
_SOLVE_ROUNDS = flags.DEFINE_bool(
  'solve_rounds',
  False,
  'With --target_epsilon: solve for the number of rounds instead.',
)
_ACCOUNTANT = flags.DEFINE_enum(
  'accountant',
  None,
  ['pld', 'rdp'],
  'Accountant for solving. Default: the tightest.',
)
_JSON = flags.DEFINE_bool('json', False, 'Print JSON instead of a table.')
_PLOT = flags.DEFINE_string(
  'plot', None, 'Plot epsilon against rounds to this PNG, SVG or PDF file.'
)
_FILL = flags.DEFINE_string(
  'fill',
  None,
  'Add epsilon to metrics.csv and result.json of the run in this folder, or of'
  ' all runs below it, using config.json. Other flags are ignored.',
)
_NUM_SEARCHES = flags.DEFINE_integer(
  'num_searches',
  1,
  'With --private_search: number of searches that are released together, such'
  ' as one per method.',
  lower_bound=1,
)
spec_flags.define_options(options_lib.PrivateSearchOptions)
spec_flags.define_plan()
flags.adopt_module_key_flags(spec_flags)

# Settings of a plan that have no default here.
_NEEDED = (
  'population',
  'expected_cohort',
  'rounds',
  'delta',
  'noise_multiplier',
)


def _target() -> Optional[float]:
  return flags.FLAGS['target_epsilon'].value


def _search() -> Optional['privacy.PrivateSearch']:
  """Returns the private search of the flags; None without one."""
  return spec_flags.options(options_lib.PrivateSearchOptions).search()


def _check_flags() -> None:
  if _SOLVE_ROUNDS.value and _target() is None:
    raise ValueError('--solve_rounds needs --target_epsilon.')
  solved = 'rounds' if _SOLVE_ROUNDS.value else 'noise_multiplier'
  if _target() is not None and flags.FLAGS[solved].value is not None:
    raise ValueError(
      f'--{solved} must not be given if it is solved for. Found'
      f' {flags.FLAGS[solved].value!r}.'
    )
  if None not in (_POPULATION.value, _DATA_DIR.value):
    raise ValueError(
      'Give at most one of --population and --data_dir. Found both.'
    )
  if _NUM_SEARCHES.value != 1 and _search() is None:
    raise ValueError('--num_searches must be given with --private_search.')


def _given() -> dict[str, Any]:
  """Returns the fields of a plan that the flags set."""
  names = {f.name for f in dataclasses.fields(privacy.PrivacyPlan)}
  given = {
    name: flags.FLAGS[name].value
    for name in names
    if name in flags.FLAGS and flags.FLAGS[name].value is not None
  }
  adaptive = _adaptive_clipping()
  if given.pop('adaptive_clipping', False):
    given['adaptive_clipping'] = adaptive
  if _DATA_DIR.value is not None:
    store = data_prep.open_store(_DATA_DIR.value)
    given |= {'population': len(store.users('private')), 'unit': 'user'}
  if given.get('sampling') == 'epochs':
    given['mechanism'] = 'tree'
  return given


def _adaptive_clipping() -> privacy.AdaptiveClipping:
  """Returns the adaptive clipping of the flags."""
  fields = {
    'target_quantile': 'clip_quantile',
    'learning_rate': 'clip_learning_rate',
    'count_stddev': 'clip_count_stddev',
  }
  values = {field: flags.FLAGS[name].value for field, name in fields.items()}
  given = {field: value for field, value in values.items() if value is not None}
  if given and not flags.FLAGS['adaptive_clipping'].value:
    name = fields[next(iter(given))]
    raise ValueError(f'--{name} must be given with --adaptive_clipping.')
  return privacy.AdaptiveClipping(**given)


def _settings_from_flags() -> dict[str, Any]:
  """Returns the fields of the plan, before anything is solved for."""
  settings = {'clip_norm': 1.0}
  if _PRESET.value is not None:
    plan = presets.PRESETS[_PRESET.value].plan
    settings = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
  elif _target() is not None:
    # A placeholder until it is solved for.
    settings['rounds' if _SOLVE_ROUNDS.value else 'noise_multiplier'] = 1
  settings |= _given()
  missing = [f'--{name}' for name in _NEEDED if name not in settings]
  if missing:
    raise ValueError(
      f'{", ".join(missing)} must be given, or --preset (one of'
      f' {", ".join(presets.PRESETS)}); --data_dir gives the population.'
    )
  return settings


def _epsilon(plan: privacy.PrivacyPlan, accountant: Any) -> Optional[float]:
  """Returns epsilon; None if the accountant cannot handle the plan."""
  if accountant == 'pld' and plan.accountant != 'pld':
    return None
  return plan.epsilon(accountant=accountant)


def _solve(settings: dict[str, Any]) -> privacy.PrivacyPlan:
  """Returns the plan, with noise or rounds solved for a target epsilon."""
  target = _target()
  if target is not None and not _SOLVE_ROUNDS.value:
    settings.pop('noise_multiplier')
    return privacy.PrivacyPlan.for_epsilon(
      target, **settings, accountant=_ACCOUNTANT.value
    )
  plan = privacy.PrivacyPlan(**settings)
  if target is None:
    return plan
  rounds = plan.max_rounds(target, _ACCOUNTANT.value)
  if rounds == 0:
    raise ValueError(
      '--target_epsilon must allow at least one round, which spends'
      f' {plan.epsilon(1, accountant=_ACCOUNTANT.value):.4g}. Found'
      f' {target!r}.'
    )
  return dataclasses.replace(plan, rounds=rounds)


def _plot(plan: privacy.PrivacyPlan, path: str) -> None:
  import matplotlib
  from pda_fed.privacy import accounting

  matplotlib.use('Agg')
  from matplotlib import pyplot as plt

  # Epsilon rises fastest at first, so the points are densest there. More points
  # would not be exact: they would show the epsilon of a later round.
  places = np.linspace(1, np.sqrt(plan.rounds), accounting.CURVE_POINTS) ** 2
  rounds = np.unique(np.round(places).astype(int))
  figure, axes = plt.subplots(figsize=(6, 4), layout='constrained')
  for accountant, style in (('rdp', '--'), ('pld', '-')):
    if _epsilon(plan, accountant) is None:
      continue
    curve = plan.epsilon_curve(rounds, accountant)
    axes.plot(rounds, curve, style, label=accountant.upper())
    axes.annotate(
      f'{curve[-1]:.3g}',
      (rounds[-1], curve[-1]),
      xytext=(-4, 4),
      textcoords='offset points',
      ha='right',
    )
  axes.set_xlabel('rounds')
  axes.set_ylabel(f'epsilon at delta = {plan.delta:g}')
  axes.set_title(
    f'cohorts of {plan.expected_cohort:g} ({plan.sampling}) out of'
    f' {plan.population:,}, noise multiplier {plan.noise_multiplier:.4g}',
    fontsize=10,
  )
  axes.set_xlim(0, plan.rounds)
  axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
  axes.grid(alpha=0.3)
  axes.legend(loc='lower right')
  figure.savefig(path, dpi=150)


def _as_json(plan: privacy.PrivacyPlan) -> dict[str, object]:
  """Returns JSON with the keys of runs' outputs; infinity becomes null."""

  def number(value: Optional[float]) -> Optional[float]:
    return value if value is not None and math.isfinite(value) else None

  found = {
    'epsilon_pld': number(_epsilon(plan, 'pld')),
    'epsilon_rdp': number(_epsilon(plan, 'rdp')),
    'noise_multiplier': plan.noise_multiplier,
    'delta': plan.delta,
    'rounds': plan.rounds,
    'population': plan.population,
    'expected_cohort': plan.expected_cohort,
    'sampling': plan.sampling,
    'neighbouring': plan.neighbouring,
    'approximate': plan.approximate,
    'private': plan.noise_multiplier > 0,
  }
  if plan.adaptive_clipping is not None:
    found['update_noise_multiplier'] = plan.update_noise_multiplier
  search = _search()
  if search is not None:
    found['private_search'] = {
      **dataclasses.asdict(search),
      'num_searches': _NUM_SEARCHES.value,
      'epsilon_one_search': privacy.search_epsilon(plan, search),
      'epsilon': privacy.search_epsilon(plan, search, _NUM_SEARCHES.value),
    }
  return found


def _search_rows(plan: privacy.PrivacyPlan) -> list[tuple[str, str]]:
  """Returns the rows of the table about a private search, if any."""
  search = _search()
  if search is None:
    return []
  counts = dict.fromkeys((1, _NUM_SEARCHES.value))
  return [
    ('private search', private_search.describe(search)),
    *(
      (
        'epsilon of the whole search' if n == 1 else f'epsilon of {n} searches',
        privacy.round_up(privacy.search_epsilon(plan, search, n)),
      )
      for n in counts
    ),
  ]


def _print_table(plan: privacy.PrivacyPlan) -> None:
  epsilons = {a: _epsilon(plan, a) for a in ('pld', 'rdp')}

  def show(value: Optional[float]) -> str:
    return 'not known' if value is None else privacy.round_up(value)

  rows = [
    ('epsilon (PLD, tight)', show(epsilons['pld'])),
    ('epsilon (RDP)', show(epsilons['rdp'])),
    ('delta', f'{plan.delta:g}'),
    ('noise multiplier', privacy.round_up(plan.noise_multiplier, 6)),
    ('rounds', f'{plan.rounds:,}'),
    (f'population ({plan.unit}s)', f'{plan.population:,}'),
    ('expected cohort', f'{plan.expected_cohort:g}'),
    ('sampling rate', f'{plan.sampling_rate:.4g}'),
  ]
  if plan.adaptive_clipping is not None:
    noise = privacy.round_up(plan.update_noise_multiplier, 6)
    rows.insert(4, ('noise multiplier of updates', noise))
  rows += _search_rows(plan)
  if _PRESET.value is not None:
    preset = presets.PRESETS[_PRESET.value]
    if preset.plan == plan:
      rows.insert(2, ("the paper's epsilon", f'{preset.paper_epsilon:g}'))
  width = max(len(name) for name, _ in rows)
  for name, value in rows:
    print(f'{name:<{width}}  {value}')
  best = epsilons['pld'] if epsilons['pld'] is not None else epsilons['rdp']
  print(f'\n{plan.statement(best)}')


def main() -> None:
  """Runs with the flags' settings."""
  if _FILL.value is not None:
    for folder in overview.fill(_FILL.value):
      print(f'Added epsilon to {folder}.')
      training.check_audit(runs_lib.RunFolder(folder).read_result() or {})
    return
  _check_flags()
  plan = _solve(_settings_from_flags())
  _search()  # Fail before anything is written.
  if _ACCOUNTANT.value is not None:
    plan.epsilon(
      1, accountant=_ACCOUNTANT.value
    )  # Raises if it cannot handle the plan.
  if _PLOT.value is not None:
    _plot(plan, _PLOT.value)
  if _JSON.value:
    print(json.dumps(_as_json(plan), indent=2))
  else:
    _print_table(plan)


if __name__ == '__main__':
  cli.run(main)
