"""The model of a run, loaded without an engine."""

import json
import shutil
import sys

import data_prep
from data_prep import sample_level
import numpy as np
from pda_fed import errors
from pda_fed import models
from pda_fed import runs as runs_lib
from pda_fed.models import batches
from pda_fed.models import keras_names
from pda_fed.runs import building
from pda_fed.runs import checkpoints
import pytest
import tensorflow as tf

from tests.runs import saved_runs

_OWN = """
import dataclasses
import jax.numpy as jnp
from pda_fed import models


def _init(seed):
  return {'dense': {'kernel': jnp.zeros((2, 3))}}


def _logits(params, inputs):
  return inputs @ params['dense']['kernel']


@dataclasses.dataclass(frozen=True)
class OwnSpec(models.ModelSpec):
  sizes: tuple[int, ...]
  has_logits: bool

  def jax_model(self):
    logits = _logits if self.has_logits else None
    return models.Model(_init, _logits, logits)

  def keras_model(self, seed):
    import tensorflow as tf
    dense = tf.keras.layers.Dense(3, use_bias=False, name='dense')
    return tf.keras.Sequential([tf.keras.layers.Input(2), dense])
"""


@pytest.fixture(name='folders', scope='module')
def fixture_folders(tmp_path_factory):
  """Folders of runs by kind, each made when it is asked for."""
  folders = {}

  def get(kind):
    if kind not in folders:
      folders[kind] = tmp_path_factory.mktemp(kind)
      saved_runs.make_run(kind, folders[kind])
    return folders[kind]

  return get


def _keras_model(model):
  spec = model.spec
  if not isinstance(spec, models.LanguageSpec):
    built = spec.keras_model(0)
  else:
    layers = tf.keras.layers
    built = tf.keras.Sequential(
      [
        layers.Embedding(
          spec.vocabulary_size, spec.embedding_size, name='embedding'
        ),
        *(
          layers.LSTM(
            spec.lstm_size, return_sequences=True, name=f'lstm_{i + 1}'
          )
          for i in range(spec.num_layers)
        ),
        layers.Dense(spec.vocabulary_size, name='logits'),
      ]
    )
    built.build((None, None))
  keras_names.set_weights(built, saved_runs.random_weights(spec))
  return built


@pytest.mark.parametrize('kind', saved_runs.KINDS)
def test_logits_are_those_of_keras(folders, kind):
  model = runs_lib.load_model(folders(kind) / 'run')
  inputs = saved_runs.inputs_of(kind, model.spec)
  scaled = inputs
  if not model.is_text:
    scaled = (inputs.astype(np.float32) - model.mean) / model.scale
    assert model.mean.shape == model.spec.input_shape[-1:]
    assert not np.allclose(scaled, inputs)
  found = model.logits(inputs)
  expected = _keras_model(model)(scaled).numpy()
  assert np.abs(expected).max() > 0.1
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_model_has_the_weights_and_nothing_else_of_a_checkpoint(folders):
  model = runs_lib.load_model(folders('lstm') / 'run')
  expected = saved_runs.random_weights(model.spec)
  assert model.weights.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(model.weights[name], array)
  assert model.spec == models.RecurrentSpec(
    num_words=50, embedding_size=3, lstm_size=4
  )
  store = data_prep.open_store(folders('lstm') / 'data')
  assert model.vocabulary[1:51] == store.vocabulary
  assert model.round_num == saved_runs.ROUNDS


def test_privacy_is_that_of_the_rounds(folders):
  run = runs_lib.RunFolder(folders('lstm') / 'run')
  config = run.read_config()
  plan = config.plan
  guarantee, noise, *caveats = runs_lib.load_model(run.path).privacy
  epsilon = plan.epsilon_curve([saved_runs.ROUNDS])[0]
  assert guarantee == plan.statement(epsilon)
  assert 'follows from its seed' in noise
  assert caveats == config.caveats
  assert any('Epsilon does not protect' in line for line in caveats)


