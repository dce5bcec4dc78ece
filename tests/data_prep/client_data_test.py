"""A store as TFF's ClientData."""

import data_prep
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff


def _rows(dataset):
  return np.stack(list(dataset.as_numpy_iterator()))


@pytest.mark.parametrize('group', ['private', 'public'])
def test_clients_are_the_users(small_store, group):
  clients = data_prep.as_client_data(small_store, group)
  assert isinstance(clients, tff.simulation.datasets.ClientData)
  assert clients.client_ids == list(small_store.users(group))
  assert clients.element_type_structure == tf.TensorSpec([21], tf.int64)
  for name in clients.client_ids[:3]:
    dataset = clients.create_tf_dataset_for_client(name)
    assert np.array_equal(_rows(dataset), small_store.sentences(name))


def test_works_in_tff(small_store):
  clients = data_prep.as_client_data(small_store)
  name = clients.client_ids[5]
  dataset = clients.dataset_computation(name)
  assert np.array_equal(np.stack(list(dataset)), small_store.sentences(name))


def test_no_table_is_made_for_each_client(small_store, monkeypatch):
  # With as many users as StackOverflow has, one takes 0.1 s.
  clients = data_prep.as_client_data(small_store)
  name = clients.client_ids[1]
  monkeypatch.setattr(tf.lookup, 'StaticHashTable', None)
  dataset = clients.create_tf_dataset_for_client(name)
  assert np.array_equal(_rows(dataset), small_store.sentences(name))


def test_clients_of_a_graph(small_store):
  clients = data_prep.as_client_data(small_store)
  names = clients.client_ids[:3]
  fn = clients.serializable_dataset_fn
  dataset = tf.data.Dataset.from_tensor_slices(names).flat_map(fn)
  expected = np.concatenate([small_store.sentences(name) for name in names])
  assert np.array_equal(_rows(dataset), expected)


def test_unknown_client(small_store):
  clients = data_prep.as_client_data(small_store)
  with pytest.raises(ValueError, match='nobody'):
    clients.create_tf_dataset_for_client('nobody')
