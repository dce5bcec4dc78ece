"""Trains a next-word model with DP-FedAvg and prints what it learnt.

The data are TFF's own synthetic StackOverflow sentences, dealt to
`--population` users, so that this runs anywhere, offline, in half a minute:

    python -m scripts.train_stackoverflow --rounds=20 --seed=0
    bazel run //scripts:train_stackoverflow -- --rounds=20 --seed=0
"""

from scripts import cli  # First: it silences TensorFlow.

# isort: split
from absl import flags
from pda_fed import experiments
from pda_fed import privacy
from pda_fed import runtime
import tqdm

_POPULATION = flags.DEFINE_integer(
  'population', 200, 'Private users.', lower_bound=1
)
_CLIENTS_PER_ROUND = flags.DEFINE_float(
  'clients_per_round', 20, 'Expected users in a round (Poisson sampling).'
)
_ROUNDS = flags.DEFINE_integer('rounds', 20, 'Rounds.', lower_bound=1)
_NOISE_MULTIPLIER = flags.DEFINE_float(
  'noise_multiplier', 0.6, 'Standard deviation of the noise over the clip.'
)
_CLIP_NORM = flags.DEFINE_float(
  'clip_norm', 0.5, "Bound on the norm of a user's model update."
)
_DELTA = flags.DEFINE_float('delta', 1e-3, 'Delta of (epsilon, delta).')
_CLIENT_LEARNING_RATE = flags.DEFINE_float(
  'client_learning_rate', 1.0, 'Of local training.'
)
_SERVER_LEARNING_RATE = flags.DEFINE_float(
  'server_learning_rate', 1.0, "Of the server's SGD."
)
_SERVER_MOMENTUM = flags.DEFINE_float(
  'server_momentum', 0.9, "Of the server's SGD."
)
_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
  'rounds_per_evaluation', 5, 'Rounds between evaluations.'
)
_SEED = flags.DEFINE_integer(
  'seed',
  None,
  'Makes the run repeatable, its noise included, for whoever knows the seed. A'
  ' run that is meant to be private takes none.',
  lower_bound=0,
  upper_bound=2**63 - 1,
)
_ISOLATION = flags.DEFINE_enum_class(
  'worker_isolation',
  runtime.Isolation.AUTO,
  runtime.Isolation,
  "Whether TFF's worker must be out of the network's reach.",
)


def _config() -> experiments.FederatedConfig:
  return experiments.FederatedConfig(
    plan=privacy.PrivacyPlan(
      population=_POPULATION.value,
      expected_cohort=_CLIENTS_PER_ROUND.value,
      rounds=_ROUNDS.value,
      delta=_DELTA.value,
      noise_multiplier=_NOISE_MULTIPLIER.value,
      clip_norm=_CLIP_NORM.value,
    ),
    client_learning_rate=_CLIENT_LEARNING_RATE.value,
    server_learning_rate=_SERVER_LEARNING_RATE.value,
    server_momentum=_SERVER_MOMENTUM.value,
    rounds_per_evaluation=_ROUNDS_PER_EVALUATION.value,
    seed=_SEED.value,
  )


def _print_result(
  plan: privacy.PrivacyPlan, result: experiments.FederatedResult
) -> None:
  rows = [
    (
      e.round_num,
      privacy.round_up(e.epsilon),
      f'{e.accuracy:.1%}',
      f'{e.perplexity:.2f}',
    )
    for e in result.evaluations
  ]
  print(
    experiments.format_table(
      ['round', 'epsilon', 'accuracy', 'perplexity'], rows
    )
  )
  print(f'\n{plan.describe(result.evaluations[-1].epsilon)}')
  print(result.noise_statement)


def main() -> None:
  """Runs with the flags' settings."""
  config = _config()
  print(
    "DP-FedAvg on TFF's synthetic StackOverflow sentences, a next-word LSTM"
    f' of {config.lstm_size} units.\n',
    flush=True,
  )
  with (
    runtime.local_workers(isolation=_ISOLATION.value),
    tqdm.tqdm(
      total=config.plan.rounds, unit='round', leave=False, disable=None
    ) as bar,
  ):

    def on_round(rounds_done: int, newest: experiments.Evaluation) -> None:
      bar.set_postfix(
        accuracy=f'{newest.accuracy:.1%}',
        epsilon=privacy.round_up(newest.epsilon),
      )
      bar.update(rounds_done - bar.n)

    result = experiments.run_federated(config, on_round)
  _print_result(config.plan, result)


if __name__ == '__main__':
  cli.run(main)
