"""Finished runs that nobody has run."""

import pathlib

from pda_fed import privacy
from pda_fed.common import typed
from pda_fed.compare import comparison
from pda_fed.compare import report
from pda_fed.runs import records
from pda_fed.runs import spec as spec_lib

_PLAN = {
  'population': 1000,
  'expected_cohort': 10,
  'rounds': 8,
  'delta': 1e-4,
  'noise_multiplier': 1.0,
  'clip_norm': 1.0,
}


def _config(method, seed, plan):
  return records.Recorded(
    format=records.FORMAT,
    version=records.VERSION,
    spec=spec_lib.RunSpec(),
    settings={
      'plan': typed.as_json(plan),
      'method': {'name': method, **({'K': 5} if method == 'pda' else {})},
      'model': {},
      'execution': {'engine': 'fake'},
      'dataset': 'task',
      'data_hash': '0',
      'noise_version': 6,
      'seed': seed,
      'rate': '<1>',
    },
    noise='The noise follows from the seed.',
    libraries={'numpy': '1'},
    command='python -m scripts.train',
    data={},
    caveats=['Words & <tags>.'],
  )


def create(method, seed, accuracy, perplexity, epsilon=1.2345, **plan):
  """Returns a finished run; `plan` changes its plan."""
  return comparison.Run(
    pathlib.Path(f'{method}_{seed}'),
    _config(method, seed, privacy.PrivacyPlan(**{**_PLAN, **plan})),
    [
      {'round': 0, 'accuracy': 0.0, 'perplexity': 100.0},
      {'round': 8, 'accuracy': accuracy, 'perplexity': perplexity},
    ],
    {
      'method': method,
      'dataset': 'task',
      'engine': 'fake',
      'epsilon': epsilon,
      'seed': seed,
      'test': {'accuracy': accuracy, 'perplexity': perplexity, 'loss': 1.0},
    },
  )


def three_seeds(*, noise=0.001, warm=(0.2, 100.0)):
  """Runs of three methods; PDA-DPMD is the best by accuracy."""
  middles = {'cold': (0.1, 150.0), 'warm': warm, 'pda': (0.22, 90.0)}
  return [
    create(
      method,
      seed,
      accuracy + noise * (seed if method == 'pda' else 0),
      perplexity + seed,
    )
    for method, (accuracy, perplexity) in middles.items()
    for seed in range(3)
  ]


def with_public(starts):
  """Runs of two methods, with one warm start for each seed."""
  runs = []
  for method, mirror in (('warm', 0), ('pda', 1)):
    for seed, (accuracy, perplexity) in enumerate(starts):
      run = create(method, seed, 0.2 + 0.02 * mirror, 100 - mirror)
      test = {'accuracy': accuracy, 'perplexity': perplexity}
      run.result['warm_start'] = {'epochs': 3, 'test': test}
      runs.append(run)
  return runs


def page(found, figures=(), **about):
  """Returns the page of a comparison."""
  shown = report.Report(comparison=found, command='run <this>', **about)
  return report.build_page(shown, dict(figures))
