"""Configs of any values: they construct, or say which field is wrong."""

import dataclasses
import json
import re
import string
import warnings

from data_prep import assignment
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
import pytest

from tests import fake_engine

# A valid one of each; fields of it are replaced.
_CONFIGS = {
  'plan': fake_engine.make_run().plan,
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
  'partition': assignment.PartitionConfig(seed=0),
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

  @hypothesis.settings(
    max_examples=60,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
  )
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
      assert re.search('Found|must be given|not a field', str(e)), repr(e)
      assert any(re.search(w, str(e)) for w in words), repr(e)
    else:
      hash(dataclasses.astuple(changed) and repr(changed))

  check()


@pytest.mark.parametrize('name', ['spec', 'pretraining', 'plan', 'split'])
def test_settings_are_json(name):
  """What config.json says is what is compared when a run goes on."""
  content = typed.as_json(_CONFIGS[name])
  again = json.loads(json.dumps(content, allow_nan=False))
  assert not typed.differences(content, again)