def test_an_average_is_what_was_tested(folders, tmp_path):
  run = saved_runs.resolved(
    'table', tmp_path / 'data', **{'server.averaging': 0.9}
  )
  weights = saved_runs.random_weights(run.model)
  average = {f'jax/average/{n}': 2 * w for n, w in weights.items()}
  path = saved_runs.save(tmp_path / 'run', run, weights, **average)
  found = runs_lib.load_model(path).weights
  assert len(found) == len(weights) == 2
  for name, w in weights.items():
    np.testing.assert_array_equal(found[name], 2 * w)


def _one_line(error) -> str:
  message = str(error.value)
  assert '\n' not in message
  return message


def test_a_run_without_a_checkpoint(folders, tmp_path):
  run = shutil.copytree(folders('linear') / 'run', tmp_path / 'run')
  shutil.rmtree(run / 'checkpoints')
  with pytest.raises(runs_lib.OutputError) as error:
    runs_lib.load_model(run)
  assert 'has no checkpoint' in _one_line(error)


@pytest.mark.parametrize('name, words', [('', 'no config'), ('x', 'nothing')])
def test_what_is_no_run(tmp_path, name, words):
  with pytest.raises(runs_lib.OutputError, match=words):
    runs_lib.load_model(tmp_path / name)


def test_weights_of_another_model(folders, tmp_path):
  run = shutil.copytree(folders('linear') / 'run', tmp_path / 'run')
  saved = checkpoints.Checkpoints(run / 'checkpoints')
  weights = {'weights/logits/kernel': np.ones((4, 3)), 'weights/b': np.ones(2)}
  saved.save(9, weights, {})
  with pytest.raises(runs_lib.OutputError) as error:
    runs_lib.load_model(run)
  assert "'logits/bias': (3,)" in _one_line(error)
  assert "'b': (2,)" in _one_line(error)


@pytest.mark.parametrize('kind', ['lstm', 'table'])
def test_data_that_have_moved(folders, tmp_path, kind):
  folder = shutil.copytree(folders(kind), tmp_path / 'all')
  expected = runs_lib.load_model(folder / 'run')
  # The settings name the first place.
  moved = folders(kind).rename(tmp_path / 'moved')
  try:
    with pytest.raises(runs_lib.OutputError) as error:
      runs_lib.load_model(folder / 'run')
    assert str(folders(kind) / 'data') in _one_line(error)
    assert 'Give data_dir' in _one_line(error)
    model = runs_lib.load_model(folder / 'run', data_dir=folder / 'data')
  finally:
    moved.rename(folders(kind))
  assert model.vocabulary == expected.vocabulary
  np.testing.assert_array_equal(model.mean, expected.mean)


def test_other_data_are_refused(folders, tmp_path):
  for kind, other in (('linear', 'cnn'), ('table', 'emnist')):
    with pytest.raises(runs_lib.OutputError, match='data'):
      runs_lib.load_model(
        folders(kind) / 'run', data_dir=folders(other) / 'data'
      )
  store = shutil.copytree(folders('lstm') / 'data', tmp_path / 'data')
  words = (store / 'vocabulary.txt').read_text()
  (store / 'vocabulary.txt').write_text(words[::-1].strip('\n') + '\n')
  with pytest.raises(
    runs_lib.OutputError, match='vocabulary.txt .* was changed'
  ):
    runs_lib.load_model(folders('lstm') / 'run', data_dir=store)


@pytest.mark.parametrize('has_logits', [True, False])
def test_a_users_own_model(tmp_path, monkeypatch, has_logits):
  (tmp_path / 'own_spec_for_test.py').write_text(_OWN)
  monkeypatch.syspath_prepend(tmp_path)
  kind = {'kind': 'own_spec_for_test.OwnSpec', 'sizes': [1, 2]}
  settings = {**kind, 'has_logits': has_logits}
  spec = building.model_from_json(settings, 'a file', trust_code=True)
  assert spec.sizes == (1, 2)
  weights = {'dense/kernel': np.arange(6, dtype=np.float32).reshape(2, 3)}
  model = runs_lib.ReleasedModel(spec, weights, 1, ('None.',))
  found = model.logits(np.array([[1.0, 10.0]]))
  np.testing.assert_allclose(found, [[30, 41, 52]])
  sys.modules.pop('own_spec_for_test')


