"""From a spec to a run."""

import dataclasses
import json
import sys

from pda_fed import errors
from pda_fed import methods
from pda_fed import models
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.runs import building
from pda_fed.runs import records
from pda_fed.runs import resuming
import pytest

from tests import fake_engine


def _digits(**values):
  return runs_lib.resolve(runs_lib.RunSpec.for_data('digits', **values))


def test_what_the_data_settle():
  run = _digits()
  assert (run.plan.population, run.plan.rounds, run.plan.unit) == (
    1149,
    359,
    'example',
  )
  assert run.model.image_shape == (8, 8, 1)
  assert run.method == methods.PdaDpmd(alpha=schedules.cosine(20))
  assert run.rounds_per_evaluation == run.rounds_per_dispatch == 18
  assert run.bound('private') == 1.0 and run.bound(None) is None
  assert _digits(epochs=40).rounds_per_evaluation == 36


def test_noise_that_is_solved_for():
  pytest.importorskip('dp_accounting')
  run = _digits(target_epsilon=1.0)
  assert 0.99 < run.plan.epsilon() <= 1.0


@pytest.mark.parametrize(
  'values, alpha',
  [
    ({'method.alpha_K': 7}, schedules.cosine(7)),
    ({'method.alpha_i': 3}, schedules.cosine(30)),  # i T / 2 of 20 epochs.
    ({'method.alpha_constant': 0.4}, schedules.constant(0.4)),
  ],
)
def test_schedules(values, alpha):
  assert _digits(**values).method.alpha == alpha


@pytest.mark.parametrize(
  'values, error, words',
  [
    ({'method': 'dopee'}, errors.UntrustedCodeError, 'method must be one of'),
    ({'method': 'pda-x'}, ValueError, 'method must be one of'),
    ({'method.alpha_k': 3}, ValueError, 'Did you mean method.alpha_K'),
    ({'method.alpha_K': 'x'}, TypeError, 'method.alpha_K must be a finite num'),
    ({'method.alpha_K': 3, 'method.alpha_i': 3}, ValueError, 'both set alpha'),
    (
      {'method': 'semi_dp', 'method.weight': 3},
      ValueError,
      'weight must be in',
    ),
    ({'model': 'nothing.here'}, errors.UntrustedCodeError, 'nothing.here'),
    ({'model': 'wrn-x'}, ValueError, 'wrn-x'),
    ({'model.dense_size': 3}, ValueError, 'Did you mean model.dense_sizes'),
    ({'model.dense_sizes': 'x'}, TypeError, 'model.dense_sizes must be a list'),
    (
      {'model.num_classes': 3},
      ValueError,
      'num_classes is not a setting',
    ),
    ({'expected_cohort': 5000}, ValueError, 'must be at most 1149'),
    ({'data_dir': '/nowhere'}, ValueError, 'digits'),
  ],
)
def test_bad_settings(values, error, words):
  with pytest.raises(error, match=words) as e:
    _digits(**values)
  assert '\n' not in str(e.value)


_OWN = """
import dataclasses
from pda_fed import methods, models

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(methods.Method):
  name = 'mine_for_test'
  title = 'mine'
  weight: float = 0.5

def create_spec(data):
  return models.linear((8, 8, 1), 10)
"""


def test_modules_of_users(tmp_path, monkeypatch):
  (tmp_path / 'own_for_resolve.py').write_text(_OWN)
  monkeypatch.syspath_prepend(tmp_path)
  spec = runs_lib.RunSpec.for_data(
    'digits',
    **{
      'method': 'own_for_resolve',
      'method.weight': 1,
      'model': 'own_for_resolve',
    },
  )
  with pytest.raises(errors.UntrustedCodeError, match='trust_code'):
    runs_lib.resolve(spec)
  assert 'own_for_resolve' not in sys.modules
  run = runs_lib.resolve(spec, trust_code=True)
  assert run.method.weight == 1.0
  assert run.settings()['method'] == {'name': 'mine_for_test', 'weight': 1.0}
  assert run.model == models.linear((8, 8, 1), 10)
  sys.modules.pop('own_for_resolve')
  methods.base.REGISTRY.pop('mine_for_test')


def test_settings_are_json_and_without_what_does_not_matter():
  run = _digits(checkpoints_kept=7)
  found = run.settings()
  assert json.loads(json.dumps(found, allow_nan=False)) == found
  assert found['method'] == {
    'name': 'pda',
    'alpha': {'K': 20, 'kind': 'cosine'},
  }
  assert found['plan']['noise_multiplier'] == 10.0
  assert found['execution'] == {'engine': 'jax', 'compute_dtype': 'float32'}
  assert found == _digits().settings()
  assert found != _digits(seed=3).settings()
  assert run.pretraining_settings()['seed'] == 0
  shared = _digits(seed=3, **{'pretraining.seed': 0}).pretraining_settings()
  assert shared == run.pretraining_settings()


def test_a_schedule_of_a_user_has_its_name():
  method = methods.PdaDpmd(alpha=lambda t: 0.5)
  kind = building.method_as_json(method)['alpha']['kind']
  assert kind.endswith('.<lambda>') and kind.startswith(__name__)


def test_models_of_users_are_told_apart():
  def make(name):
    fields = [('units', int)]
    bases, body = (models.ModelSpec,), {'jax_model': lambda self: None}
    made = dataclasses.make_dataclass(
      name, fields, bases=bases, namespace=body, frozen=True
    )
    return building.model_as_json(made(units=3))

  assert make('A') != make('B')
  assert make('A')['units'] == 3


def test_what_a_folder_records_is_read_as_it_was(tmp_path):
  run = fake_engine.make_run(seed=None)
  with resuming.opened(tmp_path / 'run', run) as folder:
    found = folder.read_config()
  assert isinstance(found, records.Recorded)
  assert found.spec == run.spec and found.plan == run.plan
  assert found.settings == json.loads(json.dumps(run.settings()))
  assert (found.method, found.dataset, found.data_hash) == ('pda', 'fake', '0')
  assert (found.engine, found.seed) == ('jax', None)
  model = building.model_from_json(found.model, 'a file')
  assert model == run.model
