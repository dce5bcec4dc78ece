"""Tasks of the benchmark as files, and equal numbers of trials."""

import json

from pda_fed.compare import benchmark_tasks
import pytest

CONTENT = {
  'format': 'pda_fed benchmark task',
  'title': 'Task',
  'epsilon': 1.5,
  'data_dir': 'there',
  'settings': {'dataset': 'digits', 'epochs': 1},
  'search_settings': {},
  'select_by': 'loss',
  'metrics': ['accuracy', 'loss'],
  'rates': {'server.learning_rate': [1, 2, 3]},
  'grids': {
    'warm': {'server.learning_rate': [1, 2, 3, 4, 5, 6]},
    'pda': {'server.learning_rate': [1, 2, 3], 'method.alpha_K': [5, 9]},
  },
}


def _load(folder, **changes):
  path = folder / 'some_task.json'
  path.write_text(json.dumps({**CONTENT, **changes}))
  return benchmark_tasks.load(path)


def test_a_task_is_read(tmp_path):
  task = _load(tmp_path)
  assert (task.name, task.epsilon, task.trials) == ('some_task', 1.5, 6)


@pytest.mark.parametrize('data_dir', ['', None])
def test_data_may_have_no_folder_of_their_own(tmp_path, data_dir):
  assert _load(tmp_path, data_dir=data_dir).data_dir == data_dir


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'format': 'x'}, "its 'format' must be 'pda_fed benchmark task'"),
    ({'more': 1}, 'more is not a field'),
    ({'epsilon': 0}, 'epsilon must be positive and finite. Found 0'),
    ({'epsilon': '2'}, "epsilon must be a finite number. Found '2'"),
    ({'title': ''}, "title must be a non-empty string. Found ''"),
    ({'data_dir': 3}, 'data_dir must be a text or none. Found 3'),
    ({'settings': '--a'}, "settings must be .*. Found '--a'"),
    ({'settings': {'epochz': 1}}, 'epochz is not a setting. Did you mean ep'),
    ({'settings': {'rounds': 'x'}}, 'rounds must be an integer'),
    ({'metrics': [1]}, 'metrics must be a text. Found 1'),
    ({'rates': {}}, 'rates must have at least one setting'),
    ({'grids': []}, r'grids must be .*. Found \[\]'),
    ({'grids': {}}, 'grids must have at least one method'),
    ({'grids': {'warm': {'a': [1]}}}, 'a is not a setting'),
    ({'grids': {'warm': {'rounds': [1, 1]}}}, 'each value once'),
  ],
)
def test_what_is_no_task_is_refused(tmp_path, changes, message):
  with pytest.raises(ValueError, match=f'some_task.json must be.*{message}'):
    _load(tmp_path, **changes)


_WEIGHTS = {'method.weight': [0.5, 0.9]}
_RATE = 'server.learning_rate'


def test_unequal_trials_are_refused(tmp_path):
  grids = {**CONTENT['grids'], 'dope': {_RATE: [1, 2]}}
  message = 'same number of trials. Found 6 for warm, 6 for pda, 2 for dope'
  with pytest.raises(ValueError, match=message):
    _load(tmp_path, grids=grids)


def test_another_method_has_the_rates_of_the_task_or_its_own(tmp_path):
  task = _load(tmp_path)
  found = task.asked_for(['mine', 'pda'], _WEIGHTS).grids
  assert found == {
    'mine': {_RATE: [1, 2, 3], **_WEIGHTS},
    'pda': CONTENT['grids']['pda'],
  }
  own = {_RATE: [1, 2, 4, 8, 9, 10]}
  assert task.asked_for(['mine'], own).grids == {'mine': own}
  # It has as many trials as those that are not asked for.
  with pytest.raises(ValueError, match='Found .* 9 for mine'):
    task.asked_for(['mine'], {'method.weight': [0.1, 0.5, 0.9]})


@pytest.mark.parametrize(
  'methods, grid, found',
  [
    ([], {}, ['warm', 'pda']),
    (['pda'], {}, ['pda']),
    (['mine'], _WEIGHTS, ['mine']),
    (['mine', 'warm'], _WEIGHTS, ['mine', 'warm']),
  ],
)
def test_methods_that_are_asked_for(tmp_path, methods, grid, found):
  assert list(_load(tmp_path).asked_for(methods, grid).grids) == found


@pytest.mark.parametrize(
  'methods, grid, message',
  [
    (['a', 'b'], _WEIGHTS, 'Found a, b: add one at a time'),
    (['warm'], _WEIGHTS, 'tune must be given with a method'),
    ([], _WEIGHTS, 'which has grids for warm, pda'),
    (['a'], {}, 'same number of trials'),
  ],
)
def test_methods_that_cannot_be_asked_for(tmp_path, methods, grid, message):
  with pytest.raises(ValueError, match=message):
    _load(tmp_path).asked_for(methods, grid)
