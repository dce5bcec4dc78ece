import math

from pda_fed.common import validate
import pytest


@pytest.mark.parametrize(
  'check, good',
  [
    (validate.positive, (1, 0.5)),
    (validate.non_negative, (0, 0.0, 2)),
    (lambda **v: validate.in_range(0, 1, **v), (0, 0.5, 1)),
    (lambda **v: validate.between(0, 1, **v), (0.5, 1e-9)),
    (lambda **v: validate.integers(1, **v), (1, 7)),
    (lambda **v: validate.one_of(('a', 'b'), **v), ('a', 'b')),
  ],
)
def test_good_values_pass(check, good):
  for value in good:
    check(x=value)


@pytest.mark.parametrize(
  'check, bad, rule',
  [
    (validate.positive, (0, -1, math.nan, math.inf), 'positive'),
    (validate.non_negative, (-1e-9, math.nan, math.inf), 'non-negative'),
    (
      lambda **v: validate.in_range(0, 1, **v),
      (-0.1, 1.1, math.nan),
      r'in \[0, 1\]',
    ),
    (
      lambda **v: validate.between(0, 1, **v),
      (0, 1, math.nan),
      r'in \(0, 1\)',
    ),
    (lambda **v: validate.integers(1, **v), (0, -3), 'at least 1'),
    (lambda **v: validate.one_of(('a', 'b'), **v), ('c',), "'a', 'b'"),
  ],
)
def test_bad_values_name_the_argument_the_value_and_the_rule(check, bad, rule):
  for value in bad:
    with pytest.raises(ValueError, match=f'clip must be .*{rule}') as info:
      check(clip=value)
    assert repr(value) in str(info.value)


@pytest.mark.parametrize('value', ['1', None, True, [1]])
def test_not_a_number(value):
  with pytest.raises(TypeError, match='clip must be a number'):
    validate.positive(clip=value)


@pytest.mark.parametrize('value', [1.0, '1', True])
def test_not_an_integer(value):
  with pytest.raises(TypeError, match='rounds must be an integer'):
    validate.integers(0, rounds=value)
