"""Specification of the next-word LSTM in the StackOverflow experiments.

The appendix of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193) lists an embedding of size 96, one
LSTM layer of 670 units, a dense layer back to 96 and one to the vocabulary:
4,050,748 parameters. This module does not need TensorFlow; `keras_recurrent`
builds the Keras model.
"""

import dataclasses
import functools

import numpy as np
from pda_fed.common import validate
from pda_fed.models import spec as spec_lib

# Padding, out-of-vocabulary, beginning and end of sentence, as in TFF.
NUM_SPECIAL_TOKENS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentSpec(spec_lib.ModelSpec):
  """Sizes of a next-word model: embedding, LSTM, projection, logits.

  Token ids are those of TFF's StackOverflow baseline: pad 0, words 1 to
  `num_words`, then out-of-vocabulary, beginning and end of a sentence.

  Example:

    >>> spec = RecurrentSpec()
    >>> spec.vocabulary_size, spec.num_parameters
    (10004, 4050748)

  Attributes:
    num_words: Size of the vocabulary without special tokens.
    embedding_size: Size of a token's embedding and of the LSTM's projected
      output.
    lstm_size: Units of the LSTM.
  """

  num_words: int = 10_000
  embedding_size: int = 96
  lstm_size: int = 670

  def __post_init__(self):
    validate.integers(
      1,
      num_words=self.num_words,
      embedding_size=self.embedding_size,
      lstm_size=self.lstm_size,
    )

  @property
  def vocabulary_size(self) -> int:
    """The number of token ids: words and special tokens."""
    return self.num_words + NUM_SPECIAL_TOKENS

  @property
  def pad(self) -> int:
    return 0

  @property
  def oov(self) -> int:
    return self.num_words + 1

  @property
  def bos(self) -> int:
    return self.num_words + 2

  @property
  def eos(self) -> int:
    return self.num_words + 3

  @functools.lru_cache(maxsize=8)  # noqa: B019 - a value, not an object.
  def jax_model(self):
    """See the base class."""
    from pda_fed.models import next_word

    return next_word.create(self)

  def keras_model(self, seed: int):
    """See the base class."""
    from pda_fed.models import keras_recurrent

    return keras_recurrent.create_keras_model(self, seed)

  def keras_loss(self):
    """See the base class; the loss is the mean over tokens."""
    from pda_fed.models import keras_recurrent

    return keras_recurrent.MaskedCrossEntropy(self)

  def keras_metrics(self):
    """See the base class; the metrics are those of the paper."""
    from pda_fed.models import keras_recurrent

    return keras_recurrent.create_metrics(self)

  def keras_input_spec(self):
    """See the base class; a batch is tokens and next tokens."""
    import tensorflow as tf

    return (tf.TensorSpec([None, None], tf.int64),) * 2

  def keras_examples(self, rows):
    """See the base class."""
    sentences = rows[0].astype(np.int64)
    return sentences[:, :-1], sentences[:, 1:]

  def check_store(self, store):
    """See the base class; model and store must have equal vocabularies."""
    if not hasattr(store, 'vocabulary'):
      raise ValueError(
        f'The model must be for arrays: {store.path} holds arrays. Found'
        f' {self}.'
      )
    if store.spec.num_words != self.num_words:
      raise ValueError(
        f'The model must have the vocabulary of the data in {store.path},'
        f' {store.spec.num_words:,} words. Found a model with'
        f' {self.num_words:,} words.'
      )
