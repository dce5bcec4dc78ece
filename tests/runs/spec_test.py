"""The settings of a run as data."""

import json

from pda_fed.common import settings
from pda_fed.runs import spec as spec_lib
from pda_fed.runs import tasks
import pytest

_RunSpec = spec_lib.RunSpec
# Rounds (epochs of examples), cohort, clip, noise, delta, rate, public batch.
_PINNED = {
  None: (1600, 100, 0.3, 0.4, 1e-6, 1.0, 250),
  'cifar10': (100, 500, 1.0, 1.51, 1e-5, 0.2, 250),
  'emnist': (50, 500, 1.0, 0.41, 1e-6, 0.5, 250),
  'wikitext2': (20, 250, 1.0, 0.5, 1e-5, 2.0, 250),
  'digits': (20, 64, 1.0, 10.0, 1e-4, 0.5, 32),
}


@pytest.mark.parametrize('dataset', _PINNED)
def test_defaults_are_the_papers(dataset):
  spec = _RunSpec.for_data(dataset)
  plan = spec.plan
  assert _PINNED[dataset] == (
    plan.epochs or plan.rounds,
    plan.expected_cohort,
    plan.clip_norm,
    plan.noise_multiplier,
    plan.delta,
    spec.server.learning_rate,
    spec.public.batch_size,
  )
  assert plan.sampling == 'poisson' and plan.mechanism == 'gaussian'
  clips_mean = dataset in ('cifar10', 'emnist', 'digits')
  assert (spec.server.mean_clip_norm == 'private') == clips_mean


def test_public_examples_and_alpha_are_the_papers():
  of = {name: _RunSpec.for_data(name).data for name in tasks.DATASETS}
  assert of['cifar10'].public_examples == 2_000
  assert of['emnist'].public_examples == 27_918
  assert of['wikitext2'].public_examples == 1_951
  assert of['wikitext2'].vocabulary_size == 8_000
  # Images and tables are public only if the user says so.
  assert of['images'].public_examples is of['table'].public_examples is None
  K = tasks.ALPHA_K
  assert (K['cifar10'], K['emnist'], K['wikitext2']) == (2000, 500, 100)
  assert set(K) == set(tasks.DATASETS)


@pytest.mark.parametrize('dataset', [None, *tasks.DATASETS])
def test_json_round_trip(dataset):
  spec = _RunSpec.for_data(
    dataset,
    'some/folder',
    **{
      'method': 'semi_dp',
      'method.weight': 0.3,
      'target_epsilon': 2,
      'seed': 5,
    },
  )
  content = json.loads(json.dumps(spec.as_json(), allow_nan=False))
  assert _RunSpec.from_json(content) == spec
  # What a file leaves out is the data set's default.
  few = {'data': {'dataset': dataset}, 'seed': 5}
  assert _RunSpec.from_json(few) == _RunSpec.for_data(dataset, seed=5)


@pytest.mark.parametrize(
  'content, error, words',
  [
    ({'sever': {'momentum': 0}}, ValueError, 'sever is not a .*'),
    ({'server': {'momentu': 0}}, ValueError, 'Did you mean server.momentum'),
    ({'plan': {'round': 3}}, ValueError, 'Did you mean rounds'),
    ({'data': {'dataset': 'cifar'}}, ValueError, "dataset must be one of 'dig"),
    ({'data': {'dataset': 3}}, TypeError, 'dataset must be a text or none'),
    ({'seed': 'x'}, TypeError, 'seed must be an integer or none'),
    ({'seed': -1}, ValueError, 'seed must be in'),
    ({'plan': 3}, TypeError, 'plan must be an object'),
    ([], TypeError, 'the file must be an object'),
    ({'rounds': 3, 'plan': {'rounds': 4}}, ValueError, 'rounds must have one'),
    ({'audit': {'audit_canaries': 200}}, ValueError, 'given with audit'),
    (
      {'plan': {'noise_multiplier': 1.0, 'target_epsilon': 2}},
      ValueError,
      'noise_multiplier must be given without target_epsilon',
    ),
    ({'plan': {'rounds': 3, 'epochs': 2}}, ValueError, 'rounds must be given'),
    ({'plan': {'clip_quantile': 0.5}}, ValueError, 'with adaptive_clipping'),
    (
      {'data': {'augmentation_multiplicity': 4}},
      ValueError,
      "must be 1 unless augmentation is 'all'",
    ),
  ],
)
def test_bad_files(content, error, words):
  with pytest.raises(error, match=words) as e:
    _RunSpec.from_json(content)
  assert '\n' not in str(e.value)


def test_a_value_of_one_removes_the_other():
  spec = _RunSpec().with_values({'epochs': 2, 'target_epsilon': 4})
  assert (spec.plan.rounds, spec.plan.noise_multiplier) == (None, None)
  back = spec.with_values({'rounds': 7, 'noise_multiplier': 1.0})
  assert (back.plan.epochs, back.plan.target_epsilon) == (None, None)


def test_settings_that_have_no_effect_are_refused():
  for dataset, values, words in (
    (None, {'server.decay': 'linear'}, 'server.decay .* only for examples'),
    (None, {'compute_dtype': 'bfloat16'}, 'compute_dtype .* only for jax'),
    ('digits', {'client.batch_size': 3}, 'client.batch_size .* only for users'),
  ):
    with pytest.raises(ValueError, match=words):
      _RunSpec.for_data(dataset, **values).check_scope()
  for dataset in (None, *tasks.DATASETS):
    _RunSpec.for_data(dataset).check_scope()


def test_every_setting_has_help_and_a_name_of_its_own():
  found = settings.by_name(_RunSpec)
  assert len({leaf.path for leaf in found.values()}) == len(found) > 60
  for name, leaf in found.items():
    assert leaf.help.endswith('.'), name
