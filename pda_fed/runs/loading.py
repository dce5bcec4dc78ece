"""Loads trained models from a run's folder or an exported file."""

import dataclasses
import json
import os
import pathlib
from typing import Any, Optional
import zipfile
import zlib

import data_prep
from data_prep import store as store_lib
import numpy as np
from pda_fed import errors
from pda_fed import models
from pda_fed.common import standardization
from pda_fed.runs import building
from pda_fed.runs import checkpoints
from pda_fed.runs import data as data_lib
from pda_fed.runs import outputs
from pda_fed.runs import overview
from pda_fed.runs import records
from pda_fed.runs import released_model
from pda_fed.runs.engines import base as engine_lib

# Names in exported files, besides those of the weights.
FORMAT = 'pda_fed model'
ABOUT, VOCABULARY, MEAN, SCALE = 'about', 'vocabulary', 'mean', 'scale'

# Prefix of the averaged weights of sample-level runs.
_AVERAGE = 'jax/average'


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


def _from_run(
  path: pathlib.Path,
  data_dir: Optional[os.PathLike | str],
  trust_code: bool,
) -> released_model.ReleasedModel:
  if not (path / outputs.CONFIG).exists():
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
  weights = engine_lib.from_numbered(_AVERAGE, arrays)
  weights = weights or engine_lib.from_numbered(engine_lib.WEIGHTS, arrays)
  spec = _build_spec(config.model, path / outputs.CONFIG, trust_code)
  if data_dir is None:
    data_dir = config.spec.data.data_dir
  read = _store_data if config.spec.data.has_users else _sample_level_data
  try:
    if data_dir is not None and not pathlib.Path(data_dir).exists():
      raise ValueError('it does not exist.')
    of_data = read(config, data_dir)
  except (data_prep.StoreError, data_prep.SourceError, ValueError) as e:
    raise errors.OutputError(
      f"{data_dir} must hold the run's data: {e} Give data_dir, the folder that"
      ' holds them now.'
    ) from e
  return _build(
    path,
    spec=spec,
    weights=[np.asarray(w, np.float32) for w in weights],
    round_num=checkpoint.round_num,
    privacy=_privacy(folder, config, checkpoint.round_num),
    **of_data,
  )


def _build_spec(
  content: Any, source: pathlib.Path, trust_code: bool
) -> models.ModelSpec:
  try:
    return building.model_from_json(content, str(source), trust_code=trust_code)
  except (AttributeError, TypeError, ValueError) as e:
    raise errors.OutputError(
      f'The model of {source} cannot be built: {str(e).rstrip(".")}.'
    ) from e


def _build(path: pathlib.Path, **fields) -> released_model.ReleasedModel:
  try:
    return released_model.ReleasedModel(**fields)
  except ValueError as e:
    raise errors.OutputError(f'{path} is damaged: {e}') from e


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


def _store_data(
  config: records.Recorded, data_dir: Optional[os.PathLike | str]
) -> dict[str, Any]:
  """Returns the vocabulary, or mean and scale, of a federated run."""
  store: Any = data_prep.open_store(data_dir or '')
  found = store_lib.file_sha256(store.path / store_lib.MANIFEST)
  if found != config.data_hash:
    raise ValueError('it holds other data.')
  if isinstance(store, data_prep.ExampleStore):
    inputs = store.manifest['inputs']
    return {n: np.array(inputs[n], np.float32) for n in (MEAN, SCALE)}
  return {VOCABULARY: released_model.sentence_tokens(store.vocabulary)}


def _sample_level_data(
  config: records.Recorded, data_dir: Optional[os.PathLike | str]
) -> dict[str, Any]:
  """Returns the vocabulary, or mean and scale, of a sample-level run."""
  folder = None if data_dir is None else str(data_dir)
  spec = dataclasses.replace(
    config.spec.data, data_dir=folder, public_dataset=None
  )
  if config.spec.data.public_dataset is None:
    opened = data_lib.Examples(spec)
    is_same = opened.sha256 == config.data_hash
  else:
    # The hash also covers the other text, which is huge. All of this text is
    # private.
    opened = data_lib.Examples(dataclasses.replace(spec, public_examples=1))
    is_same = len(opened.data.train) == config.plan.population
  if not is_same:
    raise ValueError('it holds other data.')
  if opened.data.is_text:
    return {VOCABULARY: opened.data.vocabulary}
  mean, scale = standardization.mean_and_scale(opened.split.public.inputs)
  return {MEAN: mean, SCALE: scale}


def _from_file(
  path: pathlib.Path, trust_code: bool
) -> released_model.ReleasedModel:
  """Reads what `exports` wrote."""
  try:
    with np.load(path, allow_pickle=False) as loaded:
      arrays = dict(loaded)
    about = json.loads(str(arrays[ABOUT]))
    if about['format'] != FORMAT:
      raise ValueError(f'its format is {about["format"]!r:.80}')
    weights = [np.asarray(arrays[n], np.float32) for n in about['weights']]
    words = arrays.get(VOCABULARY)
    fields = dict(
      spec=_build_spec(about['model'], path, trust_code),
      weights=weights,
      round_num=int(about['round']),
      privacy=tuple(map(str, about['privacy'])),
      vocabulary=words if words is None else tuple(words.tolist()),
      mean=arrays.get(MEAN),
      scale=arrays.get(SCALE),
    )
  except (
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
  ) as e:
    raise errors.OutputError(
      f'{path} must be an npz file written by scripts.export: {e}.'
    ) from e
  return _build(path, **fields)
