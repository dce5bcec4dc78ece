"""A fresh process that loads exported models and writes their logits.

    python -m tests.scripts.load_exports FOLDER

FOLDER has KIND.npz of each kind, KIND_tff of those of TFF, and inputs.npz.
"""

import pathlib
import sys

import numpy as np
from pda_fed import runs as runs_lib


def main(folder: pathlib.Path) -> None:
  inputs = dict(np.load(folder / 'inputs.npz'))
  found, models = {}, {}
  for kind, batch in inputs.items():
    models[kind] = runs_lib.load_model(folder / f'{kind}.npz')
    found[f'{kind}.npz'] = models[kind].logits(batch)
  assert 'tensorflow' not in sys.modules

  import pda_fed.tff  # noqa: F401 - It makes TFF importable.

  # isort: split
  import tensorflow_federated as tff

  for path in folder.glob('*_tff'):
    kind = path.name.removesuffix('_tff')
    model = tff.learning.models.load_functional_model(str(path))
    batch = inputs[kind]
    if models[kind].mean is not None:
      batch = (batch - models[kind].mean) / models[kind].scale
    batch = batch.astype(model.input_spec[0].dtype.as_numpy_dtype)
    logits = model.predict_on_batch(model.initial_weights, batch, False)
    found[path.name] = np.asarray(logits)
  np.savez(folder / 'logits.npz', **found)


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
