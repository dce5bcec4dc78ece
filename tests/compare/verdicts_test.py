"""Verdicts: who wins by which metric, how surely, and in which words."""

import math

import numpy as np
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
  writer = verdicts.Writer((metric,), lambda m: f'method {m.upper()}', means)
  return writer.sentence(verdict)


def test_a_clear_winner_in_points():
  values = {'a': _by_seed(0.222, 0.23, 0.238), 'b': _by_seed(0.21, 0.22, 0.228)}
  # Differences 1.2, 1.0 and 1.0 points: 1.0667 +- 4.303 * 0.0667.
  assert _sentence('accuracy', values) == (
    'Method A is better than method B in accuracy, by 1.07 points (95 %'
    ' interval 0.78 to 1.35).'
  )


def test_no_clear_winner():
  values = {'a': _by_seed(90, 91, 92), 'b': _by_seed(90, 92, 94)}
  # Differences 0, 1 and 2: 1 +- 4.303 * 0.577.
  assert _sentence('perplexity', values) == (
    'No clear winner between method A and method B in perplexity (difference'
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
    'One seed: no verdict. Method B has the best loss, 0.2500 better than'
    ' method A.'
  )
  apart = {'a': {0: 1.0, 1: 1.1}, 'b': {2: 5.0, 3: 5.1}}
  assert 'share fewer than two seeds' in _sentence('loss', apart)


def test_a_winner_is_better_than_each_other():
  verdict = verdicts.decide(
    'accuracy',
    {
      'a': _by_seed(10, 11, 12),
      'noisy': _by_seed(0, 9, 18),
      'b': _by_seed(9.5, 10.5, 11.4),
    },
  )
  assert verdict.best == 'a'
  assert list(verdict.leads) == ['b', 'noisy']
  assert verdict.leads['b'].is_clear and not verdict.leads['noisy'].is_clear
  # The sentence is about what keeps it from winning.
  assert not verdict.is_clear and verdict.rival == 'noisy'


def test_a_mean_over_other_seeds_makes_no_winner():
  # Over the seeds that both have, b is better.
  values = {'a': _by_seed(0.1, 0.101, 0.9), 'b': _by_seed(0.2, 0.201)}
  verdict = verdicts.decide('accuracy', values)
  assert verdict.best == 'a' and verdict.leads['b'].high < 0
  assert not verdict.is_clear


def test_what_diverged_is_left_out():
  values = {
    'a': _by_seed(1, 1.1),
    'b': _by_seed(2, 2.1),
    'c': _by_seed(0.1, math.nan),
  }
  assert verdicts.decide('loss', values).left_out == ('c',)
  assert 'because runs diverged: method C.' in _sentence('loss', values)
  del values['a']
  assert verdicts.decide('loss', values) is None


def _simulated(rng, num_methods, num_seeds=3):
  effect = 2 * rng.normal(size=num_seeds)
  return {
    f'm{i}': _by_seed(*(effect + rng.normal(size=num_seeds)))
    for i in range(num_methods)
  }


@pytest.mark.parametrize('num_methods', [2, 3, 4])
def test_equal_methods_have_no_clear_winner(num_methods):
  rng = np.random.default_rng(5)
  found = [
    verdicts.decide('loss', _simulated(rng, num_methods)) for _ in range(1000)
  ]
  hundreds = np.reshape([verdict.is_clear for verdict in found], (10, 100))
  assert np.mean(hundreds) < 0.065
  assert hundreds[0].sum() <= 7


def _verdicts(**values):
  return {
    metric: verdicts.decide(metric, dict(zip('ab', of, strict=True)))
    for metric, of in values.items()
  }


def _disagreement(found):
  writer = verdicts.Writer(
    ('accuracy', 'accuracy_with_oov', 'perplexity'), str.upper, {}
  )
  return writer.disagreement(found)


def test_metrics_that_disagree():
  low, high = _by_seed(1.0, 1.1, 1.0), _by_seed(2.0, 2.1, 2.05)
  found = _verdicts(
    perplexity=(low, high), accuracy_with_oov=(high, low), accuracy=(low, high)
  )
  assert _disagreement(found) == (
    'Metrics disagree: perplexity and accuracy over all tokens prefer A,'
    ' accuracy over known words B.'
  )
  del found['accuracy']
  assert _disagreement(found) is None


def test_metrics_disagree_only_surely():
  low, high = _by_seed(1.0, 1.1, 1.0), _by_seed(0.9, 1.3, 1.0)
  unsure = _verdicts(perplexity=(low, high), accuracy=(low, high))
  assert _disagreement(unsure) is None
  surely = (low, _by_seed(2.0, 2.1, 2.05))
  assert _disagreement(_verdicts(perplexity=surely, accuracy=(low, high)))
  # With one seed nothing is sure, and the hint is worth it.
  one = _verdicts(perplexity=({0: 1.0}, {0: 2.0}), accuracy=({0: 1}, {0: 2}))
  assert 'prefers A, accuracy over known words B.' in _disagreement(one)
