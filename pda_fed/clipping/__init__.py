"""Clipped gradients of examples, for any loss in JAX.

It needs JAX alone: neither TensorFlow nor dp_accounting, and no library of
layers.
"""

from pda_fed.clipping.explain import explain
from pda_fed.clipping.explain import Explanation
from pda_fed.clipping.gradients import ClipInfo
from pda_fed.clipping.gradients import clipped_grad

__all__ = ['ClipInfo', 'Explanation', 'clipped_grad', 'explain']
