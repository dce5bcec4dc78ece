"""Specification of the language model in the WikiText-2 experiments.

The appendix of "Public Data-Assisted Mirror Descent for Private Model Training"
(Amid et al., ICML 2022, arXiv:2112.00193): an embedding of size 120, two LSTM
layers of 120 units, and a dense layer to the 8,000 words.
"""

import dataclasses
import functools

from pda_fed.common import validate
from pda_fed.models import spec as spec_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageSpec(spec_lib.ModelSpec):
  """Sizes of an embedding, LSTM layers and a dense layer; 2,159,360 weights.

  Example:

    >>> LanguageSpec().num_parameters
    2159360

  Attributes:
    vocabulary_size: Number of words, including the unknown word.
    embedding_size: Size of a word's embedding.
    lstm_size: Units of each LSTM layer.
    num_layers: Number of LSTM layers.
    loss_per_sequence: 'sum' or 'mean' of the words' losses. This is an
      example's loss, whose gradient is clipped. 'sum' is better: gradients
      smaller than the clipping norm are lost in the noise.
  """

  vocabulary_size: int = 8000
  embedding_size: int = 120
  lstm_size: int = 120
  num_layers: int = 2
  loss_per_sequence: str = 'sum'

  def __post_init__(self):
    validate.integers(
      1,
      vocabulary_size=self.vocabulary_size,
      embedding_size=self.embedding_size,
      lstm_size=self.lstm_size,
      num_layers=self.num_layers,
    )
    validate.one_of(('sum', 'mean'), loss_per_sequence=self.loss_per_sequence)

  @functools.lru_cache(maxsize=8)  # noqa: B019 - a value, not an object.
  def jax_model(self):
    """See the base class."""
    from pda_fed.models import flax_language

    return flax_language.create(self)