@pytest.mark.parametrize(
  'content, words',
  [
    ({'kind': 'no_such_module.OwnSpec'}, 'No module named'),
    ({'kind': 'pda_fed.models.spec.Nothing'}, 'has no attribute'),
    ({'kind': 'pda_fed.errors.OutputError'}, 'is not a models.ModelSpec'),
    ({'kind': 'Spec'}, 'has no attribute'),
    ({'kind': 'no module.Spec'}, 'is not the name of a module'),
    (None, 'model must be an object'),
    ({}, 'model.kind must be a text'),
    ({'kind': 'RecurrentSpec', 'num_word': 3}, 'Did you mean num_words'),
    ({'kind': 'RecurrentSpec', 'num_words': 'x'}, 'must be an integer'),
  ],
)
def test_settings_of_no_model(content, words):
  with pytest.raises((TypeError, ValueError), match=words):
    building.model_from_json(content, 'a file', trust_code=True)


_TELLS = """
import pathlib
pathlib.Path(__file__).with_suffix('.ran').touch()
"""


@pytest.mark.parametrize('is_file', [False, True])
def test_a_model_imports_its_module_only_if_it_is_trusted(
  folders, tmp_path, monkeypatch, is_file
):
  path = shutil.copytree(folders('linear') / 'run', tmp_path / 'run')
  config = json.loads((path / 'config.json').read_text())
  kind = {'kind': 'told_for_test.OwnSpec', 'sizes': [2], 'has_logits': True}
  config['settings']['model'] = kind
  (path / 'config.json').write_text(json.dumps(config))
  named_by = path / 'config.json'
  if is_file:
    path = named_by = tmp_path / 'model.npz'
    about = {'format': 'pda_fed model', 'version': 1, 'model': kind, 'round': 1}
    about |= {'privacy': ['None.']}
    weights = {'weights/dense/kernel': np.ones((2, 3))}
    np.savez(path, about=json.dumps(about), **weights)
  (tmp_path / 'told_for_test.py').write_text(_TELLS + _OWN)
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(errors.UntrustedCodeError) as error:
    runs_lib.load_model(path)
  assert _one_line(error).startswith(
    f"{named_by} names the Python module 'told_for_test'"
  )
  assert '--trust_code' in str(error.value)
  ran = tmp_path / 'told_for_test.ran'
  assert not ran.exists()
  if is_file:
    model = runs_lib.load_model(path, trust_code=True)
    assert model.spec.sizes == (2,)
  else:  # The weights are those of another model.
    with pytest.raises(runs_lib.OutputError, match='is damaged'):
      runs_lib.load_model(path, trust_code=True)
  assert ran.exists()
  sys.modules.pop('told_for_test')


@pytest.mark.slow
def test_a_residual_net_is_built_from_its_settings():
  spec = models.ResidualSpec(
    image_shape=(4, 4, 1), num_classes=3, depth=10, width=1
  )
  settings = json.loads(json.dumps(building.model_as_json(spec)))
  assert building.model_from_json(settings, 'a file') == spec
  model = spec.jax_model()
  params = model.init(0)
  released = runs_lib.ReleasedModel(
    spec,
    batches.named(params),
    1,
    ('None.',),
    mean=np.zeros(1),
    scale=np.ones(1),
  )
  images = np.random.default_rng(0).normal(size=(2, 4, 4, 1))
  found = released.logits(images)
  expected = [model.logits(params, image) for image in images]
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_text_becomes_tokens(folders):
  model = runs_lib.load_model(folders('lstm') / 'run')
  first, second = model.vocabulary[5:7]
  text = f'Nothing of this. {first.title()} Quux-{second} {second.upper()}'
  tokens, unknown = model.encode(text)
  # 50 words from 1 on, then oov, bos, eos.
  assert tokens.tolist() == [[52, 5, 51, 6]]
  assert unknown == [f'quux-{second}']
  for nothing in ('quux', '', ' ', '<oov>'):
    with pytest.raises(
      ValueError, match='must contain a word of the vocabulary'
    ):
      model.encode(nothing)


