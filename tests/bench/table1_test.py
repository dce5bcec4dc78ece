"""Verdicts and curves of Table 1."""

import math

import pytest

from bench import table1


def _run(method, seed, perplexity, data='blogs'):
  return {
    'data': data,
    'method': method,
    'server_learning_rate': '1',
    'client_learning_rate': '0.5',
    'alpha_i': '8' if method == 'pda' else '',
    'seed': seed,
    'perplexity': perplexity,
    'accuracy': '0.5',
    'accuracy_with_oov': '0.5',
  }


def test_sentences_compare_seed_by_seed():
  values = {'cold': (30, 31), 'warm': (20, 21), 'pda': (18.5, 19.5)}
  runs = [
    _run(method, str(seed), str(value))
    for method, of in values.items()
    for seed, value in enumerate(of)
  ]
  # Another data set has no effect.
  runs.append(_run('warm', '0', '1', data='stackexchange'))
  first, second, *_ = table1.sentences(runs, 'blogs')
  assert first == (
    'PDA-DPMD is better than warm start in perplexity, by 1.50 (95 % interval'
    ' 1.50 to 1.50).'
  )
  assert second.startswith('PDA-DPMD is better in perplexity than cold start')


def test_curves_are_those_of_finished_runs():
  def point(seed, round_num):
    return _run('pda', seed, '') | {
      'round': round_num,
      'loss': str(math.log(7)),
      'accuracy': '0.25',
    }

  points = [point('0', '0'), point('0', '100'), point('1', '0')]
  points.append(point('0', '0') | {'server_learning_rate': '2', 'loss': '9'})
  curves = table1.read_curves(points, [_run('pda', '0', '7')])
  assert curves['blogs', 'pda', 'accuracy'] == {'0': {0: 25.0, 100: 25.0}}
  found = curves['blogs', 'pda', 'perplexity']
  assert list(found) == ['0']
  assert found['0'] == pytest.approx({0: 7.0, 100: 7.0})
