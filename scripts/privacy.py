r"""Computes epsilon, or the noise or rounds for a target epsilon.

    python -m scripts.privacy --preset=stackoverflow
    python -m scripts.privacy --population=10000 --expected_cohort=100 \
        --rounds=500 --delta=1e-5 --target_epsilon=4
    python -m scripts.privacy --preset=cifar10 --target_epsilon=2 \
        --solve_rounds --json
    python -m scripts.privacy --data_dir=data/stackexchange \
        --expected_cohort=100 --rounds=100 --delta=1e-4 --noise_multiplier=1 \
        --private_search=poisson --search_runs=20 --num_searches=3

A preset is a plan of the paper; other flags change it. --target_epsilon solves
for the noise or, with --solve_rounds, for the number of rounds.
--private_search also shows the epsilon of a search that releases its best run.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import dataclasses
import json
from typing import Any, Optional

from absl import flags
import data_prep
from pda_fed import privacy
from pda_fed.common import files
from pda_fed.compare import options as options_lib
from pda_fed.compare import private_search
from pda_fed.privacy import presets
from pda_fed.runs import groups
from pda_fed.runs import resolving
from scripts.lib import setting_flags

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
_NUM_SEARCHES = flags.DEFINE_integer(
  'num_searches',
  1,
  'With --private_search: number of searches that are released together, such'
  ' as one per method.',
  lower_bound=1,
)
setting_flags.define(options_lib.PrivateSearchOptions)
setting_flags.define(groups.PlanSpec, shows_defaults=False)
flags.adopt_module_key_flags(setting_flags)

# Settings of a plan that have no default here.
_NEEDED = (
  'population',
  'expected_cohort',
  'rounds',
  'delta',
  'noise_multiplier',
)


def _search() -> Optional['privacy.PrivateSearch']:
  """Returns the private search of the flags; None without one."""
  search = setting_flags.make(options_lib.PrivateSearchOptions).search()
  if search is None and _NUM_SEARCHES.value != 1:
    raise ValueError('--num_searches must be given with --private_search.')
  return search


def _given() -> dict[str, Any]:
  """Returns the settings of a plan that flags give."""
  given = setting_flags.given(groups.PlanSpec)
  target = given.get('target_epsilon')
  if _SOLVE_ROUNDS.value and target is None:
    raise ValueError('--solve_rounds needs --target_epsilon.')
  solved = 'rounds' if _SOLVE_ROUNDS.value else 'noise_multiplier'
  if target is not None and solved in given:
    raise ValueError(
      f'--{solved} must not be given if it is solved for. Found'
      f' {given[solved]!r}.'
    )
  if given.get('sampling') == 'epochs':
    given['mechanism'] = 'tree'
  return given


def _population() -> dict[str, Any]:
  """Returns the number of private records and the name of one, if given."""
  if None not in (_POPULATION.value, _DATA_DIR.value):
    raise ValueError(
      'Give at most one of --population and --data_dir. Found both.'
    )
  if _DATA_DIR.value is not None:
    store = data_prep.open_store(_DATA_DIR.value)
    return {'population': len(store.users('private')), 'unit': 'user'}
  given = _POPULATION.value
  return {} if given is None else {'population': given}


def _plan() -> privacy.PrivacyPlan:
  """Returns the plan, with noise or rounds solved for a target epsilon."""
  values: dict[str, Any] = {'clip_norm': 1.0, 'unit': 'user'}
  if _PRESET.value is not None:
    plan = presets.PRESETS[_PRESET.value].plan
    values = {n: getattr(plan, n) for n in (*_NEEDED, 'clip_norm', 'unit')}
  given = _given()
  target = given.get('target_epsilon')
  if _SOLVE_ROUNDS.value:
    values['rounds'] = 1  # Until it is solved for.
    del given['target_epsilon']
  elif target is not None:
    values['noise_multiplier'] = None
  if 'epochs' in given:
    values['rounds'] = None
  values |= given | _population()
  missing = [f'--{name}' for name in _NEEDED if name not in values]
  if missing:
    raise ValueError(
      f'{", ".join(missing)} must be given, or --preset (one of'
      f' {", ".join(presets.PRESETS)}); --data_dir gives the population.'
    )
  of_data = values.pop('population'), values.pop('unit')
  spec = setting_flags.make(groups.PlanSpec, values)
  plan = resolving.build_plan(spec, *of_data, _ACCOUNTANT.value)
  if not _SOLVE_ROUNDS.value:
    return plan
  rounds = plan.max_rounds(target, _ACCOUNTANT.value)
  if rounds == 0:
    raise ValueError(
      '--target_epsilon must allow at least one round, which spends'
      f' {plan.epsilon(1, accountant=_ACCOUNTANT.value):.4g}. Found'
      f' {target!r}.'
    )
  return dataclasses.replace(plan, rounds=rounds)


def _epsilon(plan: privacy.PrivacyPlan, accountant: Any) -> Optional[float]:
  """Returns epsilon; None if the accountant cannot handle the plan."""
  if accountant == 'pld' and plan.accountant != 'pld':
    return None
  return plan.epsilon(accountant=accountant)


def _facts(plan: privacy.PrivacyPlan) -> dict[str, Any]:
  """Returns what is printed, with the keys of runs' outputs."""
  found = {
    'epsilon_pld': _epsilon(plan, 'pld'),
    'epsilon_rdp': _epsilon(plan, 'rdp'),
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
  search, count = _search(), _NUM_SEARCHES.value
  if search is not None:
    found['private_search'] = {
      **dataclasses.asdict(search),
      'num_searches': count,
      'epsilon_one_search': privacy.search_epsilon(plan, search),
      'epsilon': privacy.search_epsilon(plan, search, count),
    }
  return found


def _print_table(plan: privacy.PrivacyPlan, facts: dict[str, Any]) -> None:
  def show(value: Optional[float]) -> str:
    return 'not known' if value is None else privacy.round_up(value)

  preset = presets.PRESETS.get(_PRESET.value)
  rows = {
    'epsilon (PLD, tight)': show(facts['epsilon_pld']),
    'epsilon (RDP)': show(facts['epsilon_rdp']),
    **(
      {"the paper's epsilon": f'{preset.paper_epsilon:g}'}
      if preset is not None and preset.plan == plan
      else {}
    ),
    'delta': f'{plan.delta:g}',
    'noise multiplier': privacy.round_up(plan.noise_multiplier, 6),
    'rounds': f'{plan.rounds:,}',
    f'population ({plan.unit}s)': f'{plan.population:,}',
    'expected cohort': f'{plan.expected_cohort:g}',
    'sampling rate': f'{plan.sampling_rate:.4g}',
  }
  if plan.adaptive_clipping is not None:
    noise = privacy.round_up(plan.update_noise_multiplier, 6)
    rows['noise multiplier of updates'] = noise
  if 'private_search' in facts:
    of = facts['private_search']
    rows['private search'] = private_search.describe(_search())
    rows['epsilon of the whole search'] = show(of['epsilon_one_search'])
    if of['num_searches'] > 1:
      rows[f'epsilon of {of["num_searches"]} searches'] = show(of['epsilon'])
  width = max(map(len, rows))
  for name, value in rows.items():
    print(f'{name:<{width}}  {value}')
  best = facts['epsilon_pld']
  best = facts['epsilon_rdp'] if best is None else best
  print(f'\n{plan.statement(best)}')


def main() -> None:
  """Runs with the flags' settings."""
  _search()  # Fail before anything is computed or written.
  plan = _plan()
  if _ACCOUNTANT.value is not None:  # Raises if it cannot handle the plan.
    plan.epsilon(1, accountant=_ACCOUNTANT.value)
  facts = _facts(plan)
  if _JSON.value:
    print(json.dumps(files.finite(facts), indent=2))
  else:
    _print_table(plan, facts)


if __name__ == '__main__':
  cli.run(main)
