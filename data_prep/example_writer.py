"""Writes the files of an example store."""

import pathlib
from typing import Any

from data_prep import assignment
from data_prep import example_store
from data_prep import store_writer
from data_prep.sources import arrays
import numpy as np
from pda_fed.common import standardization


class ExampleWriter(store_writer.UserWriter):
  """Writes the examples of all users, then the index."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, example_store.ExampleStore)

  def write_examples(
    self, source: arrays.ArraySource, plan: assignment.Assignment
  ) -> dict[str, Any]:
    """Writes inputs and classes.

    Args:
      source: Source of the examples.
      plan: The users to store, by group.

    Returns:
      The manifest's entries on inputs and classes.
    """
    rows = {}
    for name, group in plan.groups.items():
      slices = zip(group.ids, group.start, group.stop, strict=True)
      found = [source.rows(*of_user) for of_user in slices]
      rows[name] = np.concatenate([np.zeros(0, np.int64), *found])
      self.add_users(name, group.names, group.num_sentences)
    order = np.concatenate(list(rows.values()))
    np.save(self._folder / example_store.X, source.x[order])
    labels = source.y[order].astype(example_store.LABEL_DTYPE)
    np.save(self._folder / example_store.Y, labels)
    channels = source.x.shape[-1]
    mean, scale = np.zeros(channels, 'f'), np.ones(channels, 'f')
    if len(rows[assignment.PUBLIC]):
      public = source.x[rows[assignment.PUBLIC]]
      mean, scale = standardization.mean_and_scale(public)
    return {
      'inputs': {
        'shape': list(source.x.shape[1:]),
        'dtype': source.x.dtype.str,
        'mean': mean.tolist(),
        'scale': scale.tolist(),
      },
      'classes': {
        'number': source.num_classes,
        'caveats': list(source.caveats),
      },
    }
