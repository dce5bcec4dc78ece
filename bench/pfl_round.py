"""Rounds of DP-FedAvg in pfl-research, for `rounds.peer` to measure.

It runs in an interpreter with torch and pfl, not in ours. A round begins when a
line is read; its seconds are printed. So rounds can alternate with those of
other programs.

The work is the same as ours: the same sizes, one local epoch of SGD in batches,
clipping, Gaussian noise, a central step with momentum. pfl reports no training
metrics in these rounds, and torch's LSTM has a second bias.
"""

import argparse
import sys
import time

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import federated_averaging
from pfl.algorithm.base import NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNEvalHyperParams
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
import torch

_PAD = 0
_SPECIAL_TOKENS = 4
_LENGTH = 20
_BATCH = 16


def _parse_arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__)
  for name in (
    *('clients', 'sentences'),
    *('num_words', 'embedding_size', 'lstm_size'),
  ):
    parser.add_argument(f'--{name}', type=int, required=True)
  return parser.parse_args()


class _NextWordModel(torch.nn.Module):
  """Embedding, LSTM, dense, dense, as in `RecurrentSpec`."""

  def __init__(self, num_words: int, embedding_size: int, lstm_size: int):
    super().__init__()
    tokens = num_words + _SPECIAL_TOKENS
    self.embedding = torch.nn.Embedding(tokens, embedding_size)
    self.lstm = torch.nn.LSTM(embedding_size, lstm_size, batch_first=True)
    self.projection = torch.nn.Linear(lstm_size, embedding_size)
    self.logits = torch.nn.Linear(embedding_size, tokens)

  def _mean_loss(self, tokens, targets):
    hidden, _ = self.lstm(self.embedding(tokens))
    logits = self.logits(self.projection(hidden))
    return torch.nn.functional.cross_entropy(
      logits.flatten(0, 1), targets.flatten(), ignore_index=_PAD
    )

  def loss(self, tokens, targets, eval=False):
    """Returns the loss that pfl minimizes."""
    self.train(not eval)
    return self._mean_loss(tokens, targets)

  @torch.no_grad()
  def metrics(self, tokens, targets, eval=True):
    """Returns the metrics that pfl reports, only before the first round."""
    self.train(not eval)
    return {'loss': Weighted(self._mean_loss(tokens, targets).item(), 1)}


class _Stopwatch(TrainingProcessCallback):
  """Prints the seconds of each round, and waits for the next request."""

  def on_train_begin(self, *, model):
    """See the base class."""
    del model
    self._start()
    return Metrics()

  def after_central_iteration(
    self, aggregate_metrics, model, *, central_iteration
  ):
    """See the base class."""
    del aggregate_metrics, model, central_iteration
    print(f'{time.perf_counter() - self._started:.4f}', flush=True)
    return not self._start(), Metrics()

  def _start(self) -> bool:
    """Waits for the next round; returns whether there is one."""
    wanted = bool(sys.stdin.readline())
    self._started = time.perf_counter()
    return wanted


def _make_users(arguments: argparse.Namespace) -> FederatedDataset:
  rng = np.random.default_rng(0)
  shape = arguments.clients, arguments.sentences, _LENGTH + 1
  # pfl converts NumPy arrays to floats, but keeps tensors.
  sentences = torch.from_numpy(rng.integers(1, arguments.num_words + 1, shape))
  users = {
    user: [tokens[:, :-1], tokens[:, 1:]]
    for user, tokens in enumerate(sentences)
  }
  return FederatedDataset.from_slices(users, MinimizeReuseUserSampler([*users]))


def main() -> None:
  """Runs the rounds."""
  arguments = _parse_arguments()
  module = _NextWordModel(
    arguments.num_words, arguments.embedding_size, arguments.lstm_size
  )
  users = _make_users(arguments)
  mechanism = CentrallyAppliedPrivacyMechanism(
    GaussianMechanism(clipping_bound=0.3, relative_noise_stddev=0.4)
  )
  federated_averaging.FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=sys.maxsize,
      evaluation_frequency=sys.maxsize,
      train_cohort_size=arguments.clients,
      val_cohort_size=0,
    ),
    SimulatedBackend(users, users, [mechanism]),
    PyTorchModel(
      module,
      local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(module.parameters(), 1.0, momentum=0.9),
    ),
    NNTrainHyperParams(
      local_batch_size=_BATCH,
      local_num_epochs=1,
      local_learning_rate=0.5,
    ),
    NNEvalHyperParams(local_batch_size=_BATCH),
    [_Stopwatch()],
    send_metrics_to_platform=False,
  )


if __name__ == '__main__':
  main()
