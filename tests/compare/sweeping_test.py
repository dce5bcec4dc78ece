"""Grids, their cells, and which is the best."""

import math

from pda_fed.compare import sweeping
import pytest


def test_grid_and_cells():
  grid = sweeping.parse_grid(['--clip=0.3,1', 'path=a/b'])
  cells = sweeping.cells(grid)
  assert [cell.arguments for cell in cells] == [
    ['--clip=0.3', '--path=a/b'],
    ['--clip=1', '--path=a/b'],
  ]
  assert cells[0].name == 'clip=0.3,path=a%2Fb'


def test_cells_have_folders_of_their_own():
  values = 'a/b,a_b,a b,a%2Fb,a.b'
  cells = sweeping.cells(sweeping.parse_grid([f'path={values}']))
  assert len({cell.name for cell in cells}) == 5
  assert not any('/' in cell.name for cell in cells)


@pytest.mark.parametrize('texts', [[], ['x'], ['x='], ['x=1', 'x=2']])
def test_bad_grids(texts):
  with pytest.raises(ValueError, match='grid must'):
    sweeping.parse_grid(texts)


@pytest.mark.parametrize(
  ('value', 'smaller', 'larger'),
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
  assert sweeping.next_value(value, up=False) == smaller
  assert sweeping.next_value(value, up=True) == larger


@pytest.mark.parametrize(
  ('losses', 'ends'),
  [
    # Of the rates 5, 0.3 and 1, two cells each. An axis of words has no ends.
    ([1, 9, 2, 2, 3, 3], {'rate': '5'}),
    ([3, 3, 9, 1, 2, 2], {'rate': '0.3'}),
    ([3, 3, 2, 2, 9, 1], {}),
    ([float('nan')] * 6, {}),
  ],
)
def test_ends_of_axes_are_seen(losses, ends):
  grid = sweeping.parse_grid(['rate=5,0.3,1', 'way=a,b'])
  found = [
    sweeping.Found(cell, {'round': 4, 'loss': loss}, True)
    for cell, loss in zip(sweeping.cells(grid), losses, strict=True)
  ]
  assert sweeping.ends(found, grid, 'loss') == ends


@pytest.mark.parametrize(
  ('rate', 'beside'),
  [('5', ('1', '10')), ('0.3', ('0.2', '1')), ('1', ('0.3', '5'))],
)
def test_neighbours_are_of_the_grid_or_beyond_it(rate, beside):
  grid = sweeping.parse_grid(['way=a,b,c', 'rate=5,0.3,1', 'K=50,200'])
  cell = sweeping.Cell((('way', 'b'), ('rate', rate), ('K', '200')))
  found = sweeping.neighbours(cell, grid, ['rate'])
  assert [tuple(dict(c.values).values()) for c in found] == [
    ('a', rate, '200'),
    ('c', rate, '200'),
    *(('b', value, '200') for value in beside),
    ('b', rate, '50'),  # An axis that does not grow has nothing beyond.
  ]
  grown = sweeping.grid_of([*sweeping.cells(grid), *found], grid)
  assert grown['way'] == ['a', 'b', 'c']
  assert grown['K'] == ['50', '200']
  assert set(grown['rate']) == {'5', '0.3', '1', *beside}


@pytest.mark.parametrize(
  'name', ['train_loss', 'clipped_fraction', 'example_norm', 'private_norm']
)
def test_nothing_is_chosen_by_training(name):
  cell = sweeping.Cell((('rate', '1'),))
  metrics = {'round': 4, 'loss': 1.0, 'accuracy_top5': 0.2, name: 2.0}
  with pytest.raises(ValueError, match=f"loss, accuracy_top5. Found '{name}"):
    sweeping.rank([sweeping.Found(cell, metrics, True)], name)


def test_nothing_is_chosen_by_the_test():
  cell = sweeping.Cell((('rate', '1'),))
  metrics = {'round': 4, 'loss': 1.0, 'test_loss': 2.0}
  found = [sweeping.Found(cell, metrics, True)]
  with pytest.raises(ValueError, match="metric: loss. Found 'test_loss'"):
    sweeping.rank(found, 'test_loss')
  assert 'test' not in sweeping.as_csv(found)
  del metrics['loss']
  with pytest.raises(ValueError, match='no validation data'):
    sweeping.rank(found, 'loss')


def test_ranking(tmp_path):
  grid = sweeping.parse_grid(['a=1,2', 'b=1,2', 'c=1,2'])
  values = [0.1, 0.4, math.nan, 0.3, 0.2, 0.6, 0.5, 0.7]
  found = [
    sweeping.Found(cell, {'round': 4, 'accuracy': v, 'loss': v}, v != 0.7)
    for cell, v in zip(sweeping.cells(grid), values, strict=True)
  ]

  def order(metric):
    return [f.metrics[metric] for f in sweeping.rank(found, metric)]

  assert order('accuracy')[:6] == [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
  assert order('loss')[:2] == [0.1, 0.2]
  assert math.isnan(order('loss')[-1])  # What diverged comes last.
  with pytest.raises(ValueError, match="metric: accuracy, loss. Found 'x'"):
    sweeping.rank(found, 'x')
  sweeping.draw(found, grid, 'accuracy', tmp_path / 'map.png')
  assert (tmp_path / 'map.png').stat().st_size > 1000
  lines = sweeping.as_csv(found).splitlines()
  assert lines[0] == 'a,b,c,finished,round,accuracy,loss'
  assert lines[8] == '2,2,2,0,4,0.7,0.7'
