"""Tasks of the benchmark as files, and equal numbers of tries."""

import dataclasses
import json

from pda_fed.compare import benchmark_tasks
import pytest

CONTENT = {
  'format': 'pda_fed benchmark task',
  'title': 'Task',
  'epsilon': 1.5,
  'binary': 'train_sample_level',
  'data_dir': 'there',
  'flags': ['--epochs=1'],
  'search_flags': [],
  'select_by': 'loss',
  'metrics': ['accuracy', 'loss'],
  'rates': ['learning_rate=1,2,3'],
  'grids': {
    'warm': ['learning_rate=1,2,3,4,5,6'],
    'pda': ['learning_rate=1,2,3', 'alpha_K=5,9'],
  },
}


def _load(folder, **changes):
  path = folder / 'some_task.json'
  path.write_text(json.dumps({**CONTENT, **changes}))
  return benchmark_tasks.load(path)


def test_what_is_written_is_read(tmp_path):
  task = _load(tmp_path)
  assert (task.name, task.epsilon, task.tries) == ('some_task', 1.5, 6)
  task.write(tmp_path / 'other.json')
  again = benchmark_tasks.load(tmp_path / 'other.json')
  assert dataclasses.replace(again, name='some_task') == task
  assert json.loads((tmp_path / 'other.json').read_text()) == CONTENT


@pytest.mark.parametrize('data_dir', ['', None])
def test_data_may_have_no_folder_of_their_own(tmp_path, data_dir):
  assert _load(tmp_path, data_dir=data_dir).data_dir == data_dir


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'format': 'x'}, "its 'format' must be 'pda_fed benchmark task'"),
    ({'more': 1}, 'its keys must be format, binary.* Found .*more'),
    ({'epsilon': 0}, 'epsilon must be positive and finite. Found 0'),
    ({'epsilon': '2'}, "epsilon must be a number. Found '2'"),
    ({'title': ''}, "title must be a non-empty string. Found ''"),
    ({'data_dir': 3}, 'data_dir must be a string or null. Found 3'),
    ({'flags': '--a'}, "flags must be a list of strings. Found '--a'"),
    ({'metrics': [1]}, 'metrics must be a non-empty string. Found 1'),
    ({'rates': []}, 'rates must have at least one flag'),
    ({'grids': []}, r'grids must be an object. Found \[\]'),
    ({'grids': {}}, 'grids must have at least one method'),
    ({'grids': {'warm': ['a']}}, "grids must be flag=value,.* Found 'a'"),
  ],
)
def test_what_is_no_task_is_refused(tmp_path, changes, message):
  with pytest.raises(ValueError, match=f'some_task.json must be.*{message}'):
    _load(tmp_path, **changes)


def test_unequal_tries_are_refused(tmp_path):
  grids = {**CONTENT['grids'], 'dope': ['learning_rate=1,2']}
  message = 'same number of tries. Found 6 for warm, 6 for pda, 2 for dope'
  with pytest.raises(ValueError, match=message):
    _load(tmp_path, grids=grids)


def test_another_method_has_the_rates_of_the_task_or_its_own(tmp_path):
  task = _load(tmp_path)
  more = task.with_method('mine', ['mine_weight=0.5,0.9'])
  assert more.grids['mine'] == ('learning_rate=1,2,3', 'mine_weight=0.5,0.9')
  assert task.with_method('mine', ['learning_rate=1,2,4,8,9,10']).tries == 6
  assert list(more.only(['mine', 'pda']).grids) == ['mine', 'pda']
  with pytest.raises(ValueError, match='Found .* 9 for mine'):
    task.with_method('mine', ['mine_weight=0.1,0.5,0.9'])
  with pytest.raises(ValueError, match='tune must have at least one flag'):
    task.with_method('mine', [])


@pytest.mark.parametrize(
  ('methods', 'axes', 'found'),
  [
    ([], [], ['warm', 'pda']),
    (['pda'], [], ['pda']),
    (['mine'], ['mine_weight=1,2'], ['mine']),
    (['mine', 'warm'], ['mine_weight=1,2'], ['mine', 'warm']),
  ],
)
def test_methods_that_are_asked_for(tmp_path, methods, axes, found):
  assert list(_load(tmp_path).asked_for(methods, axes).grids) == found


@pytest.mark.parametrize(
  ('methods', 'axes', 'message'),
  [
    (['a', 'b'], ['x=1'], 'Found a, b: add one at a time'),
    (['warm'], ['x=1'], 'tune must be given with a method'),
    ([], ['x=1'], 'which has grids for warm, pda'),
    (['a'], [], 'tune must have at least one flag'),
  ],
)
def test_methods_that_cannot_be_asked_for(tmp_path, methods, axes, message):
  with pytest.raises(ValueError, match=message):
    _load(tmp_path).asked_for(methods, axes)


def test_earlier_methods_stay(tmp_path):
  task = _load(tmp_path)
  pda = task.only(['pda'])
  mine = task.asked_for(['mine'], ['mine_weight=1,2'])
  both = mine.joined_with(pda)
  assert list(both.grids) == ['pda', 'mine']
  assert list(pda.joined_with(both).grids) == ['pda', 'mine']
  other = task.asked_for(['mine'], ['mine_weight=1,3'])
  with pytest.raises(
    ValueError, match='some_task or one of its grids has changed'
  ):
    other.joined_with(both)
  with pytest.raises(ValueError, match='has changed'):
    dataclasses.replace(mine, flags=()).joined_with(pda)


def test_axes_of_a_task_that_is_not_there_are_refused():
  with pytest.raises(ValueError, match="one of the tasks a, b. Found 'c:x=1'"):
    benchmark_tasks.axes_by_task(['c:x=1'], ['a', 'b'])
  # A value may have a colon.
  assert benchmark_tasks.axes_by_task(['x=c:1'], ['a']) == {'a': ['x=c:1']}
