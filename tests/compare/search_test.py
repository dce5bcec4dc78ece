"""Which run of a search is the best, by which metrics."""

import math

from pda_fed import errors
from pda_fed.compare import grids
from pda_fed.compare import search
import pytest


@pytest.mark.parametrize(
  'name', ['train_loss', 'clipped_fraction', 'example_norm', 'private_norm']
)
def test_nothing_is_chosen_by_training(name):
  cell = {'clip_norm': 1}
  metrics = {'round': 4, 'loss': 1.0, 'accuracy_top5': 0.2, name: 2.0}
  with pytest.raises(ValueError, match=f"loss, accuracy_top5. Found '{name}"):
    search.rank([search.Found(cell, metrics, True)], name)


def test_nothing_is_chosen_by_the_test():
  cell = {'clip_norm': 1}
  metrics = {'round': 4, 'loss': 1.0, 'test_loss': 2.0}
  found = [search.Found(cell, metrics, True)]
  with pytest.raises(ValueError, match="metric: loss. Found 'test_loss'"):
    search.rank(found, 'test_loss')
  assert 'test' not in search.as_csv(found)
  del metrics['loss']
  with pytest.raises(ValueError, match='no validation data'):
    search.rank(found, 'loss')


def test_ranking():
  grid = {'a': [1, 2], 'b': [1, 2], 'c': [1, 2]}
  values = [0.1, 0.4, math.nan, 0.3, 0.2, 0.6, 0.5, 0.7]
  found = [
    search.Found(cell, {'round': 4, 'accuracy': v, 'loss': v}, v != 0.7)
    for cell, v in zip(grids.cells(grid), values, strict=True)
  ]

  def order(metric):
    return [f.metrics[metric] for f in search.rank(found, metric)]

  assert order('accuracy')[:6] == [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
  assert order('loss')[:2] == [0.1, 0.2]
  assert math.isnan(order('loss')[-1])  # What diverged comes last.
  lines = search.as_csv(found).splitlines()
  assert lines[0] == 'a,b,c,finished,round,accuracy,loss'
  assert lines[8] == '2,2,2,0,4,0.7,0.7'


def test_runs_on_different_data_are_refused():
  found = [search.Found({}, {'loss': 1.0}, True, name) for name in 'ab']
  with pytest.raises(errors.OutputError, match='values of data_hash'):
    search.rank(found, 'loss')
