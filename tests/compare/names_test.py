"""Names, orders and colours of methods and metrics."""

from pda_fed import methods
from pda_fed.compare import names
from pda_fed.methods import base
import pytest

_ALL = 'perplexity accuracy accuracy_with_oov'
_TEXT = ['accuracy', 'accuracy_with_oov', 'loss', 'perplexity']
_METHODS = ['cold', 'warm', 'pda', 'semi_dp', 'dope', 'adadps']


def test_tables_have_one_order():
  found = names.in_order({*_METHODS, 'unknown', 'another', names.PUBLIC})
  assert found == [names.PUBLIC, *_METHODS, 'another', 'unknown']


def test_every_method_has_a_colour_of_its_own(monkeypatch):
  for name in ('mine', 'yours'):
    monkeypatch.setitem(base.REGISTRY, name, methods.WarmStart)
  some = [*_METHODS, 'mine', 'yours', 'not installed here']
  assert len(set(map(names.colour, some))) == len(some)


def test_titles_tell_two_accuracies_apart():
  assert names.metric_title('accuracy', ['loss']) == 'accuracy (%)'
  assert [names.metric_title(metric, _TEXT) for metric in _TEXT] == [
    'accuracy, known words (%)',
    'accuracy, all tokens (%)',
    'loss',
    'perplexity',
  ]


@pytest.mark.parametrize(
  ('known', 'wanted', 'select_by', 'shown', 'selected'),
  [
    (_TEXT, [], 'loss', _ALL, 'perplexity'),
    (_TEXT, [], 'accuracy', _ALL, 'accuracy'),
    (_TEXT, ['loss'], 'loss', 'loss', 'loss'),
    (_TEXT, ['accuracy'], 'loss', 'accuracy loss', 'loss'),
    (['accuracy', 'loss'], [], 'loss', 'loss accuracy', 'loss'),
    (['bleu', 'loss'], ['bleu'], 'bleu', 'bleu', 'bleu'),
  ],
)
def test_what_is_shown(known, wanted, select_by, shown, selected):
  found = names.to_show(known, wanted, select_by)
  assert found == (tuple(shown.split()), selected)


def test_what_is_not_known():
  with pytest.raises(ValueError, match="metrics must be among loss. Found 'x'"):
    names.to_show(['loss'], ['x'])
  with pytest.raises(ValueError, match='select_by must be among accuracy. Fou'):
    names.to_show(['accuracy'])
