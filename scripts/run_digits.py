"""Compares exact and first-order mirror steps on handwritten digits.

    python -m scripts.run_digits --trials=3
    bazel run //scripts:run_digits -- --trials=3

The digits come with scikit-learn; nothing is downloaded. All methods of a
budget use the same number of per-sample gradients, public and private.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import csv
import dataclasses
import pathlib

from absl import flags
from pda_fed import linear_regression
from pda_fed.common import tables
import tqdm

_DEFAULTS = linear_regression.DigitsConfig()

_TRIALS = flags.DEFINE_integer(
  'trials', _DEFAULTS.num_trials, 'Number of random splits.'
)
_NUM_PUBLIC = flags.DEFINE_integer(
  'num_public', _DEFAULTS.num_public, 'Number of public digits.'
)
_EPSILON = flags.DEFINE_float(
  'epsilon', _DEFAULTS.epsilon, 'The epsilon of each run.'
)
_DELTA = flags.DEFINE_float('delta', _DEFAULTS.delta, 'The delta of each run.')
_NOISE = flags.DEFINE_enum(
  'noise',
  _DEFAULTS.noise,
  ['algorithm_1', 'tight'],
  'algorithm_1: the formula of Algorithm 1. tight: the least noise that PLD'
  ' accounting allows.',
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Seed of all random choices.', lower_bound=0
)
_CSV = flags.DEFINE_string(
  'csv', None, 'Also write the table to this CSV file.'
)


def main() -> None:
  """Runs with the flags' settings."""
  config = linear_regression.DigitsConfig(
    num_trials=_TRIALS.value,
    num_public=_NUM_PUBLIC.value,
    epsilon=_EPSILON.value,
    delta=_DELTA.value,
    noise=_NOISE.value,
    seed=_SEED.value,
  )
  outcomes = []
  for trial in tqdm.trange(config.num_trials, unit='trial', disable=None):
    outcomes += linear_regression.run_digits_trial(config, trial)
  summaries = linear_regression.summarize_digits(outcomes)
  rows = [
    (
      s.budget,
      s.method,
      f'{s.steps:.0f}',
      f'{s.cost:,.0f}',
      f'{s.private_loss:.4f}',
      f'{s.test_loss:.4f}',
      f'{s.test_accuracy:.1%}',
      f'{s.half_width:.1%}',
      '' if s.method == 'public' else ', '.join(f'{v:g}' for v in s.setting),
    )
    for s in summaries
  ]
  print(
    f'Logistic regression on digits, {config.num_public} of them public;'
    f' epsilon = {config.epsilon:g}, delta = {config.delta:g} (noise:'
    f' {config.noise}); mean of {config.num_trials} trials, 95 % interval.\n'
  )
  header = ['budget', 'method', 'steps', 'gradients', 'private loss']
  header += ['test loss', 'test accuracy', '+-', 'rate, clip, K/T or ridge']
  print(tables.format_table(header, rows))
  if _CSV.value is not None:
    path = pathlib.Path(_CSV.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = [dataclasses.asdict(summary) for summary in summaries]
    for row in fields:
      names = 'learning_rate', 'clip_norm', 'variant'
      row.update(zip(names, row.pop('setting'), strict=True))
    with path.open('w', newline='') as file:
      writer = csv.DictWriter(file, list(fields[0]), lineterminator='\n')
      writer.writeheader()
      writer.writerows(fields)
    print(f'\nWritten: {path}')


if __name__ == '__main__':
  cli.run(main)
