"""Files of released models: runs, .npz files, and folders that TFF loads."""

from collections.abc import Iterator
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import tempfile
from typing import Any, Optional
import zipfile
import zlib

import data_prep
import numpy as np
from pda_fed import errors
from pda_fed.common import files
from pda_fed.common import validate
from pda_fed.models import keras_names
from pda_fed.runs import building
from pda_fed.runs import checkpoints
from pda_fed.runs import data as data_lib
from pda_fed.runs import outputs
from pda_fed.runs import overview
from pda_fed.runs import records
from pda_fed.runs import released_model
from pda_fed.runs.engines import base as engine_lib

FORMATS = ('npz', 'tff')
# Holds what TFF's folders have no field for.
ABOUT_FILE = 'pda_fed.json'

_FORMAT = 'pda_fed model'
_ABOUT = 'about'
_OF_DATA = ('vocabulary', 'mean', 'scale')
# Prefix of the averaged weights of sample-level runs.
_AVERAGE = 'jax/average'
# What damaged files raise.
_DAMAGE = (
  *(AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError),
  *(ValueError, zipfile.BadZipFile, zlib.error),
)


def load_model(
  path: os.PathLike | str,
  *,
  data_dir: Optional[os.PathLike | str] = None,
  trust_code: bool = False,
) -> released_model.ReleasedModel:
  """Loads the newest model of a run, or an exported one.

  Example:

  ```
  model = load_model('out/pda')
  tokens, unknown = model.encode('how do i')
  best = model.logits(tokens)[0, -1].argmax()
  print(model.vocabulary[best], model.privacy[0])
  ```

  Args:
    path: The folder of a run, or a file written by
      `scripts.export --format=npz`.
    data_dir: The folder of the run's data, which contain the vocabulary and
      the scale of inputs. By default the folder used in training. Must not be
      given for an exported file.
    trust_code: Whether to import the Python module that the file or the run
      names, which runs its code. Only a user's own model has one.

  Returns:
    The model of the newest intact checkpoint. If the run averaged its weights,
    the model has the average, which is also what the run tested.

  Raises:
    CheckpointError: If all checkpoints of the run are damaged.
    OutputError: If there is no run, no checkpoint or no such file, or the run's
      data are missing.
    UntrustedCodeError: If the model names a module, without `trust_code`.
    ValueError: If `data_dir` is given with a file.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    return _from_run(path, data_dir, trust_code)
  if data_dir is not None:
    raise ValueError(
      f'data_dir must not be given with an exported file. Found {data_dir}.'
    )
  return _from_file(path, trust_code)


@contextlib.contextmanager
def _raising(words: str) -> Iterator[None]:
  """Turns what damaged files raise into an OutputError."""
  try:
    yield
  except (data_prep.StoreError, data_prep.SourceError, *_DAMAGE) as e:
    raise errors.OutputError(f'{words}: {str(e).rstrip(".")}.') from e


def _from_run(
  path: pathlib.Path,
  data_dir: Optional[os.PathLike | str],
  trust_code: bool,
) -> released_model.ReleasedModel:
  source = path / outputs.CONFIG
  if not source.exists():
    raise errors.OutputError(
      f'{path} must be the folder of a run, or an exported .npz file. Found'
      f' {"no config.json in it" if path.is_dir() else "nothing there"}.'
    )
  folder = outputs.RunFolder(path)
  config = folder.read_config()
  checkpoint = checkpoints.Checkpoints(folder.checkpoints_path).latest()
  if checkpoint is None:
    raise errors.OutputError(
      f'{path} has no checkpoint: the run has not saved a model yet.'
    )
  arrays = checkpoint.arrays
  weights = engine_lib.from_prefixed(_AVERAGE, arrays)
  weights = weights or engine_lib.from_prefixed(engine_lib.WEIGHTS, arrays)
  with _raising(f'{path} is damaged'):
    spec = building.model_from_json(
      config.model, str(source), trust_code=trust_code
    )
  data_dir = config.spec.data.data_dir if data_dir is None else str(data_dir)
  with _raising(
    f"{data_dir} must hold the run's data. Give data_dir, the folder that holds"
    ' them now'
  ):
    of_data = _of_data(config, data_dir)
  with _raising(f'{path} is damaged'):
    return released_model.ReleasedModel(
      spec=spec,
      weights={n: np.asarray(w, np.float32) for n, w in weights.items()},
      round_num=checkpoint.round_num,
      privacy=_privacy(folder, config, checkpoint.round_num),
      **of_data,
    )


def _privacy(
  folder: outputs.RunFolder, config: records.Recorded, round_num: int
) -> tuple[str, ...]:
  """Returns the privacy guarantee after some rounds, and its caveats.

  That of a private search comes first: it covers the choice of the run.
  """
  known = {row['round']: row['epsilon'] for row in folder.read_metrics()}
  epsilon = known.get(round_num)
  if epsilon is None:
    epsilon = (overview.spent(config.plan, [round_num]) or {}).get(round_num)
  guarantee = 'Epsilon is unknown: computing it needs dp_accounting.'
  if epsilon is not None:
    guarantee = config.plan.statement(epsilon)
  of_run = guarantee, config.noise, *config.caveats
  if config.private_search is None:
    return of_run
  return config.private_search, f'This run alone: {guarantee}', *of_run[1:]


def _of_data(
  config: records.Recorded, data_dir: Optional[str]
) -> dict[str, Any]:
  """Returns the vocabulary, or mean and scale, of a run's data."""
  if data_dir is not None and not pathlib.Path(data_dir).exists():
    raise ValueError('it does not exist')
  spec = dataclasses.replace(config.spec.data, data_dir=data_dir)
  if spec.public_dataset is None:
    opened: Any = data_lib.open_data(spec, verify=False)
    is_same = opened.sha256 == config.data_hash
  else:
    # The hash also covers the other text, which is huge. All of this text is
    # private.
    opened = data_lib.Examples(
      dataclasses.replace(spec, public_dataset=None, public_examples=1)
    )
    is_same = len(opened.data.train) == config.plan.population
  if not is_same:
    raise ValueError('it holds other data')
  return opened.preprocessing


