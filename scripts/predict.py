r"""Predicts with the model of a run: next words, or classes.

    python -m scripts.predict --run=out/pda --text="how do i"
    python -m scripts.predict --run=out/digits --input=new.npz --top=3

--run may also be a file that scripts.export wrote with --format=npz.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import csv
import io
import pathlib
import warnings

from absl import flags
from data_prep import errors
from data_prep import files
from data_prep import npz
import numpy as np
from pda_fed import runs as runs_lib
from pda_fed.common import tables
from scripts.lib import trust_flags

_RUN = flags.DEFINE_string(
  'run',
  None,
  'Folder of a run, or a model that was exported as npz.',
  allow_override=True,  # Tests import several programs.
)
_TEXT = flags.DEFINE_string('text', None, 'The beginning of a sentence.')
_INPUT = flags.DEFINE_string(
  'input',
  None,
  'File of images or rows: an .npz file with an array x, test_images or'
  ' test_inputs; or a .csv file with a header. Columns user and label are'
  ' ignored.',
)
_TOP = flags.DEFINE_integer(
  'top', 5, 'Number of words or classes to show.', lower_bound=1
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  "Folder of the run's data, if it has moved since training.",
  allow_override=True,
)

flags.adopt_module_key_flags(trust_flags)

_INPUTS = ('x', 'test_images', 'test_inputs')
# Other arrays that data_prep reads.
_OTHERS = (
  *('y', 'user', 'num_classes'),
  *('train_images', 'train_inputs', 'train_labels', 'test_labels'),
  *('public_images', 'public_inputs', 'public_labels'),
)
_NO_FEATURES = ('user', 'label')


def _read_npz(path: pathlib.Path) -> np.ndarray:
  arrays = npz.read_arrays(path, (*_INPUTS, *_OTHERS))
  for name in _INPUTS:
    if name in arrays:
      return arrays[name]
  raise errors.SourceError(
    f'{path} must hold the array {" or ".join(_INPUTS)}. Found'
    f' {", ".join(arrays) or "none"}.'
  )


def _read_csv(path: pathlib.Path) -> np.ndarray:
  found = []
  try:
    with files.opened(path) as f:
      text = io.TextIOWrapper(f, encoding='utf-8-sig', newline='')
      rows = csv.reader(text, strict=True)
      header = next(rows, [])
      places = [i for i, n in enumerate(header) if n not in _NO_FEATURES]
      for row in filter(None, rows):  # Skips blank lines.
        try:
          if len(row) != len(header):
            raise ValueError(f'{len(row)} cells')
          found.append([float(row[i]) for i in places])
        except ValueError as e:
          raise errors.SourceError(
            f'{path}, line {rows.line_num}, must have {len(header)} cells,'
            f' with numbers as features. Found: {e}.'
          ) from e
  except (UnicodeDecodeError, csv.Error) as e:
    raise errors.SourceError(f'{path} must be a CSV file in UTF-8: {e}.') from e
  return np.array(found, np.float32).reshape(len(found), len(places))


def _probabilities(logits: np.ndarray) -> np.ndarray:
  powers = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float64)
  return powers / powers.sum(axis=-1, keepdims=True)


def _best(probabilities: np.ndarray) -> list[int]:
  order = np.argsort(-probabilities, kind='stable')
  return order[: _TOP.value].tolist()


def _percent(probability: float) -> str:
  return f'{100 * probability:.2f} %'


def _predict_words(model: runs_lib.ReleasedModel, text: str) -> None:
  tokens, unknown = model.encode(text)
  if unknown:
    warnings.warn(
      f'The model does not know: {", ".join(dict.fromkeys(unknown))}.',
      stacklevel=2,
    )
  words = [model.vocabulary[token] for token in tokens[0]]
  print(f'After: {" ".join(words)}\n')
  probabilities = _probabilities(model.logits(tokens)[0, -1])
  rows = [
    [model.vocabulary[i], _percent(probabilities[i])]
    for i in _best(probabilities)
  ]
  print(tables.format_table(['next word', 'probability'], rows))


def _predict_classes(model: runs_lib.ReleasedModel, path: pathlib.Path) -> None:
  is_table = path.name.removesuffix('.gz').removesuffix('.xz').endswith('.csv')
  inputs = _read_csv(path) if is_table else _read_npz(path)
  shape = getattr(model.spec, 'input_shape', ())
  if inputs.ndim == 3 and shape[-1:] == (1,):
    inputs = inputs[..., None]  # Gray images may lack channels.
  rows = []
  for i, probabilities in enumerate(_probabilities(model.logits(inputs))):
    first, *others = _best(probabilities)
    then = [f'{k} ({_percent(probabilities[k])})' for k in others]
    rows.append([i, first, _percent(probabilities[first]), ', '.join(then)])
  print(tables.format_table(['row', 'class', 'probability', 'then'], rows))


def main() -> None:
  """Predicts with the flags' settings."""
  if not _RUN.value:
    raise ValueError('--run must be given.')
  if (_TEXT.value is None) == (_INPUT.value is None):
    raise ValueError('Give exactly one of --text and --input.')
  model = runs_lib.load_model(
    _RUN.value, data_dir=_DATA_DIR.value, trust_code=trust_flags.trusts()
  )
  if model.is_text != (_TEXT.value is not None):
    expected = '--text' if model.is_text else '--input'
    raise ValueError(f'{expected} must be given for the model of {_RUN.value}.')
  if model.is_text:
    _predict_words(model, _TEXT.value)
  else:
    _predict_classes(model, pathlib.Path(_INPUT.value))


if __name__ == '__main__':
  cli.run(main)
