"""Configs of any values: they construct, or say which field is wrong."""

import dataclasses
import json
import re
import string
import warnings

from data_prep import partition
from data_prep import sample_level
from data_prep import sources
from data_prep import vocabulary
import hypothesis
from hypothesis import strategies as st
from pda_fed import linear_regression
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.common import typed
from pda_fed.models import convergence
from pda_fed.models import convolutional
from pda_fed.models import language
from pda_fed.runs import groups
from pda_fed.runs import outputs
from pda_fed.runs import records
import pytest

from tests import fake_engine

_SETTINGS = hypothesis.settings(
  max_examples=60,
  derandomize=True,
  database=None,
  suppress_health_check=list(hypothesis.HealthCheck),
)

_PLAN = fake_engine.make_run().plan

# A valid one of each; fields of it are replaced.
_CONFIGS = {
  'plan': _PLAN,
  'adaptive_clipping': privacy.AdaptiveClipping(),
  'recurrent': models.RecurrentSpec(),
  'language': language.LanguageSpec(),
  'convolution': convolutional.Convolution(filters=4, size=3),
  'convolutional': convolutional.DIGITS,
  'pretraining': convergence.PretrainingConfig(),
  'pda': methods.PdaDpmd(alpha=schedules.cosine(5)),
  'semi_dp': methods.SemiDp(),
  'adadps': methods.AdaDps(),
  'data': groups.DataSpec(),
  'plan_spec': groups.PlanSpec(),
  'server': groups.ServerSpec(),
  'execution': groups.ExecutionSpec(),
  'spec': runs_lib.RunSpec(),
  'split': sample_level.SplitConfig(public_examples=2000),
  'partition': partition.PartitionConfig(seed=0),
  'vocabulary': vocabulary.VocabularyConfig(),
  'synthetic': sources.SyntheticConfig(),
  'simulation': linear_regression.SimulationConfig(),
}

_NUMBERS = st.one_of(
  st.integers(-3, 5),
  st.integers(),
  st.floats(),
  st.floats(0, 1),
  st.sampled_from((0, 1, -1, 2**31, 2**63, 10**30, 1e308, 5e-324)),
)
_ODD = st.one_of(
  st.none(),
  st.booleans(),
  _NUMBERS,
  st.text(string.printable, max_size=5),
  st.binary(max_size=3),
  st.lists(_NUMBERS, max_size=3),
  st.lists(_NUMBERS, max_size=3).map(tuple),
  st.dictionaries(st.text(max_size=2), _NUMBERS, max_size=2),
  st.sampled_from(('poisson', 'epochs', 'tree', 'warm', 'gradient', 'sgd')),
  st.sampled_from(list(_CONFIGS.values())),
)


@pytest.mark.parametrize('name', _CONFIGS)
def test_a_config_constructs_or_names_the_field(name):
  config = _CONFIGS[name]
  fields = [f.name for f in dataclasses.fields(config)]
  # A message may name the flag or attribute under which a user knows it.
  words = {*fields, *(w for f in fields for w in f.split('_') if len(w) > 3)}

  @_SETTINGS
  @hypothesis.given(
    st.dictionaries(st.sampled_from(fields), _ODD, min_size=1, max_size=3)
  )
  def check(changes):
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        changed = dataclasses.replace(config, **changes)
    except (TypeError, ValueError) as e:
      assert type(e) in (TypeError, ValueError), repr(e)
      assert 'Found' in str(e), f'not a message of ours: {e!r}'
      assert any(re.search(w, str(e)) for w in words), repr(e)
    else:
      hash(dataclasses.astuple(changed) and repr(changed))

  check()


_PLANS = st.fixed_dictionaries(
  {
    'population': st.integers(1, 10**7),
    'expected_cohort': st.floats(0.5, 200) | st.integers(1, 200),
    'rounds': st.integers(1, 10**5),
    'delta': st.floats(1e-12, 0.5),
    'noise_multiplier': st.floats(0, 50),
    'clip_norm': st.floats(1e-6, 1e6),
    'sampling': st.sampled_from(
      ('poisson', 'fixed_size', 'fixed_size_as_poisson', 'epochs')
    ),
    'mechanism': st.sampled_from(('gaussian', 'tree')),
    'unit': st.text(min_size=1, max_size=9),
    'adaptive_clipping': st.none()
    | st.builds(
      privacy.AdaptiveClipping,
      target_quantile=st.floats(0, 1),
      learning_rate=st.floats(1e-3, 1),
      count_stddev=st.none() | st.floats(0.1, 100),
    ),
  }
)


def test_a_plan_is_the_same_after_its_file(tmp_path):
  folder = outputs.RunFolder(tmp_path)

  @_SETTINGS
  @hypothesis.given(_PLANS)
  def check(fields):
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      try:
        plan = privacy.PrivacyPlan(**fields)
      except ValueError:
        hypothesis.reject()
      run = dataclasses.replace(fake_engine.make_run(), plan=plan)
      folder.write_config(run)
      found = folder.read_config()
      assert found.plan == plan
      new = json.loads(json.dumps(run.settings(), allow_nan=False))
      assert not typed.differences(found.settings, new)

  check()


@pytest.mark.parametrize('name', ['spec', 'pretraining', 'plan', 'split'])
def test_settings_are_json(name):
  """What config.json says is what is compared when a run goes on."""
  content = typed.as_json(_CONFIGS[name])
  again = json.loads(json.dumps(content, allow_nan=False))
  assert not typed.differences(content, again)


_ROWS = st.lists(
  st.dictionaries(
    st.sampled_from(('loss', 'accuracy', 'alpha', 'odd, "name"')),
    st.none() | st.floats(width=32) | st.integers(0, 10**6),
    max_size=4,
  ),
  min_size=1,
  max_size=5,
)


@_SETTINGS
@hypothesis.given(_ROWS)
def test_rows_are_the_same_after_their_file(rows):
  rows = [{'round': i, **row} for i, row in enumerate(rows)]
  found = records.parse_csv(records.format_csv(rows))
  for row, other in zip(rows, found, strict=True):
    for name, value in row.items():
      if value is not None and value == value:  # NaN is not.
        assert other[name] == pytest.approx(value, rel=1e-8, abs=1e-44)
