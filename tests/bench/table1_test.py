"""Verdicts and curves of Table 1."""

import math

import pytest

from bench import table1


def _run(method, seed, perplexity, **changed):
  return {
    'data': 'blogs',
    'method': method,
    'server_learning_rate': '1',
    'client_learning_rate': '0.5',
    'alpha_i': '8' if method == 'pda' else '',
    'public_update': 'local_training' if method == 'pda' else '',
    'seed': seed,
    'pretraining': '' if method == 'cold' else '1',
    'perplexity': perplexity,
    'accuracy': '0.5',
    'accuracy_with_oov': '0.5',
  } | changed


def _runs(**values):
  return [
    _run(method, str(seed), str(value))
    for method, of in values.items()
    for seed, value in enumerate(of)
  ]


def test_sentences_compare_seed_by_seed():
  runs = _runs(cold=(30, 31), warm=(20, 21), pda=(18.5, 19.5))
  first, second, *_ = table1.sentences(runs)
  assert first == (
    'PDA-DPMD is better than warm start in perplexity, by 1.50 (95 % interval'
    ' 1.50 to 1.50).'
  )
  assert second.startswith('PDA-DPMD is better in perplexity than cold start')


def test_comparisons_have_one_setting_of_a_method():
  stackexchange = {'data': 'stackexchange'}
  cold = _run('cold', '0', '1', **stackexchange)
  warm = _run('warm', '0', '2', **stackexchange)
  local = _run('pda', '0', '2', **stackexchange)
  gradient = local | {'public_update': 'gradient'}
  cold_on_blogs, blogs = _run('cold', '0', '4'), _run('warm', '0', '3')
  rate_2, other = blogs | {'seed': '1'}, warm | {'seed': '1'}
  found = table1.comparisons(
    [cold, cold_on_blogs, blogs, warm, local, gradient],
    [
      other,
      rate_2,
      blogs | {'pretraining': '4'},
      cold | {'seed': '1'},
    ],
  )
  assert list(found.values()) == [
    [cold_on_blogs, blogs],
    [cold_on_blogs, rate_2],
    [cold, other],
    [cold, warm, gradient],
  ]


@pytest.mark.parametrize(
  'column, value',
  [
    ('server_learning_rate', '2'),
    ('public_update', 'gradient'),
    ('pretraining', '2'),
    ('seed', '1'),
  ],
)
def test_curves_are_those_of_the_runs(column, value):
  def point(round_num, **changed):
    shown = {'round': round_num, 'loss': str(math.log(7)), 'accuracy': '0.25'}
    return _run('pda', '0', '') | shown | changed

  other = point('0', **{column: value, 'loss': '9'})
  points = [point('0'), point('100'), other]
  curves = table1.read_curves(points, [_run('pda', '0', '7')])
  assert curves['pda', 'accuracy'] == {'0': {0: 25.0, 100: 25.0}}
  found = curves['pda', 'perplexity']
  assert list(found) == ['0']
  assert found['0'] == pytest.approx({0: 7.0, 100: 7.0})
