"""Handwritten digits from scikit-learn, without a download.

1,797 images of 8 x 8 pixels, a copy of the test set of "Optical Recognition of
Handwritten Digits" (Alpaydin and Kaynak, 1998).
"""

from data_prep import errors
from data_prep.sample_level import base
import numpy as np
from pda_fed.privacy import seeds

_NUM_TEST = 360
# The test images do not depend on a run's seeds.
_SPLIT_SEED = 0
_MAX_PIXEL = 16


def load_digits() -> base.SampleLevelData:
  """Loads the digits; images are uint8 [examples, 8, 8, 1].

  Example:

    >>> data = load_digits()
    >>> data.train.inputs.shape[1:], data.num_classes
    ((8, 8, 1), 10)

  Returns:
    The digits; a fifth of them are test data.

  Raises:
    SourceError: If scikit-learn is not installed.
  """
  try:
    from sklearn import datasets
  except ModuleNotFoundError as e:
    raise errors.SourceError(
      'The digits come with scikit-learn, which is not installed here. Install'
      ' it, or choose other data with --dataset and --data_dir.'
    ) from e
  found = datasets.load_digits()
  images = np.round(found.images * (255 / _MAX_PIXEL)).astype(np.uint8)
  examples = base.Examples(images[..., None], found.target.astype(np.int32))
  draws = seeds.generator('shuffling', _SPLIT_SEED, 0).random(len(examples))
  order = np.argsort(draws, kind='stable')
  return base.SampleLevelData(
    name='digits',
    train=examples.take(np.sort(order[_NUM_TEST:])),
    test=examples.take(np.sort(order[:_NUM_TEST])),
    num_classes=10,
  )
