"""A trained model: spec, weights, vocabulary, logits.

`model_files` reads it from a run's folder or an exported file, and writes it.
This module opens no engine and needs no TensorFlow: the JAX model computes the
logits, whichever engine trained the weights.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any, Optional

from data_prep import tokenizer
import numpy as np
from pda_fed import models

# Convolutions of larger batches would need gigabytes.
_ROWS_AT_ONCE = 256

_UNKNOWN = '<unk>'  # The unknown word in texts of sample-level runs.


@dataclasses.dataclass(frozen=True, eq=False)
class ReleasedModel:
  """A model trained by a run.

  Example: see `load_model`.

  Attributes:
    spec: The model's specification.
    weights: float32 arrays by name, such as 'dense_1/kernel'.
    round_num: The number of training rounds.
    privacy: The privacy guarantee in one sentence, then its caveats. If a
      private search released the run, the search's guarantee comes first.
    vocabulary: For text, the tokens in the order of their ids; otherwise None.
    mean: For images and tables, the mean to subtract from each channel or
      feature; otherwise None.
    scale: For images and tables, the standard deviation to divide by after
      that; otherwise None.
  """

  spec: models.ModelSpec
  weights: Mapping[str, np.ndarray]
  round_num: int
  privacy: tuple[str, ...]
  vocabulary: Optional[tuple[str, ...]] = None
  mean: Optional[np.ndarray] = None
  scale: Optional[np.ndarray] = None

  def __post_init__(self):
    self._params()  # Raises if they belong to another model.
    size = getattr(self.spec, 'vocabulary_size', None)
    if size is not None and len(self.vocabulary or ()) != size:
      raise ValueError(
        f'vocabulary must have {size} tokens, like the model. Found'
        f' {len(self.vocabulary or ())}.'
      )

  @property
  def is_text(self) -> bool:
    """Whether inputs are token ids."""
    return self.vocabulary is not None

  @property
  def has_sentences(self) -> bool:
    """Whether inputs are sentences, which start with a special token."""
    return self.is_text and not isinstance(self.spec, models.LanguageSpec)

  def logits(self, inputs: np.ndarray) -> np.ndarray:
    """Returns the logits of a batch.

    Args:
      inputs: For text, token ids [examples, time]. Otherwise raw images or
        rows [examples, ...], which this method standardizes.

    Returns:
      float32 [examples, time, tokens], or [examples, classes].

    Raises:
      ValueError: If the inputs do not fit the model.
    """
    inputs = self._check_tokens(inputs) if self.is_text else self._scale(inputs)
    parts = [
      self._logits_fn(inputs[start : start + _ROWS_AT_ONCE])
      for start in range(0, len(inputs), _ROWS_AT_ONCE)
    ]
    return np.concatenate(parts)

  def encode(self, text: str) -> tuple[np.ndarray, list[str]]:
    """Returns the last sentence of a text as token ids.

    Args:
      text: Any text. Sample-level models encode all of it, not just the last
        sentence, split at whitespace.

    Returns:
      Token ids, [1, time], and the words that are not in the vocabulary.

    Raises:
      ValueError: If the model is not a text model, or its vocabulary contains
        no word of the text.
    """
    if not self.is_text:
      raise ValueError(f'text needs a text model. Found {text!r:.80}.')
    words = text.split()
    if self.has_sentences:
      words = ''.join(tokenizer.split_sentences(text)[-1:]).split()
    known, other = self._word_ids, self._unknown_id
    if not any(word in known for word in words):
      raise ValueError(
        f'text must contain a word of the vocabulary ({len(known):,} words).'
        f' Found {text!r:.80}.'
      )
    ids = [known.get(word, other) for word in words]
    if self.has_sentences:
      ids.insert(0, len(self.vocabulary) - 2)
    return np.array([ids], np.int32), [w for w in words if w not in known]

  @property
  def _unknown_id(self) -> int:
    if self.has_sentences:
      return len(self.vocabulary) - 3
    return self.vocabulary.index(_UNKNOWN)

  @functools.cached_property
  def _word_ids(self) -> dict[str, int]:
    ids = enumerate(self.vocabulary)
    if self.has_sentences:
      # By position: a word may look like a special token.
      ids = list(ids)[1:-3]
    return {word: i for i, word in ids if i != self._unknown_id}

  def _check_tokens(self, inputs: np.ndarray) -> np.ndarray:
    inputs = np.asarray(inputs)
    if inputs.dtype.kind not in 'iu' or inputs.ndim != 2 or not inputs.size:
      raise ValueError(
        'inputs must be token ids, integers of shape (examples, time).'
        f' Found {inputs.dtype} of shape {inputs.shape}.'
      )
    if inputs.min() < 0 or inputs.max() >= len(self.vocabulary):
      raise ValueError(
        f'inputs must be token ids in [0, {len(self.vocabulary) - 1}]. Found'
        f' {inputs.min()} to {inputs.max()}.'
      )
    return inputs.astype(np.int32)

  def _scale(self, inputs: np.ndarray) -> np.ndarray:
    inputs = np.asarray(inputs)
    shape = getattr(self.spec, 'input_shape', inputs.shape[1:])
    if inputs.shape[1:] != shape or not inputs.size:
      sizes = ', '.join(map(str, ('examples', *shape)))
      raise ValueError(
        f'inputs must have the shape ({sizes}). Found {inputs.shape}.'
      )
    if inputs.dtype.kind not in 'biuf' or not np.isfinite(inputs).all():
      raise ValueError(f'inputs must be finite numbers. Found {inputs.dtype}.')
    inputs = inputs.astype(np.float32)
    return inputs if self.mean is None else (inputs - self.mean) / self.scale

  def _params(self) -> Any:
    from pda_fed.models import batches

    return batches.from_named(self.spec.jax_model(), self.weights)

  @functools.cached_property
  def _logits_fn(self) -> Callable[[np.ndarray], np.ndarray]:
    import jax

    model = self.spec.jax_model()
    if model.logits is None:
      return self._keras_logits()
    params = jax.device_put(self._params())
    compute = jax.jit(jax.vmap(model.logits, in_axes=(None, 0)))

    def logits(inputs):
      # By default, GPUs round factors to 10 bits of mantissa.
      with jax.default_matmul_precision('highest'):
        return np.asarray(compute(params, inputs), np.float32)

    return logits

  def _keras_logits(self) -> Callable[[np.ndarray], np.ndarray]:
    from pda_fed.models import keras_names

    model = self.spec.keras_model(0)
    keras_names.set_weights(model, self.weights)
    return lambda inputs: np.asarray(model(inputs), np.float32)