def _from_file(
  path: pathlib.Path, trust_code: bool
) -> released_model.ReleasedModel:
  """Reads what `_write_npz` wrote."""
  with _raising(f'{path} must be an npz file written by scripts.export'):
    with np.load(path, allow_pickle=False) as loaded:
      arrays = dict(loaded)
    about = json.loads(str(arrays[_ABOUT]))
    if about['format'] != _FORMAT:
      raise ValueError(f'its format is {about["format"]!r:.80}')
    weights = engine_lib.from_prefixed(engine_lib.WEIGHTS, arrays)
    words = arrays.get('vocabulary')
    return released_model.ReleasedModel(
      spec=building.model_from_json(
        about['model'], str(path), trust_code=trust_code
      ),
      weights={n: np.asarray(w, np.float32) for n, w in weights.items()},
      round_num=int(about['round']),
      privacy=tuple(map(str, about['privacy'])),
      vocabulary=words if words is None else tuple(words.tolist()),
      mean=arrays.get('mean'),
      scale=arrays.get('scale'),
    )


def export_model(
  model: released_model.ReleasedModel, kind: str, path: os.PathLike | str
) -> None:
  """Exports a model.

  Args:
    model: The model.
    kind: The format, one of `FORMATS`.
    path: A new file, or a new folder for 'tff'. It is created atomically.

  Raises:
    OutputError: If `path` exists.
    ValueError: If the format is unknown, the file's suffix does not fit it, or
      the model cannot be written in it.
  """
  validate.one_of(FORMATS, format=kind)
  path = pathlib.Path(path)
  if kind == 'npz' and path.suffix != '.npz':
    raise ValueError(f'output must end with .npz. Found {path}.')
  if path.exists():
    raise errors.OutputError(
      f'{path} already exists. Remove it, or choose another name.'
    )
  path.parent.mkdir(parents=True, exist_ok=True)
  (_write_npz if kind == 'npz' else _write_tff)(model, path)


def _about(model: released_model.ReleasedModel) -> dict[str, Any]:
  return {
    'format': _FORMAT,
    'model': building.model_as_json(model.spec),
    'round': model.round_num,
    'privacy': list(model.privacy),
  }


def _arrays_of_data(
  model: released_model.ReleasedModel,
) -> dict[str, np.ndarray]:
  found = {name: getattr(model, name) for name in _OF_DATA}
  return {n: np.array(v) for n, v in found.items() if v is not None}


def _write_npz(model: released_model.ReleasedModel, path: pathlib.Path) -> None:
  arrays: dict[str, Any] = {
    _ABOUT: np.array(json.dumps(_about(model))),
    **engine_lib.prefixed(engine_lib.WEIGHTS, model.weights),
    **_arrays_of_data(model),
  }
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **arrays)
  files.write_atomically(path, buffer.getvalue())


def _write_tff(model: released_model.ReleasedModel, path: pathlib.Path) -> None:
  from pda_fed.tff import saved_models  # Needs TFF.

  spec = model.spec
  built = spec.keras_model(0)
  keras_names.set_weights(built, model.weights)
  of_data = {n: a.tolist() for n, a in _arrays_of_data(model).items()}
  with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    saved = pathlib.Path(folder) / 'model'
    saved_models.save_functional_model(
      built, spec.keras_loss(), spec.keras_input_spec(), saved
    )
    text = json.dumps(_about(model) | of_data, indent=2, ensure_ascii=False)
    (saved / ABOUT_FILE).write_text(text, encoding='utf-8')
    os.rename(saved, path)
