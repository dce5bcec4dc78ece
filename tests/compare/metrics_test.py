"""Names and orders of metrics."""

from pda_fed.compare import metrics
import pytest

_ALL = 'perplexity accuracy accuracy_with_oov'
_TEXT = ['accuracy', 'accuracy_with_oov', 'loss', 'perplexity']


def test_titles_tell_two_accuracies_apart():
  assert metrics.title_of('accuracy', ['accuracy', 'loss']) == 'accuracy (%)'
  titles = [metrics.title_of(metric, _TEXT) for metric in _TEXT]
  assert titles == [
    'accuracy, known words (%)',
    'accuracy, all tokens (%)',
    'loss',
    'perplexity',
  ]


@pytest.mark.parametrize(
  ('known', 'wanted', 'select_by', 'shown', 'selected'),
  [
    (_TEXT, None, 'loss', _ALL, 'perplexity'),
    (_TEXT, None, 'accuracy', _ALL, 'accuracy'),
    (_TEXT, ['loss'], 'loss', 'loss', 'loss'),
    (_TEXT, ['accuracy'], 'loss', 'accuracy loss', 'loss'),
    (['accuracy', 'loss'], None, 'loss', 'loss accuracy', 'loss'),
    (['bleu', 'loss'], ['bleu'], 'bleu', 'bleu', 'bleu'),
  ],
)
def test_what_is_shown(known, wanted, select_by, shown, selected):
  found = metrics.to_show(known, wanted, select_by)
  assert found == (tuple(shown.split()), selected)


def test_what_is_not_known():
  with pytest.raises(ValueError, match="metrics must be among loss. Found 'x'"):
    metrics.to_show(['loss'], ['x'])
  with pytest.raises(ValueError, match='select_by must be among accuracy. Fou'):
    metrics.to_show(['accuracy'])
