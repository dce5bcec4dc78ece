"""A federated experiment: settings, the loop over rounds, what came out."""

from collections.abc import Callable
import dataclasses
import math
import time
from typing import Optional

from pda_fed import _validate
from pda_fed import learning
from pda_fed import models
from pda_fed import privacy
import tensorflow_federated as tff

# Enough to meet all of the eight sentences that users draw from.
_EVALUATION_USERS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedConfig:
  """Settings of a DP-FedAvg run on TFF's synthetic StackOverflow data.

  Attributes:
    plan: Population, cohort, rounds, clip and noise.
    client_learning_rate: Of a user's local SGD.
    server_learning_rate: Of the server's SGD on the noised mean.
    server_momentum: Of the server's SGD.
    batch_size: Sentences in a batch of local training.
    embedding_size: Of the model.
    lstm_size: Of the model.
    rounds_per_evaluation: How often the model is evaluated.
    seed: Of data, initial weights and cohorts, and of the noise: a seeded run
      can be repeated, and its noise by whoever knows the seed. None draws the
      noise, and the cohorts, from the system's entropy.
  """

  plan: privacy.PrivacyPlan
  client_learning_rate: float = 1.0
  server_learning_rate: float = 1.0
  server_momentum: float = 0.9
  batch_size: int = 16
  embedding_size: int = 16
  lstm_size: int = 32
  rounds_per_evaluation: int = 5
  seed: Optional[int] = None

  def __post_init__(self):
    _validate.positive(
      client_learning_rate=self.client_learning_rate,
      server_learning_rate=self.server_learning_rate,
    )
    _validate.non_negative(server_momentum=self.server_momentum)
    if self.server_momentum >= 1:
      raise ValueError(
        f'server_momentum must be in [0, 1). Found {self.server_momentum}.'
      )
    _validate.integers(
      1,
      batch_size=self.batch_size,
      embedding_size=self.embedding_size,
      lstm_size=self.lstm_size,
      rounds_per_evaluation=self.rounds_per_evaluation,
    )
    if self.seed is not None:
      _validate.integers(0, seed=self.seed)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What a model was worth after some rounds.

  Attributes:
    round_num: Rounds done.
    epsilon: Spent so far.
    accuracy: Over the words of the vocabulary.
    perplexity: Per token, the exponential of `loss`.
    loss: Cross-entropy per token, in nats.
  """

  round_num: int
  epsilon: float
  accuracy: float
  perplexity: float
  loss: float


@dataclasses.dataclass(frozen=True)
class FederatedResult:
  """What a run left.

  Attributes:
    evaluations: From round 0, the initial model, to the last.
    seconds_per_round: The mean, without evaluation and building.
    noise_statement: Whether the noise was secret, in words.
  """

  evaluations: tuple[Evaluation, ...]
  seconds_per_round: float
  noise_statement: str


class _SyntheticTask:
  """Data and computations of a run, built once."""

  def __init__(self, config: FederatedConfig, seeds: privacy.SeedStreams):
    users = learning.load_synthetic_stackoverflow(
      config.plan.population + _EVALUATION_USERS, seed=seeds.shuffling
    )
    self._datasets = [
      learning.make_dataset(s, config.batch_size) for s in users.sentences
    ]
    spec = models.RecurrentSpec(
      num_words=len(users.vocabulary),
      embedding_size=config.embedding_size,
      lstm_size=config.lstm_size,
    )
    model_fn = learning.build_model_fn(spec, seeds.initialization)
    optimizers = tff.learning.optimizers
    self.process = learning.build_dp_fedavg(
      model_fn,
      config.plan,
      client_optimizer=optimizers.build_sgdm(config.client_learning_rate),
      server_optimizer=optimizers.build_sgdm(
        config.server_learning_rate, config.server_momentum
      ),
      noise_seed=seeds.noise,
    )
    self._evaluator = learning.FederatedEvaluator(model_fn)

  def datasets(self, user_ids) -> list:
    return [self._datasets[i] for i in user_ids]

  def evaluate(self, state) -> dict[str, float]:
    # These users take no part in training: what is measured on them is not
    # covered by epsilon.
    return self._evaluator.evaluate(
      self.process.get_model_weights(state),
      self._datasets[-_EVALUATION_USERS:],
    )


def _evaluated_rounds(config: FederatedConfig) -> list[int]:
  rounds = range(0, config.plan.rounds, config.rounds_per_evaluation)
  return [*rounds, config.plan.rounds]


def run_federated(
  config: FederatedConfig,
  on_round: Optional[Callable[[int, Optional[Evaluation]], None]] = None,
) -> FederatedResult:
  """Runs DP-FedAvg as configured, in the current TFF context.

  Args:
    config: The settings.
    on_round: Called with the number of rounds done and the newest evaluation
      after each round, for progress.

  Returns:
    The evaluations and the time.
  """
  plan = config.plan
  seeds = privacy.SeedStreams(config.seed)
  task = _SyntheticTask(config, seeds)
  state = task.process.initialize()
  evaluated = _evaluated_rounds(config)
  curve = privacy.epsilon_curve(plan, evaluated)
  spent = dict(zip(evaluated, curve.tolist(), strict=True))
  evaluations = []
  seconds = 0.0

  def evaluate(rounds_done: int) -> None:
    metrics = task.evaluate(state)
    loss = metrics['token_loss']
    evaluations.append(
      Evaluation(
        rounds_done,
        spent[rounds_done],
        metrics['accuracy'],
        math.exp(loss),
        loss,
      )
    )

  evaluate(0)
  for round_num in range(plan.rounds):
    started = time.monotonic()
    cohort = task.datasets(plan.cohort(round_num, seeds.sampling))
    state = task.process.next(state, cohort).state
    seconds += time.monotonic() - started
    rounds_done = round_num + 1
    if rounds_done in spent:
      evaluate(rounds_done)
    if on_round is not None:
      on_round(rounds_done, evaluations[-1])
  return FederatedResult(
    tuple(evaluations), seconds / plan.rounds, seeds.statement()
  )
