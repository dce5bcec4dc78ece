"""Grids and their cells."""

from pda_fed.compare import grids
import pytest


def test_grid_and_cells():
  grid = grids.parse(['--clip_norm=0.3,1', 'data_dir=a/b'])
  assert list(map(grids.as_flags, grids.cells(grid))) == [
    ['--clip_norm=0.3', '--data_dir=a/b'],
    ['--clip_norm=1', '--data_dir=a/b'],
  ]


def test_cells_have_folders_of_their_own():
  cells = grids.cells(grids.parse(['data_dir=a/b,a_b,a b,a%2Fb,a.b']))
  names = set(map(grids.cell_name, cells))
  assert len(names) == 5
  assert not any('/' in name for name in names)


@pytest.mark.parametrize(
  'texts, message',
  [
    (['rounds'], 'tune must be SETTING=VALUE'),
    (['rounds='], 'tune must be SETTING=VALUE'),
    (['rounds=1', 'rounds=2'], 'tune must have rounds once'),
    (['rounds=1,1'], 'tune must have each value once'),
    (['rounds=1,x'], 'rounds must be an integer'),
    (['plan.rounds=1'], 'plan.rounds is not a setting. Did you mean rounds?'),
    (['roundz=1'], 'roundz is not a setting. Did you mean rounds?'),
  ],
)
def test_bad_grids(texts, message):
  with pytest.raises(ValueError, match=message):
    grids.parse(texts)


def test_owners_of_axes_must_be_there():
  with pytest.raises(ValueError, match="one of a, b and a colon. Found 'c:"):
    grids.by_owner(['c:rounds=1'], ['a', 'b'], 'tune')
  # A value may have a colon.
  found = grids.by_owner(['data_dir=c:1'], ['a'], 'tune')
  assert found == {'a': {'data_dir': ['c:1']}}


@pytest.mark.parametrize(
  'value, axis, is_at_end',
  [
    (5, [5, 0.3, 1], True),
    (0.3, [5, 0.3, 1], True),
    (1, [5, 0.3, 1], False),
    (1, [1], False),  # It was not searched.
    ('jax', ['jax', 'tff'], False),
    (0, [0, 1], False),
  ],
)
def test_ends_of_axes(value, axis, is_at_end):
  assert grids.is_at_end(value, axis) == is_at_end
