"""Flags of a run come from the fields of its spec."""

import json
import sys

from absl import flags
from absl.testing import flagsaver
from pda_fed.common import settings
from pda_fed.runs import spec as spec_lib
import pytest
from scripts.lib import spec_flags
from scripts.lib import trust_flags


@pytest.fixture
def typed(monkeypatch):
  """Parses a command line, for this test."""

  def parse(*words):
    monkeypatch.setattr(sys, 'argv', ['train', *words])
    spec_flags.define_choices(words)
    flags.FLAGS(sys.argv)

  with flagsaver.flagsaver():
    spec_flags.define()
    yield parse


def test_every_setting_is_a_flag_with_its_help(typed):
  typed()
  for name, leaf in settings.by_name(spec_lib.RunSpec).items():
    assert leaf.help in flags.FLAGS[name].help


def test_flags_set_what_they_name(typed):
  typed(
    '--server.learning_rate=0.5', '--rounds=7', '--engine=jax', '--method=warm'
  )
  spec = spec_flags.spec()
  assert spec == spec_lib.RunSpec.for_data().with_values(
    {
      'server.learning_rate': 0.5,
      'rounds': 7,
      'engine': 'jax',
      'method': 'warm',
    }
  )


def test_no_flags_are_the_defaults(typed):
  typed()
  assert spec_flags.spec() == spec_lib.RunSpec()


@pytest.mark.parametrize(
  'word, name, value',
  [
    ('--public.clip_norm=none', 'public.clip_norm', None),
    ('--public.clip_norm=private', 'public.clip_norm', 'private'),
    ('--public.clip_norm=0.5', 'public.clip_norm', 0.5),
    ('--nofinal_test', 'final_test', False),
    ('--model.lstm_size=32', 'model.lstm_size', 32),
    ('--model.dense_sizes=8,16', 'model.dense_sizes', [8, 16]),
    ('--method.alpha_i=5', 'method.alpha_i', 5),
  ],
)
def test_values_have_the_types_of_json(typed, word, name, value):
  typed(word)
  assert spec_flags.given() == {name: value}


def test_a_data_set_brings_its_defaults(typed):
  typed('--dataset=cifar10', '--epochs=3')
  spec = spec_flags.spec()
  assert (spec.plan.expected_cohort, spec.plan.epochs) == (500, 3)
  assert spec.execution.engine == 'jax'


def test_flags_change_a_config(typed, tmp_path):
  before = spec_lib.RunSpec.for_data('digits').with_values({'epochs': 3.0})
  path = tmp_path / 'run.json'
  path.write_text(json.dumps(before.as_json()))
  typed(f'--config={path}', '--seed=1')
  assert spec_flags.spec() == before.with_values({'seed': 1})


def test_presets_may_have_settings_of_other_methods(typed, tmp_path):
  path = tmp_path / 'preset.flags'
  path.write_text('--method.alpha_i=5\n--rounds=3\n')
  typed(f'--flagfile={path}', '--method=warm')
  assert not spec_flags.spec().method.settings
  typed(f'--flagfile={path}', '--method=pda')
  assert spec_flags.spec().method.settings == {'alpha_i': 5}


def test_typed_settings_of_other_methods_are_kept_for_the_error(typed):
  typed('--method=warm', '--method.alpha_i=5')
  assert spec_flags.spec().method.settings == {'alpha_i': 5}
  with pytest.raises(ValueError, match='alpha_i must be a setting of warm'):
    spec_flags.check_owned({'warm': spec_flags.spec(method='warm')})


@pytest.mark.parametrize(
  'words, trusted',
  [
    (['--method=my.method'], True),
    (['--methods=cold,my.method'], True),
    (['--set=my.method:rounds=3'], True),
    (['--flagfile=x.flags'], False),
    (['--flagfile=x.flags', '--trust_code'], True),
    (['--flagfile=my.method.flags'], False),
  ],
)
def test_only_what_is_typed_is_trusted(monkeypatch, words, trusted):
  monkeypatch.setattr(sys, 'argv', ['train', *words])
  assert trust_flags.trusts(['my.method']) is trusted


def test_a_flag_file_cannot_trust_itself(typed, tmp_path):
  path = tmp_path / 'x.flags'
  path.write_text('--trust_code\n--method=my.method\n')
  typed(f'--flagfile={path}')
  assert not spec_flags.trusts(spec_flags.spec())
