"""Exports trained models to files for Keras, numpy and TFF."""

from collections.abc import Iterator
import io
import json
import os
import pathlib
import tempfile
from typing import Any
import zipfile

import numpy as np
from pda_fed import errors
from pda_fed import models
from pda_fed.common import files
from pda_fed.common import validate
from pda_fed.runs import building
from pda_fed.runs import loading
from pda_fed.runs import released_model

FORMATS = ('keras', 'npz', 'tff')
# Holds the metadata that .keras files and TFF's folders have no field for.
ABOUT_FILE = 'pda_fed.json'


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
  if kind != 'tff' and path.suffix != f'.{kind}':
    raise ValueError(f'output must end with .{kind}. Found {path}.')
  if path.exists():
    raise errors.OutputError(
      f'{path} already exists. Remove it, or choose another name.'
    )
  path.parent.mkdir(parents=True, exist_ok=True)
  {'keras': _write_keras, 'npz': _write_npz, 'tff': _write_tff}[kind](
    model, path
  )


def _about(model: released_model.ReleasedModel) -> dict[str, Any]:
  return {
    'format': loading.FORMAT,
    'version': 1,
    'model': building.model_as_json(model.spec),
    'weights': released_model.weight_names(model),
    'round': model.round_num,
    'privacy': list(model.privacy),
  }


def _about_file(model: released_model.ReleasedModel) -> bytes:
  """Returns `_about` plus the values that an .npz file stores as arrays."""
  about = _about(model)
  if model.is_text:
    about[loading.VOCABULARY] = list(model.vocabulary)
  if model.mean is not None:
    about[loading.MEAN] = model.mean.tolist()
    about[loading.SCALE] = model.scale.tolist()
  return json.dumps(about, indent=2, ensure_ascii=False).encode()


def _write_npz(model: released_model.ReleasedModel, path: pathlib.Path) -> None:
  names = released_model.weight_names(model)
  arrays: dict[str, Any] = dict(zip(names, model.weights, strict=True))
  arrays[loading.ABOUT] = np.array(json.dumps(_about(model)))
  for name in (loading.VOCABULARY, loading.MEAN, loading.SCALE):
    if getattr(model, name) is not None:
      arrays[name] = np.array(getattr(model, name))
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **arrays)
  files.write_atomically(path, buffer.getvalue())


def _text_layers(layers: Any, spec: Any) -> Iterator[Any]:
  yield layers.Input((None,), dtype='int32')
  yield layers.Embedding(
    spec.vocabulary_size, spec.embedding_size, name='embedding'
  )
  if isinstance(spec, models.RecurrentSpec):
    yield layers.LSTM(spec.lstm_size, return_sequences=True, name='lstm')
    yield layers.Dense(spec.embedding_size, name='projection')
  else:
    for i in range(spec.num_layers):
      yield layers.LSTM(
        spec.lstm_size, return_sequences=True, name=f'lstm_{i + 1}'
      )
  yield layers.Dense(spec.vocabulary_size, name='logits')


def _array_layers(
  layers: Any, model: released_model.ReleasedModel
) -> Iterator[Any]:
  spec: Any = model.spec
  yield layers.Input(spec.input_shape)
  yield _standardization(layers, model)
  for i, c in enumerate(spec.convolutions):
    yield layers.Conv2D(
      c.filters,
      c.size,
      c.stride,
      c.padding.lower(),
      activation=spec.activation,
      name=f'conv_{i + 1}',
    )
    if c.pool_size is not None:
      yield layers.MaxPooling2D(c.pool_size, c.pool_stride)
  yield layers.Flatten()
  for i, size in enumerate(spec.dense_sizes):
    yield layers.Dense(size, spec.activation, name=f'dense_{i + 1}')
  yield layers.Dense(spec.num_classes, name='logits')


def _standardization(layers: Any, model: released_model.ReleasedModel) -> Any:
  variance = model.scale.astype(np.float64) ** 2
  return layers.Normalization(
    mean=model.mean.tolist(), variance=variance.tolist()
  )


def stock_keras_model(keras: Any, model: released_model.ReleasedModel) -> Any:
  """Returns a model as a Sequential model of standard Keras layers.

  Args:
    keras: The module: Keras 3, or `tf.keras`.
    model: A model whose spec is from `pda_fed.models`.

  Returns:
    A Sequential model with the weights. It takes token ids, or raw images or
    rows, which its first layer standardizes.
  """
  if model.is_text:
    layers = _text_layers(keras.layers, model.spec)
  else:
    layers = _array_layers(keras.layers, model)
  built = keras.Sequential(list(layers))
  built.set_weights(model.weights)
  return built


def _is_built_in(model: released_model.ReleasedModel) -> bool:
  return type(model.spec).__module__.startswith(f'{models.__name__}.')


def _own_keras_model(model: released_model.ReleasedModel) -> Any:
  """Returns a user's Keras model, which the spec builds with `tf.keras`."""
  import tensorflow as tf

  inner = model.spec.keras_model(0)
  inner.set_weights(model.weights)
  if model.mean is None:
    return inner
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.Input(inner.input_shape[1:]),
      _standardization(layers, model),
      inner,
    ]
  )


def _write_keras(
  model: released_model.ReleasedModel, path: pathlib.Path
) -> None:
  if _is_built_in(model):
    # Not tf.keras: it is Keras 2 here, and Keras 3 cannot read its files.
    import keras

    built = stock_keras_model(keras, model)
  else:
    built = _own_keras_model(model)
  with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    file = pathlib.Path(folder) / 'model.keras'
    built.save(file)
    with zipfile.ZipFile(file, 'a') as archive:  # Keras ignores other entries.
      archive.writestr(ABOUT_FILE, _about_file(model))
    files.write_atomically(path, file.read_bytes())


def _write_tff(model: released_model.ReleasedModel, path: pathlib.Path) -> None:
  from pda_fed.tff import saved_models  # Needs TFF.
  import tensorflow as tf

  spec = model.spec
  if isinstance(spec, models.LanguageSpec):  # Has no keras_model.
    built = stock_keras_model(tf.keras, model)
    input_spec = (tf.TensorSpec([None, None], tf.int64),) * 2
  else:
    built = spec.keras_model(0)
    built.set_weights(model.weights)
    input_spec = spec.keras_input_spec()
  with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    saved = pathlib.Path(folder) / 'model'
    saved_models.save_functional_model(
      built, spec.keras_loss(), input_spec, saved
    )
    (saved / ABOUT_FILE).write_bytes(_about_file(model))
    os.rename(saved, path)
