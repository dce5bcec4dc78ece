"""Methods as plain functions of numpy, JAX and TensorFlow arrays."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from pda_fed import errors
from pda_fed import methods
from pda_fed import schedules
from pda_fed.methods import arrays
from pda_fed.methods import base
import pytest
import tensorflow as tf

_LIBRARIES = {'numpy': np.float32, 'jax': jnp.float32, 'tf': tf.constant}
_MEAN = ([3.0, 0.0], 4.0)
_PUBLIC = ([0.0, 4.0], 3.0)


def _update(make, values):
  return tuple(make(np.float32(v)) for v in values)


def _flat(update):
  return [float(v) for leaf in update for v in np.ravel(np.asarray(leaf))]


@pytest.mark.parametrize('make', _LIBRARIES.values(), ids=_LIBRARIES)
def test_server_step_by_hand(make):
  method = methods.PdaDpmd(alpha=schedules.constant(0.75))
  public = _update(make, _PUBLIC)
  update, found = methods.server_step(
    method, _update(make, _MEAN), 0, public, public
  )
  assert _flat(update) == pytest.approx([2.25, 1.0, 3.75])
  assert {n: float(v) for n, v in found.items()} == pytest.approx(
    {
      'alpha': 0.75,
      'private_norm': 5.0,
      'public_norm': 5.0,
      'mixed_norm': math.sqrt(2.25**2 + 1 + 3.75**2),
      'cosine': 12 / 25,
    }
  )


@pytest.mark.parametrize('make', _LIBRARIES.values(), ids=_LIBRARIES)
def test_without_a_direction_the_cosine_is_0(make):
  zeros = _update(make, ([0.0, 0.0], 0.0))
  _, found = methods.server_step(
    methods.Dope(), _update(make, _MEAN), 0, zeros, zeros
  )
  assert float(found['cosine']) == 0.0


@pytest.mark.parametrize('make', _LIBRARIES.values(), ids=_LIBRARIES)
@pytest.mark.parametrize('weight, index', [(1.0, 0), (0.0, 1)])
def test_at_its_ends_the_other_side_may_hold_anything(make, weight, index):
  sides = [_update(make, ([0.1, -0.0],)), _update(make, ([np.nan, np.inf],))]
  if index:
    sides.reverse()
  with np.errstate(invalid='ignore'):
    (mixed,) = methods.mix(*sides, make(np.float32(weight)))
  assert np.asarray(mixed).tobytes() == np.float32([0.1, -0.0]).tobytes()


@pytest.mark.parametrize('make', _LIBRARIES.values(), ids=_LIBRARIES)
def test_adadps_remembers_squares(make):
  method = methods.AdaDps(decay=0.5, epsilon=0.0)
  memory = method.initial_memory(_update(make, _MEAN))
  assert _flat(memory) == [0, 0, 0]
  _, memory = method.prepare_public(_update(make, ([2.0, 0.0], 0.0)), memory)
  scales, memory = method.prepare_public(
    _update(make, ([0.0, 4.0], 2.0)), memory
  )
  assert _flat(memory) == [1, 8, 2]
  mean = 11 / 3
  assert _flat(scales) == pytest.approx(
    [math.sqrt(1 / mean), math.sqrt(8 / mean), math.sqrt(2 / mean)]
  )


def test_adadps_drops_what_has_no_scale():
  scale = (np.float32([0.0, 2.0]),)
  update = (np.float32([np.inf, 3.0]),)
  with np.errstate(invalid='ignore'):
    (changed,) = methods.AdaDps().before_clip(update, scale)
  assert changed[1] == 1.5
  (changed,) = methods.AdaDps().before_clip((np.float32([5.0, 3.0]),), scale)
  assert changed.tolist() == [0.0, 1.5]


def _import(name):
  return methods.get(name, trust_code=True)


@pytest.mark.parametrize('name', ['pad', 'no.such'])
def test_a_module_is_imported_only_if_it_is_trusted(name):
  with pytest.raises(errors.UntrustedCodeError) as error:
    methods.get(name)
  assert 'one of adadps, cold, dope, pda, semi_dp, warm' in str(error.value)
  assert f'Found {name!r}, which is not imported' in str(error.value)


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda: methods.SemiDp(weight=1.5), 'semi_dp_weight must be in'),
    (lambda: methods.AdaDps(decay=1.0), r'adadps_decay must be in \[0, 1\)'),
    (lambda: methods.AdaDps(epsilon=-1.0), 'adadps_epsilon must be'),
    (lambda: _import('pad'), "one of adadps, cold, dope.*Found 'pad'"),
    (lambda: _import('no.such'), "Found 'no.such': No module"),
    (lambda: _import('math.pi'), "Found 'math.pi': No module"),
    (lambda: _import(''), "Found '': '' is not the name of a module"),
    (lambda: _import('pda_fed..x'), 'is not the name of a module'),
    (lambda: methods.get('os.path'), 'one subclass of methods.Method'),
  ],
)
def test_bad_settings_and_names(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_alpha_is_any_function_of_t():
  with pytest.raises(TypeError, match='alpha must be a Schedule'):
    methods.PdaDpmd(alpha=0.5)
  method = methods.PdaDpmd(alpha=lambda t: 1 / (1 + t))
  assert method.schedules_at(3) == {'alpha': 0.25}
  mean, public = (np.array([4.0]),), (np.array([8.0]),)
  update, measured = method.after_noise(mean, public, 3)
  assert (update[0].tolist(), measured) == ([7.0], {'alpha': 0.25})
  known = method.with_schedules_at({'alpha': 0.5})
  assert known.after_noise(mean, public, 3)[0][0].tolist() == [6.0]


def test_names_and_titles():
  names = {'cold', 'warm', 'pda', 'semi_dp', 'dope', 'adadps'}
  assert names <= set(methods.names())
  assert methods.title('pda') == 'PDA-DPMD'
  assert methods.title('unknown') == 'unknown'


def test_a_name_is_taken_once():
  with pytest.raises(ValueError, match="name must be unique. Found 'pda'"):
    type('Other', (methods.Method,), {'name': 'pda', '__module__': 'other'})
  assert methods.get('pda') is methods.PdaDpmd


def test_a_method_with_hooks_needs_public_data():
  body = {'name': 'hooks_of_test', 'before_clip': lambda s, u, p: u}
  with pytest.raises(ValueError, match="public of Other must be 'update'"):
    type('Other', (methods.Method,), body)
  assert 'hooks_of_test' not in base.REGISTRY


def test_schedules_are_inputs():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class TwoSchedules(methods.Method):
    a: schedules.Schedule
    b: schedules.Schedule
    c: float = 3.0

  method = TwoSchedules(a=schedules.linear(4), b=schedules.constant(0.5))
  assert method.schedules_at(1) == {'a': 0.75, 'b': 0.5}
  known = method.with_schedules_at({'a': 7.0, 'b': 8.0})
  assert (known.a(1), known.b(99), known.c) == (7.0, 8.0, 3.0)
  blank = dict.fromkeys(method.schedules)
  other = dataclasses.replace(method, a=schedules.linear(9))
  assert method.with_schedules_at(blank) == other.with_schedules_at(blank)
  assert method != other


def test_which_methods_act_before_the_clip():
  found = {n for n in base.REGISTRY if _acts(methods.get(n))}
  assert found >= {'dope', 'adadps'}
  assert not found & {'cold', 'warm', 'pda', 'semi_dp'}


def _acts(method):
  return method.before_clip is not methods.Method.before_clip


@pytest.mark.parametrize('make', _LIBRARIES.values(), ids=_LIBRARIES)
def test_arrays_of_all_libraries(make):
  update = _update(make, _MEAN)
  assert float(arrays.norm(update)) == 5.0
  assert arrays.size(update) == 3
  xp = arrays.namespace(0.5, *update)
  assert isinstance(xp.sqrt(update[1]), type(update[1]))
  assert xp.where(update[0] > 0, update[0], 0 * update[0]).dtype == np.float32