def test_text_of_the_sample_level_becomes_tokens(folders):
  model = runs_lib.load_model(folders('language') / 'run')
  words = [w for w in model.vocabulary if w != '<unk>']
  assert len(words) == 9
  tokens, unknown = model.encode(f'{words[3]} W0 {words[0]}')
  assert [model.vocabulary[t] for t in tokens[0]] == [
    words[3],
    '<unk>',
    words[0],
  ]
  assert unknown == ['W0']


def test_inputs_that_do_not_fit(folders):
  model = runs_lib.load_model(folders('cnn') / 'run')
  for shape in ((2, 8, 8), (2, 8, 9, 1), (0, 8, 8, 1), (8, 8, 1)):
    with pytest.raises(ValueError) as error:
      model.logits(np.zeros(shape))
    assert '(examples, 8, 8, 1)' in _one_line(error)
    assert str(shape) in _one_line(error)
  with pytest.raises(ValueError, match='finite'):
    model.logits(np.full((1, 8, 8, 1), np.nan))
  with pytest.raises(ValueError, match='needs a text model'):
    model.encode('how')
  model = runs_lib.load_model(folders('lstm') / 'run')
  for tokens in ([1, 2], [[1.0]], [[]]):
    with pytest.raises(ValueError, match='token ids'):
      model.logits(np.array(tokens))
  for token in (-1, 54):
    with pytest.raises(ValueError, match=r'in \[0, 53\]'):
      model.logits(np.array([[token]]))


def test_many_rows_come_in_parts(folders):
  model = runs_lib.load_model(folders('linear') / 'run')
  inputs = saved_runs.inputs_of('linear', model.spec, 300)
  found = model.logits(inputs)
  assert found.shape == (300, 3)
  np.testing.assert_allclose(found[299:], model.logits(inputs[299:]), atol=1e-6)


def _loss_and_accuracy(logits, targets):
  log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
  loss = -log_p[np.arange(len(targets)), targets].mean()
  return loss, (logits.argmax(axis=1) == targets).mean()


@pytest.mark.slow
@pytest.mark.parametrize('kind, engine', [('table', 'jax'), ('linear', 'tff')])
def test_a_trained_model_is_the_one_that_was_tested(tmp_path, kind, engine):
  values = {'method': 'cold', 'engine': engine, 'rounds': 2}
  if kind == 'table':
    values['server.averaging'] = 0.5
  else:
    values['server.learning_rate'] = 0.1
  config = saved_runs.resolved(kind, tmp_path / 'data', **values)
  run = runs_lib.train(config, tmp_path / 'run')
  if kind == 'table':
    test = sample_level.load_table(tmp_path / 'data').test
    inputs, targets = test.inputs, test.targets
  else:
    # As the source has them: standardising is the model's affair.
    store = data_prep.open_store(tmp_path / 'data')
    offsets = store.row_offsets('test')
    rows = slice(offsets[0], offsets[-1])
    inputs, targets = (
      np.load(store.path / name)[rows] for name in ('x.npy', 'y.npy')
    )
  model = runs_lib.load_model(run.path)
  assert model.round_num == 2
  loss, accuracy = _loss_and_accuracy(model.logits(inputs), targets)
  expected = run.read_result()['test']
  assert loss == pytest.approx(expected['loss'], rel=1e-5)
  assert accuracy == pytest.approx(expected['accuracy'])
  epsilon = run.read_metrics()[-1]['epsilon']
  assert model.privacy[0] == config.plan.statement(epsilon)
