"""Exports, loaded in another process, and what is refused."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
from pda_fed import runs as runs_lib
from pda_fed import tff as pda_tff
from pda_fed.runs import exports
from pda_fed.tff import runtime
import pytest
import tensorflow_federated as tff

from tests.runs import saved_runs
from tests.scripts import programs

# A table's is the linear model once more.
_KINDS = saved_runs.KINDS[:-1]
_ENDINGS = {'keras': '.keras', 'npz': '.npz', 'tff': '_tff'}


def _export(run, kind, output):
  words = (f'--run={run}', f'--format={kind}', f'--output={output}')
  return programs.run('export', *words)


@pytest.fixture(name='folder', scope='module')
def fixture_folder(tmp_path_factory):
  """Every kind of model in every format, with inputs and their logits."""
  folder = tmp_path_factory.mktemp('exports')
  inputs, logits = {}, {}
  for kind in _KINDS:
    engine = 'tff' if kind in saved_runs.FEDERATED else 'jax'
    run = saved_runs.make_run(kind, folder / 'runs' / kind, engine=engine)
    model = runs_lib.load_model(run)
    inputs[kind] = saved_runs.inputs_of(kind, model.spec)
    logits[kind] = model.logits(inputs[kind])
    for name, ending in _ENDINGS.items():
      exports.export_model(model, name, folder / f'{kind}{ending}')
  np.savez(folder / 'inputs.npz', **inputs)
  np.savez(folder / 'expected.npz', **logits)
  return folder


@pytest.mark.slow
def test_logits_in_a_fresh_process(folder):
  done = subprocess.run(
    [sys.executable, '-m', 'tests.scripts.load_exports', folder],
    cwd=programs.ROOT,
    env={**os.environ, 'KERAS_BACKEND': 'tensorflow'},
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  expected = np.load(folder / 'expected.npz')
  found = np.load(folder / 'logits.npz')
  assert len(found.files) == 3 * len(_KINDS)
  for name in found.files:
    kind = re.split(r'[._]', name)[0]
    np.testing.assert_allclose(
      found[name], expected[kind], rtol=1e-6, atol=1e-6, err_msg=name
    )


def _modules(config):
  if isinstance(config, dict):
    own = {config['module']} if 'module' in config else set()
    return own.union(*map(_modules, config.values()))
  return set().union(*map(_modules, config)) if type(config) is list else set()


@pytest.mark.parametrize('kind', _KINDS)
def test_keras_files_have_layers_of_keras_alone(folder, kind):
  with zipfile.ZipFile(folder / f'{kind}.keras') as archive:
    modules = _modules(json.loads(archive.read('config.json')))
  assert {'keras', 'keras.layers'} <= modules
  assert all(m.split('.')[0] == 'keras' for m in modules - {'builtins'})


def test_files_say_what_they_are(folder):
  run = runs_lib.load_model(folder / 'runs/lstm/run')
  texts = {
    'keras': zipfile.ZipFile(folder / 'lstm.keras').read(exports.ABOUT_FILE),
    'npz': str(np.load(folder / 'lstm.npz')['about']),
    'tff': (folder / 'lstm_tff' / exports.ABOUT_FILE).read_text(),
  }
  for text in texts.values():
    about = json.loads(text)
    assert about['privacy'] == list(run.privacy)
    assert about['model']['lstm_size'] == 4
    assert about['round'] == saved_runs.ROUNDS
  assert json.loads(texts['keras'])['vocabulary'] == list(run.vocabulary)
  arrays = np.load(folder / 'lstm.npz')
  assert tuple(arrays['vocabulary'].tolist()) == run.vocabulary
  assert set(arrays.files) == {
    *('about', 'vocabulary', 'embedding/embeddings'),
    *('lstm/kernel', 'lstm/recurrent_kernel', 'lstm/bias'),
    *('projection/kernel', 'projection/bias', 'logits/kernel', 'logits/bias'),
  }
  # Nothing of an optimizer, an audit or a secret.
  np.testing.assert_array_equal(arrays['lstm/bias'], run.weights[3])


def test_names_are_those_of_the_layers(folder):
  import keras

  for kind in _KINDS:
    model = runs_lib.load_model(folder / f'{kind}.npz')
    names = json.loads(str(np.load(folder / f'{kind}.npz')['about']))['weights']
    weights = exports.stock_keras_model(keras, model).weights
    for name, weight in zip(names, weights, strict=True):
      path = f'/{weight.path}'.replace('/lstm_cell/', '/')
      assert path.endswith(f'/{name}')


def test_tff_trains_what_it_loads(folder):
  model = tff.learning.models.load_functional_model(f'{folder}/linear_tff')
  process = pda_tff.build_dp_fedavg(
    lambda: tff.learning.models.model_from_functional(model),
    runs_lib.RunFolder(folder / 'runs/linear/run').read_config().plan,
    client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
  )
  with runtime.in_process():
    start = process.get_model_weights(process.initialize())
  expected = runs_lib.load_model(folder / 'linear.npz').weights
  for found, array in zip(start.trainable, expected, strict=True):
    np.testing.assert_array_equal(found, array)


def test_the_program_tells_what_it_wrote(folder, tmp_path):
  output = tmp_path / 'new' / 'model.npz'
  done = _export(folder / 'runs/emnist/run', 'npz', output)
  first, second, *_ = done.out.splitlines()
  assert first == f'Wrote {output}, the model after round 7.'
  assert second == runs_lib.load_model(output).privacy[0]
  assert 'Example-level DP' in second and 'epsilon' in second
  # One export from another.
  _export(output, 'npz', tmp_path / 'again.npz')
  assert (tmp_path / 'again.npz').read_bytes() == output.read_bytes()


@pytest.mark.parametrize('kind', exports.FORMATS)
def test_nothing_is_overwritten(folder, tmp_path, kind):
  output = tmp_path / f'there{_ENDINGS[kind]}'
  output.write_text('mine')
  done = _export(folder / 'linear.npz', kind, output)
  assert done.code == 2 and 'exists' in done.error
  assert output.read_text() == 'mine'
  assert list(tmp_path.iterdir()) == [output]


def test_names_have_to_fit_the_format(folder, tmp_path):
  done = _export(folder / 'linear.npz', 'keras', tmp_path / 'model.h5')
  assert done.code == 2 and 'end with .keras' in done.error
  done = programs.run('export', f'--run={folder / "linear.npz"}')
  assert done.code == 2 and '--format must be given' in done.error


def test_a_run_without_a_checkpoint(folder, tmp_path):
  run = shutil.copytree(folder / 'runs/linear/run', tmp_path / 'run')
  shutil.rmtree(run / 'checkpoints')
  done = _export(run, 'npz', tmp_path / 'model.npz')
  assert done.code == 2 and 'has no checkpoint' in done.error
  assert not (tmp_path / 'model.npz').exists()


def test_files_that_are_no_models(folder, tmp_path):
  content = (folder / 'linear.npz').read_bytes()
  arrays = dict(np.load(folder / 'linear.npz'))
  broken = {
    'empty': b'',
    'cut': content[: len(content) // 2],
    'text': b'weights',
  }
  for name, part in broken.items():
    (tmp_path / name).write_bytes(part)
  np.savez(tmp_path / 'other.npz', x=np.ones(3))
  np.savez(tmp_path / 'shape.npz', **{**arrays, 'logits/bias': np.ones(9)})
  del arrays['logits/bias']
  np.savez(tmp_path / 'missing.npz', **arrays)
  for path in tmp_path.iterdir():
    with pytest.raises(runs_lib.OutputError) as error:
      runs_lib.load_model(path)
    assert str(path) in str(error.value) and '\n' not in str(error.value)
  with pytest.raises(ValueError, match='data_dir must not be given'):
    runs_lib.load_model(folder / 'linear.npz', data_dir=tmp_path)
