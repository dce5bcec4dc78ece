"""How settings were chosen: the file, and what is said."""

import json
import pathlib

from pda_fed import errors
from pda_fed.compare import choices
import pytest

_PRESETS = pathlib.Path(__file__).parents[2] / 'scripts/presets'


def _choices(**trials):
  return choices.Choices(
    'python -m scripts.compare ...',
    'loss',
    {
      method: choices.Choice({'clip_norm': number}, number, 0.5 * number)
      for method, number in trials.items()
    },
  )


def test_what_is_written_is_read_again(tmp_path):
  path = tmp_path / 'chosen.json'
  found = _choices(warm=2, pda=2)
  found.write(path)
  assert choices.load(path, ['warm', 'pda']) == found
  assert list(choices.load(path, ['pda']).methods) == ['pda']
  assert json.loads(path.read_text())['methods']['pda'] == {
    'settings': {'clip_norm': 2},
    'trials': 2,
    'value': 1.0,
  }


def test_methods_of_the_main_job_had_the_same_number_of_trials():
  path = _PRESETS / 'stackexchange.json'
  found = choices.load(path, ['cold', 'warm', 'pda'])
  assert {choice.trials for choice in found.methods.values()} == {9}
  assert found.select_by == 'loss'
  assert '--flagfile=scripts/presets/stackexchange.flags' in found.command


def test_different_numbers_of_trials_are_a_warning():
  (line,) = _choices(warm=2, pda=2).lines()
  assert line == (
    'Settings were chosen by validation loss: --clip_norm=2 for warm start (2'
    ' trials); --clip_norm=2 for PDA-DPMD (2 trials).'
  )
  _, warning = _choices(warm=1, pda=3).lines()
  assert 'different numbers of trials, from 1 to 3' in warning


@pytest.mark.parametrize(
  'place, value, words',
  [
    (['format'], 'pda_fed run', "its 'format' must be"),
    (['command'], 3, 'command must be a text. Found 3'),
    (['select_by'], '', "select_by must be a non-empty string. Found ''"),
    (['more'], 1, 'more is not a field'),
    (['methods'], [], 'methods must be'),
    (['methods'], {}, 'methods must have at least one'),
    (['methods', 'pda'], None, 'methods.pda must be an object'),
    (['methods', 'pda', 'settings'], '--a', 'methods.pda.settings must be'),
    (['methods', 'pda', 'settings'], {'clip': 1}, 'clip is not a setting'),
    (['methods', 'pda', 'trials'], True, 'trials must be an integer'),
    (['methods', 'pda', 'trials'], -1, 'trials must be at least 0. Found -1'),
    (['methods', 'pda', 'value'], None, 'value must be a number after 2 tria'),
    (['methods', 'pda', 'value'], '1', 'value must be a finite number'),
  ],
)
def test_damaged_files(tmp_path, place, value, words):
  path = tmp_path / 'chosen.json'
  _choices(warm=2, pda=2).write(path)
  content = json.loads(path.read_text())
  *parents, last = place
  inner = content
  for name in parents:
    inner = inner[name]
  inner[last] = value
  path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=words) as e:
    choices.load(path, ['pda'])
  assert str(path) in str(e.value)
  assert '\n' not in str(e.value)


def test_methods_that_are_not_known_or_not_there(tmp_path):
  path = tmp_path / 'chosen.json'
  _choices(warm=2).write(path)
  with pytest.raises(ValueError, match='Found warm, but not cold, pda'):
    choices.load(path, ['cold', 'warm', 'pda'])
  path.write_text(path.read_text()[:50])
  with pytest.raises(errors.OutputError, match='cannot be read'):
    choices.load(path, ['warm'])
  with pytest.raises(errors.OutputError, match='cannot be read'):
    choices.load(tmp_path / 'nothing.json', ['warm'])
