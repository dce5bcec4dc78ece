"""Models, one specification each; parameter counts as in the paper.

A specification needs no TensorFlow. `pda_fed.models.keras_recurrent`, which
does, is imported by those who need a Keras model.
"""

from pda_fed.models.recurrent import NUM_SPECIAL_TOKENS
from pda_fed.models.recurrent import RecurrentSpec

__all__ = ['NUM_SPECIAL_TOKENS', 'RecurrentSpec']
