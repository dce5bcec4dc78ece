"""The next-word LSTM of the paper's StackOverflow experiments, as numbers.

The appendix of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193) lists an embedding of size 96, one
LSTM layer of 670 units, a dense layer back to 96 and one to the vocabulary:
4,050,748 parameters. A spec needs no TensorFlow; `keras_recurrent` builds the
Keras model from it.
"""

import dataclasses

from pda_fed.common import validate

# Pad, out of vocabulary, beginning and end of a sentence, as in TFF's baseline.
NUM_SPECIAL_TOKENS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentSpec:
  """Sizes of an embedding, LSTM, dense, dense next-word model.

  Token ids are those of TFF's StackOverflow baseline: pad 0, words 1 to
  `num_words`, then out-of-vocabulary, beginning and end of a sentence.

  Example:

    >>> spec = RecurrentSpec()
    >>> spec.vocabulary_size, sum(spec.parameter_counts.values())
    (10004, 4050748)

  Attributes:
    num_words: The vocabulary without special tokens.
    embedding_size: Of a token, and of the LSTM's projected output.
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

  @property
  def parameter_counts(self) -> dict[str, int]:
    """The number of trainable parameters of each layer."""
    v, e, h = self.vocabulary_size, self.embedding_size, self.lstm_size
    return {
      'embedding': v * e,
      'lstm': 4 * h * (e + h + 1),
      'projection': (h + 1) * e,
      'logits': (e + 1) * v,
    }
