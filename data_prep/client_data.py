"""Converts a group of a token store to TFF ClientData.

Besides the source `tff`, this is the only module of the package that needs TFF.
"""

from data_prep import encoding
from data_prep import store
import numpy as np
import pda_fed.tff  # noqa: F401  Makes TFF importable.
import tensorflow as tf
import tensorflow_federated as tff

_ROW_BYTES = encoding.ROW_LENGTH * encoding.TOKEN_DTYPE.itemsize


def as_client_data(
  data: store.TokenStore, group: str = 'private'
) -> tff.simulation.datasets.ClientData:
  """Returns a group's users as a `ClientData`.

  Sentences are read from the store's file when a dataset is iterated, in any
  process. They are not held in memory or in a graph.

  Args:
    data: The store.
    group: One of the store's groups.

  Returns:
    A ClientData. Its client ids are the users' names, and its elements are
    sentences: int64 token ids of shape [21].

  Raises:
    ValueError: If the group does not exist or has no users.
  """
  names = list(data.users(group))
  if not names:
    raise ValueError(f'group must have users. Found {group!r} without any.')
  places = {name: i for i, name in enumerate(names)}
  offsets = np.asarray(data.row_offsets(group))
  file = str((data.path / store.TOKENS).absolute())
  size = (data.path / store.TOKENS).stat().st_size
  header = size - len(data.tokens) * _ROW_BYTES

  def find_rows(client_id) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first row of a client, and one past the last."""
    client_id = tf.convert_to_tensor(client_id)
    if tf.executing_eagerly():  # Avoids a table of all names per client.
      place = places[client_id.numpy().decode()]
      return tf.constant(offsets[place]), tf.constant(offsets[place + 1])
    # Created here: a table of another graph could not be serialized with this
    # one.
    table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(
        tf.constant(names), tf.range(len(names), dtype=tf.int64)
      ),
      default_value=-1,
    )
    # An unknown name has the index -1, on which gather fails.
    place = table.lookup(client_id)
    return (
      tf.gather(tf.constant(offsets[:-1]), place),
      tf.gather(tf.constant(offsets[1:]), place),
    )

  def dataset_fn(client_id) -> tf.data.Dataset:
    start, stop = find_rows(client_id)
    rows = tf.data.FixedLengthRecordDataset(
      file,
      record_bytes=_ROW_BYTES,
      header_bytes=header + start * _ROW_BYTES,
      footer_bytes=size - header - stop * _ROW_BYTES,
    )
    return rows.map(_decode)

  return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
    names, dataset_fn
  )


def _decode(row: tf.Tensor) -> tf.Tensor:
  tokens = tf.io.decode_raw(row, tf.uint16, little_endian=True)
  return tf.ensure_shape(tf.cast(tokens, tf.int64), [encoding.ROW_LENGTH])
