"""Sentences about verdicts and privacy."""

import math

import numpy as np
from pda_fed.compare import findings
from pda_fed.compare import verdicts
import pytest


def _by_seed(*values):
  return dict(enumerate(map(float, values)))


def _sentence(metric, values):
  verdict = verdicts.decide(metric, values)
  means = {
    method: {metric: np.mean(list(of.values()))}
    for method, of in values.items()
  }
  writer = findings.Writer((metric,), means)
  return writer.sentence(verdict)


def test_a_clear_winner_in_points():
  values = {'a': _by_seed(0.222, 0.23, 0.238), 'b': _by_seed(0.21, 0.22, 0.228)}
  # Differences 1.2, 1.0 and 1.0 points: 1.0667 +- 4.303 * 0.0667.
  assert _sentence('accuracy', values) == (
    'A is better than b in accuracy, by 1.07 points (95 %'
    ' interval 0.78 to 1.35).'
  )


def test_no_clear_winner():
  values = {'a': _by_seed(90, 91, 92), 'b': _by_seed(90, 92, 94)}
  # Differences 0, 1 and 2: 1 +- 4.303 * 0.577.
  assert _sentence('perplexity', values) == (
    'No clear winner between a and b in perplexity (difference'
    ' 1.00, 95 % interval -1.48 to 3.48).'
  )


@pytest.mark.parametrize(
  'difference, words',
  [
    # 0.19 +- 4.303 * 0.045.
    (0.235, '(difference 0.190, 95 % interval -0.004 to 0.384).'),
    # 0.1867 +- 4.303 * 0.0433.
    (0.23, 'by 0.1867 (95 % interval 0.0002 to 0.3731).'),
  ],
)
def test_an_interval_that_ends_near_0_has_more_decimals(difference, words):
  b = _by_seed(90.1, 91 + difference, 92 + difference)
  text = _sentence('perplexity', {'a': _by_seed(90, 91, 92), 'b': b})
  assert text.endswith(words)


def test_one_seed_and_other_seeds():
  assert _sentence('loss', {'a': {0: 1.5}, 'b': {0: 1.25}}) == (
    'One seed: no verdict. B has the best loss, 0.2500 better than a.'
  )
  apart = {'a': {0: 1.0, 1: 1.1}, 'b': {2: 5.0, 3: 5.1}}
  assert 'share fewer than two seeds' in _sentence('loss', apart)


def test_what_diverged_is_left_out():
  values = {
    'a': _by_seed(1, 1.1),
    'b': _by_seed(2, 2.1),
    'c': _by_seed(0.1, math.nan),
  }
  assert verdicts.decide('loss', values).left_out == ('c',)
  assert 'because runs diverged: c.' in _sentence('loss', values)
  del values['a']
  assert verdicts.decide('loss', values) is None


def _verdicts(**values):
  return {
    metric: verdicts.decide(metric, dict(zip('ab', of, strict=True)))
    for metric, of in values.items()
  }


def _disagreement(found):
  writer = findings.Writer(('accuracy', 'accuracy_with_oov', 'perplexity'), {})
  return writer.disagreement(found)


def test_metrics_that_disagree():
  low, high = _by_seed(1.0, 1.1, 1.0), _by_seed(2.0, 2.1, 2.05)
  found = _verdicts(
    perplexity=(low, high), accuracy_with_oov=(high, low), accuracy=(low, high)
  )
  assert _disagreement(found) == [
    'Metrics disagree: perplexity and accuracy over all tokens prefer a,'
    ' accuracy over known words b.'
  ]
  del found['accuracy']
  assert not _disagreement(found)


def test_metrics_disagree_only_surely():
  low, high = _by_seed(1.0, 1.1, 1.0), _by_seed(0.9, 1.3, 1.0)
  unsure = _verdicts(perplexity=(low, high), accuracy=(low, high))
  assert not _disagreement(unsure)
  surely = (low, _by_seed(2.0, 2.1, 2.05))
  assert _disagreement(_verdicts(perplexity=surely, accuracy=(low, high)))
  # With one seed nothing is sure, and the hint is worth it.
  one = _verdicts(perplexity=({0: 1.0}, {0: 2.0}), accuracy=({0: 1}, {0: 2}))
  assert 'prefers a, accuracy over known words b.' in _disagreement(one)[0]
