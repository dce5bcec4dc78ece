"""Finished runs that nobody has run."""

import pathlib

from pda_fed import privacy
from pda_fed.compare import comparison

_PLAN = {
  'population': 1000,
  'expected_cohort': 10,
  'rounds': 8,
  'delta': 1e-4,
  'noise_multiplier': 1.0,
  'clip_norm': 1.0,
}


def create(method, seed, accuracy, perplexity, epsilon=1.2345, **plan):
  """Returns a finished run; `plan` changes its plan."""
  plan = {**_PLAN, **plan}
  return comparison.Run(
    pathlib.Path(f'{method}_{seed}'),
    {
      'settings': {
        'plan': plan,
        'method': method,
        'seed': seed,
        'alpha': {'K': 5} if method == 'pda' else None,
        'rate': '<1>',
      },
      'libraries': {'numpy': '1'},
      'noise': 'The noise follows from the seed.',
      'caveats': ['Words & <tags>.'],
    },
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
    privacy.PrivacyPlan(**plan),
  )
