"""Federated evaluation over a stream of users."""

from collections.abc import Iterable
import itertools

from pda_fed.common import validate
from pda_fed.tff import local_training
import tensorflow as tf
import tensorflow_federated as tff


class FederatedEvaluator:
  """Evaluates a model on any number of users, a few at a time.

  Metrics are sums over clients, so the result does not depend on how users are
  split.

  Example:

  ```
  evaluator = FederatedEvaluator(model_fn)
  with runtime.in_process():
    evaluator.evaluate(weights, test_datasets)['accuracy']
  ```
  """

  def __init__(
    self, model_fn: local_training.ModelFn, *, clients_per_call: int = 50
  ):
    """Builds the computations.

    Args:
      model_fn: Returns a new model.
      clients_per_call: Number of users in one TFF call.

    Raises:
      ValueError: If `clients_per_call` is less than 1.
    """
    validate.integers(1, clients_per_call=clients_per_call)
    self._clients_per_call = clients_per_call
    self._process = tff.learning.algorithms.build_fed_eval(
      model_fn,
      loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )
    self._initial_state = None

  def evaluate(
    self,
    weights: tff.learning.models.ModelWeights,
    datasets: Iterable[tf.data.Dataset],
  ) -> dict[str, float]:
    """Returns the model's metrics on all users together.

    Args:
      weights: The model's weights, from `process.get_model_weights`.
      datasets: One dataset per user. They are read once, never all at the same
        time.

    Raises:
      ValueError: If there are no users.
    """
    if self._initial_state is None:
      self._initial_state = self._process.initialize()
    state = self._process.set_model_weights(self._initial_state, weights)
    stream = iter(datasets)
    metrics = None
    while chunk := list(itertools.islice(stream, self._clients_per_call)):
      output = self._process.next(state, chunk)
      state = output.state
      metrics = output.metrics['client_work']['eval']['total_rounds_metrics']
    if metrics is None:
      raise ValueError('datasets must have at least one user. Found none.')
    return {name: float(value) for name, value in metrics.items()}
