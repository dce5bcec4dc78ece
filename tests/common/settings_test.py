"""Settings as data: names, checks, and copies with other values."""

import dataclasses
import functools
from typing import Optional, Union

from pda_fed.common import settings
from pda_fed.common import validate
import pytest

_setting = settings.setting


@dataclasses.dataclass(frozen=True)
class _Server(settings.Group):
  PREFIX = 'server.'

  rate: float = _setting(1.0, 'The rate.', check=validate.positive)
  clip: Union[float, str, None] = _setting(
    'private',
    'A bound.',
    check=functools.partial(validate.positive_or, ('private',)),
  )
  kept: int = _setting(3, 'How many are kept.', affects_result=False)


@dataclasses.dataclass(frozen=True)
class _Plan(settings.Group):
  rounds: Optional[int] = _setting(10, 'Rounds.', only='users')
  kind: str = _setting('a', 'A kind.', choices=('a', 'b'))


@dataclasses.dataclass(frozen=True)
class _Spec(settings.Group):
  server: _Server = _Server()
  plan: _Plan = _Plan()
  method: settings.Choice = _setting(settings.Choice('pda'), 'The method.')


def test_names_help_and_types_of_flags():
  found = settings.by_name(_Spec)
  assert list(found) == [
    'server.rate',
    'server.clip',
    'server.kept',
    'rounds',
    'kind',
    'method',
  ]
  rounds = found['rounds']
  assert (rounds.path, rounds.type) == (('plan', 'rounds'), int)
  assert rounds.default == 10
  assert (rounds.help, rounds.only) == ('Rounds.', 'users')
  assert rounds.of(_Spec(plan=_Plan(rounds=7))) == 7
  assert found['kind'].choices == ('a', 'b')


@pytest.mark.parametrize(
  'values, error, words',
  [
    ({'server.rat': 1}, ValueError, 'server.rat is not a setting.*server.rate'),
    ({'rate': 1}, ValueError, 'Did you mean server.rate'),
    ({'kind.x': 1}, ValueError, 'kind.x is not a setting'),
    ({'server.rate': '1'}, TypeError, "server.rate must be a finite .* '1'"),
    ({'server.rate': float('nan')}, TypeError, 'must be a finite number'),
    ({'server.rate': True}, TypeError, 'must be a finite number'),
    ({'server.rate': -1}, ValueError, 'server.rate must be positive'),
    ({'server.clip': 'x'}, ValueError, "server.clip must be .* 'private'"),
    ({'rounds': 1.5}, TypeError, 'rounds must be an integer or none'),
    (
      {'plan.rounds': 1},
      ValueError,
      'plan.rounds is not .* Did you mean rounds',
    ),
    ({'kind': 'c'}, ValueError, "kind must be one of 'a', 'b'. Found 'c'"),
    ({'method': 3}, TypeError, 'method must be a name or an object'),
    ({'method': {'name': 3}}, TypeError, 'method must be a name or an object'),
  ],
)
def test_a_bad_value_gets_one_line_with_its_name(values, error, words):
  with pytest.raises(error, match=words) as e:
    settings.replace(_Spec(), values)
  assert '\n' not in str(e.value)


def test_constructors_check_and_convert_too():
  assert _Server(rate=2).rate == 2.0 and isinstance(_Server(rate=2).rate, float)
  assert _Spec(method='dope').method == settings.Choice('dope')
  with pytest.raises(TypeError, match='kept must be an integer'):
    _Server(kept='3')


def test_a_choice_keeps_its_settings_unless_its_name_changes():
  spec = settings.replace(_Spec(), {'method.alpha_i': 5, 'method': 'pda'})
  assert spec.method == settings.Choice('pda', {'alpha_i': 5})
  same = settings.replace(spec, {'method': 'pda', 'method.weight': 1})
  assert same.method.settings == {'alpha_i': 5, 'weight': 1}
  other = settings.replace(spec, {'method.weight': 1, 'method': 'semi_dp'})
  assert other.method == settings.Choice('semi_dp', {'weight': 1})


def test_json_round_trip():
  spec = settings.replace(
    _Spec(), {'server.clip': None, 'rounds': None, 'method.list': [1, 2]}
  )
  content = settings.as_json(spec)
  assert content['plan'] == {'rounds': None, 'kind': 'a'}
  assert content['method'] == {'name': 'pda', 'list': [1, 2]}
  values = settings.flatten(content, _Spec)
  assert settings.replace(_Spec(), values) == spec
  results = settings.as_json(spec, only_results=True)
  assert 'kept' in content['server'] and 'kept' not in results['server']


def test_json_with_two_values_for_one_name_is_refused():
  with pytest.raises(ValueError, match='rate must have one value'):
    settings.loads('{"server": {"rate": 1, "rate": 2}}')
  with pytest.raises(ValueError, match='rounds must have one value'):
    settings.flatten({'rounds': 1, 'plan': {'rounds': 2}}, _Spec)
  with pytest.raises(TypeError, match='server must be an object. Found 3'):
    settings.flatten({'server': 3}, _Spec)


@pytest.mark.parametrize(
  'text, hint, value',
  [
    ('5', int, 5),
    ('none', Optional[float], None),
    ('private', Union[float, str, None], 'private'),
    ('0.5', Union[float, str, None], 0.5),
    ('8,16', tuple[int, ...], [8, 16]),
    ('8,16', tuple[str, ...], ['8', '16']),
    ('5', str, '5'),
  ],
)
def test_texts_of_a_command_line(text, hint, value):
  assert settings.parse(text, hint) == value


@pytest.mark.parametrize('text, hint', [('x', int), ('1.5', int), ('', float)])
def test_texts_of_another_type(text, hint):
  with pytest.raises(ValueError, match='must be a'):
    settings.parse(text, hint)
