"""Grids, their cells, and which is the best."""

import math

from pda_fed.compare import grids
from pda_fed.compare import ranking
import pytest

_RATE = 'server.learning_rate'


def test_grid_and_cells():
  grid = grids.parse(['--plan.clip_norm=0.3,1', 'data_dir=a/b'])
  cells = grids.cells(grid)
  assert [cell.arguments for cell in cells] == [
    ['--clip_norm=0.3', '--data_dir=a/b'],
    ['--clip_norm=1', '--data_dir=a/b'],
  ]
  assert cells[0].name == 'clip_norm=0.3,data_dir=a%2Fb'


def test_cells_have_folders_of_their_own():
  cells = grids.cells(grids.parse(['data_dir=a/b,a_b,a b,a%2Fb,a.b']))
  assert len({cell.name for cell in cells}) == 5
  assert not any('/' in cell.name for cell in cells)


@pytest.mark.parametrize(
  'texts, message',
  [
    (['rounds'], 'tune must be SETTING=VALUE'),
    (['rounds='], 'tune must be SETTING=VALUE'),
    (['rounds=1', 'rounds=2'], 'tune must have rounds once'),
    (['rounds=1', 'plan.rounds=2'], 'tune must have rounds once'),
    (['rounds=1,1'], 'tune must have each value once'),
    (['rounds=1,x'], 'rounds must be an integer'),
    (['roundz=1'], 'roundz is not a setting. Did you mean rounds?'),
    ([], 'tune must have at least one setting'),
  ],
)
def test_bad_grids(texts, message):
  with pytest.raises(ValueError, match=message):
    grids.parse(texts)


@pytest.mark.parametrize(
  'value, smaller, larger',
  [
    (1, 0.5, 2),
    (0.2, 0.1, 0.5),
    (0.05, 0.02, 0.1),
    (0.25, 0.2, 0.5),
    (900, 500, 1000),
    (1e-5, 5e-6, 2e-5),
  ],
)
def test_values_beyond_are_1_2_and_5(value, smaller, larger):
  assert grids.next_value(value, up=False) == smaller
  assert grids.next_value(value, up=True) == larger


@pytest.mark.parametrize(
  'losses, ends',
  [
    # Of the rates 5, 0.3 and 1, two cells each. An axis of words has no ends.
    ([1, 9, 2, 2, 3, 3], {_RATE: 5}),
    ([3, 3, 9, 1, 2, 2], {_RATE: 0.3}),
    ([3, 3, 2, 2, 9, 1], {}),
    ([float('nan')] * 6, {}),
  ],
)
def test_ends_of_axes_are_seen(losses, ends):
  grid = grids.parse([f'{_RATE}=5,0.3,1', 'engine=tff,jax'])
  found = [
    ranking.Found(cell, {'round': 4, 'loss': loss}, True)
    for cell, loss in zip(grids.cells(grid), losses, strict=True)
  ]
  assert ranking.ends(found, grid, 'loss') == ends


@pytest.mark.parametrize(
  'rate, beside', [(5.0, (1, 10)), (0.3, (0.2, 1)), (1.0, (0.3, 5))]
)
def test_neighbours_are_of_the_grid_or_beyond_it(rate, beside):
  grid = {'way': ['a', 'b', 'c'], _RATE: [5.0, 0.3, 1.0], 'K': [50, 200]}
  cell = grids.Cell((('way', 'b'), (_RATE, rate), ('K', 200)))
  found = grids.neighbours(cell, grid, [_RATE])
  assert [tuple(dict(c.values).values()) for c in found] == [
    ('a', rate, 200),
    ('c', rate, 200),
    *(('b', value, 200) for value in beside),
    ('b', rate, 50),  # An axis that does not grow has nothing beyond.
  ]
  grown = grids.grid_of([*grids.cells(grid), *found], grid)
  assert grown['way'] == ['a', 'b', 'c']
  assert grown['K'] == [50, 200]
  assert set(grown[_RATE]) == {5.0, 0.3, 1.0, *beside}


@pytest.mark.parametrize(
  'name', ['train_loss', 'clipped_fraction', 'example_norm', 'private_norm']
)
def test_nothing_is_chosen_by_training(name):
  cell = grids.Cell(((_RATE, 1),))
  metrics = {'round': 4, 'loss': 1.0, 'accuracy_top5': 0.2, name: 2.0}
  with pytest.raises(ValueError, match=f"loss, accuracy_top5. Found '{name}"):
    ranking.rank([ranking.Found(cell, metrics, True)], name)


def test_nothing_is_chosen_by_the_test():
  cell = grids.Cell(((_RATE, 1),))
  metrics = {'round': 4, 'loss': 1.0, 'test_loss': 2.0}
  found = [ranking.Found(cell, metrics, True)]
  with pytest.raises(ValueError, match="metric: loss. Found 'test_loss'"):
    ranking.rank(found, 'test_loss')
  assert 'test' not in ranking.as_csv(found)
  del metrics['loss']
  with pytest.raises(ValueError, match='no validation data'):
    ranking.rank(found, 'loss')


def test_ranking():
  grid = {'a': [1, 2], 'b': [1, 2], 'c': [1, 2]}
  values = [0.1, 0.4, math.nan, 0.3, 0.2, 0.6, 0.5, 0.7]
  found = [
    ranking.Found(cell, {'round': 4, 'accuracy': v, 'loss': v}, v != 0.7)
    for cell, v in zip(grids.cells(grid), values, strict=True)
  ]

  def order(metric):
    return [f.metrics[metric] for f in ranking.rank(found, metric)]

  assert order('accuracy')[:6] == [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
  assert order('loss')[:2] == [0.1, 0.2]
  assert math.isnan(order('loss')[-1])  # What diverged comes last.
  lines = ranking.as_csv(found).splitlines()
  assert lines[0] == 'a,b,c,finished,round,accuracy,loss'
  assert lines[8] == '2,2,2,0,4,0.7,0.7'
