"""--method and its settings, from the command line to a value."""

import sys

from absl import flags
from absl.testing import flagsaver
from pda_fed import methods
from pda_fed import schedules
import pytest
from scripts.lib import method_flags

_DEFAULT = schedules.cosine(7)


def _build(*arguments, from_file=()):
  with flagsaver.flagsaver():
    flags.FLAGS(['program', *from_file, *arguments])
    return method_flags.build(_DEFAULT, T=10, given=arguments)


@pytest.mark.parametrize(
  'arguments, method',
  [
    ((), methods.PdaDpmd(alpha=_DEFAULT)),
    (('--method=cold',), methods.ColdStart()),
    (('--alpha_K=3',), methods.PdaDpmd(alpha=schedules.cosine(3))),
    (
      ('--alpha_i', '5'),
      methods.PdaDpmd(alpha=schedules.for_stackoverflow(5, 10)),
    ),
    (
      ('--method=pda', '--alpha_constant=0.5'),
      methods.PdaDpmd(alpha=schedules.constant(0.5)),
    ),
    (
      ('--method=semi_dp', '--semi_dp_weight=0.2'),
      methods.SemiDp(weight=0.2),
    ),
    (
      ('--method=adadps', '--adadps_multiply_back', '--adadps_decay=0.5'),
      methods.AdaDps(multiply_back=True, decay=0.5),
    ),
    (
      ('--method=adadps', '--noadadps_multiply_back'),
      methods.AdaDps(multiply_back=False),
    ),
  ],
)
def test_a_command_line_is_a_value(arguments, method):
  assert _build(*arguments) == method


@pytest.mark.parametrize(
  'arguments, message',
  [
    (('--method=warm', '--alpha_K=3'), '--alpha_K must.*=pda.*no settings'),
    (
      ('--method=pda', '--noadadps_multiply_back'),
      '--adadps_multiply_back must be given with --method=adadps.*--alpha_K',
    ),
    (('--alpha_K=3', '--alpha_i=2'), 'at most one of --alpha_K.*--alpha_i'),
    (('--method=semi_dp', '--semi_dp_weight=2'), 'semi_dp_weight must be in'),
  ],
)
def test_bad_command_lines(arguments, message):
  with pytest.raises(ValueError, match=message):
    _build(*arguments)


def test_a_flag_file_may_have_settings_of_several_methods():
  method = _build(
    '--method=dope', from_file=('--alpha_K=3', '--semi_dp_weight=0.1')
  )
  assert method == methods.Dope()


def test_arguments_of_others_are_left_out():
  arguments = [
    '--rounds=3',
    '--alpha_K',
    '3',
    '--semi_dp_weight=0.1',
    '--noadadps_multiply_back',
    '--debug',
    '--alpha_constant',
    '-1',
  ]
  found = {
    name: method_flags.arguments_for(name, arguments)
    for name in ('warm', 'pda', 'adadps')
  }
  assert found == {
    'warm': ['--rounds=3', '--debug'],
    'pda': [
      '--rounds=3',
      '--alpha_K',
      '3',
      '--debug',
      '--alpha_constant',
      '-1',
    ],
    'adadps': ['--rounds=3', '--noadadps_multiply_back', '--debug'],
  }
  method_flags.check_owned(['pda', 'semi_dp', 'adadps'], arguments)
  with pytest.raises(ValueError, match='--alpha_K must be a setting of dope'):
    method_flags.check_owned(['dope'], ['--alpha_K=3'])


_MODULE = """
import dataclasses
from pda_fed import methods, schedules

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(methods.Method):
  name = 'mine_of_test'
  title = 'mine'
  beta: schedules.Schedule
  steps: int = methods.setting(2, 'Steps.')
  kind: str = methods.setting('a', 'Kind.')
"""


def test_a_method_that_does_not_exist(monkeypatch):
  monkeypatch.setattr('sys.argv', ['program', '--method=pad'])
  words = "adadps, cold, dope, pda, semi_dp, warm.*'pad'"
  with pytest.raises(ValueError, match=words):
    method_flags.define_named(['--method=pad'])


def test_a_module_brings_its_flags(tmp_path, monkeypatch):
  names = ('module_of_test', 'no_flags_of_test')
  monkeypatch.setattr('sys.argv', ['', *(f'--method={n}' for n in names)])
  (tmp_path / 'module_of_test.py').write_text(_MODULE)
  (tmp_path / 'no_flags_of_test.py').write_text(
    _MODULE.replace('steps: int', 'steps: list').replace('mine_', 'other_')
  )
  monkeypatch.syspath_prepend(tmp_path)
  method_flags.define_named(['--rounds=1', '--method', 'module_of_test'])
  method = _build(
    '--method=module_of_test',
    '--mine_of_test_steps=5',
    '--mine_of_test_beta_constant=0.25',
  )
  assert (method.steps, method.kind) == (5, 'a')
  assert method.beta == schedules.constant(0.25)
  assert type(method) is methods.get('mine_of_test')
  with pytest.raises(ValueError, match='steps of Mine must be a float, int'):
    method_flags.define_named(['--method=no_flags_of_test'])
  for name in ('mine_of_test', 'other_of_test'):
    methods.base.REGISTRY.pop(name)
  for name in names:
    sys.modules.pop(name)
