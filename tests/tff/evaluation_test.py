import numpy as np
from pda_fed import tff as pda_tff
import pytest
import tensorflow_federated as tff

from tests.tff import linear_model

pytestmark = pytest.mark.slow

_MODEL_FN = linear_model.build_model_fn(2)
_WEIGHTS = tff.learning.models.ModelWeights(
  [np.ones((2, 1), np.float32), np.zeros(1, np.float32)], []
)


def test_metrics_are_of_all_examples_however_users_are_split():
  rng = np.random.default_rng(0)
  users = [linear_model.make_examples(rng, n, 2) for n in (1, 7, 3, 4, 2)]
  x, y = (np.concatenate(a) for a in zip(*users, strict=True))
  expected = np.mean((x.sum(axis=1, keepdims=True) - y) ** 2)
  for clients_per_call in (2, 50):
    evaluator = pda_tff.FederatedEvaluator(
      _MODEL_FN, clients_per_call=clients_per_call
    )
    datasets = (linear_model.make_dataset(u, 3) for u in users)
    metrics = evaluator.evaluate(_WEIGHTS, datasets)
    assert metrics['loss'] == pytest.approx(expected, rel=1e-5)
    assert metrics['num_examples'] == 17
    # A second evaluation starts anew.
    again = evaluator.evaluate(
      _WEIGHTS, [linear_model.make_dataset(users[0], 3)]
    )
    assert again['num_examples'] == 1


def test_no_users():
  evaluator = pda_tff.FederatedEvaluator(_MODEL_FN)
  with pytest.raises(ValueError, match='datasets must have at least one user'):
    evaluator.evaluate(_WEIGHTS, [])


def test_bad_chunk():
  with pytest.raises(ValueError, match='clients_per_call must be at least 1'):
    pda_tff.FederatedEvaluator(_MODEL_FN, clients_per_call=0)
