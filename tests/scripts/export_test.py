"""Exports, loaded in another process, and what is refused."""

import json
import re
import subprocess
import sys

import numpy as np
from pda_fed import runs as runs_lib
from pda_fed import tff as pda_tff
from pda_fed.runs import model_files
from pda_fed.tff import runtime
import pytest
import tensorflow_federated as tff

from tests.runs import saved_runs
from tests.scripts import programs

# A table's is the linear model once more.
_KINDS = saved_runs.KINDS[:-1]


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
    model_files.export_model(model, 'npz', folder / f'{kind}.npz')
    if kind in saved_runs.FEDERATED:
      model_files.export_model(model, 'tff', folder / f'{kind}_tff')
  np.savez(folder / 'inputs.npz', **inputs)
  np.savez(folder / 'expected.npz', **logits)
  return folder


@pytest.mark.slow
def test_logits_in_a_fresh_process(folder):
  done = subprocess.run(
    [sys.executable, '-m', 'tests.scripts.load_exports', folder],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  expected = np.load(folder / 'expected.npz')
  found = np.load(folder / 'logits.npz')
  assert len(found.files) == len(_KINDS) + len(saved_runs.FEDERATED)
  for name in found.files:
    kind = re.split(r'[._]', name)[0]
    np.testing.assert_allclose(
      found[name], expected[kind], rtol=1e-6, atol=1e-6, err_msg=name
    )


def test_files_say_what_they_are(folder):
  run = runs_lib.load_model(folder / 'runs/lstm/run')
  arrays = np.load(folder / 'lstm.npz')
  of_tff = json.loads((folder / 'lstm_tff/pda_fed.json').read_text())
  for about in (json.loads(str(arrays['about'])), of_tff):
    assert about['privacy'] == list(run.privacy)
    assert about['model']['lstm_size'] == 4
    assert about['round'] == saved_runs.ROUNDS
  assert of_tff['vocabulary'] == list(run.vocabulary)
  assert tuple(arrays['vocabulary'].tolist()) == run.vocabulary
  # Nothing of an optimizer, an audit or a secret.
  weights = [f'weights/{name}' for name in run.weights]
  assert set(arrays.files) == {'about', 'vocabulary', *weights}
  np.testing.assert_array_equal(
    arrays['weights/lstm/kernel'], run.weights['lstm/kernel']
  )


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
  order = ['logits/kernel', 'logits/bias']  # That of Keras.
  for found, name in zip(start.trainable, order, strict=True):
    np.testing.assert_array_equal(found, expected[name])


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


@pytest.mark.parametrize('kind, name', [('npz', 'x.npz'), ('tff', 'x')])
def test_nothing_is_overwritten(folder, tmp_path, kind, name):
  (tmp_path / name).write_text('mine')
  done = _export(folder / 'linear.npz', kind, tmp_path / name)
  assert done.code == 2 and 'exists' in done.error
  assert (tmp_path / name).read_text() == 'mine'
  assert [p.name for p in tmp_path.iterdir()] == [name]


def test_what_does_not_fit_the_format(folder, tmp_path):
  done = _export(folder / 'linear.npz', 'npz', tmp_path / 'model.h5')
  assert done.code == 2 and 'end with .npz' in done.error
  done = _export(folder / 'language.npz', 'tff', tmp_path / 'model')
  assert done.code == 2 and 'has no Keras model' in done.error
  done = programs.run('export', f'--run={folder / "linear.npz"}')
  assert done.code == 2 and '--format must be given' in done.error


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
  name = next(name for name in arrays if name.endswith('/kernel'))
  np.savez(tmp_path / 'shape.npz', **{**arrays, name: np.ones(9)})
  del arrays[name]
  np.savez(tmp_path / 'missing.npz', **arrays)
  for path in tmp_path.iterdir():
    with pytest.raises(runs_lib.OutputError) as error:
      runs_lib.load_model(path)
    assert str(path) in str(error.value) and '\n' not in str(error.value)
  with pytest.raises(ValueError, match='data_dir must not be given'):
    runs_lib.load_model(folder / 'linear.npz', data_dir=tmp_path)
