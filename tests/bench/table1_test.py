"""Curves of Table 1."""

import math

import pytest

from bench import table1

_RUNS = table1.Runs('blogs', '4', '3', '8', '556')
_ROW = {
  'data': 'blogs',
  'method': 'pda',
  'server_learning_rate': '3',
  'alpha_i': '8',
  'seed': '2',
  'pretraining': '6',
}


@pytest.mark.parametrize(
  'changed, expected',
  [
    ({}, True),
    ({'data': 'stackexchange'}, False),
    ({'server_learning_rate': '2'}, False),
    ({'alpha_i': '5'}, False),
    ({'seed': '1'}, False),  # It started from another model.
    ({'pretraining': '5'}, False),
    ({'method': 'warm', 'alpha_i': ''}, True),
    ({'method': 'cold', 'alpha_i': '', 'pretraining': ''}, False),
  ],
)
def test_runs_of_a_comparison_have_its_settings_and_start(changed, expected):
  assert _RUNS.has(_ROW | changed) == expected


def test_curves_are_by_method_metric_seed_and_round():
  values = {'loss': str(math.log(7)), 'accuracy': '0.25'}
  points = [_ROW | values | {'round': r} for r in ('0', '100')]
  points.append(points[0] | {'alpha_i': '5', 'round': '200'})
  curves = table1.read_curves(points, _RUNS)
  assert curves['pda', 'accuracy'] == {'2': {0: 25.0, 100: 25.0}}
  found = curves['pda', 'perplexity']['2']
  assert found == pytest.approx({0: 7.0, 100: 7.0})
