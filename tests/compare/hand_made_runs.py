"""Finished runs that nobody has run."""

import pathlib

from pda_fed import privacy
from pda_fed.common import typed
from pda_fed.compare import comparison
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
