"""Users with few sentences, and their arrays."""

import numpy as np
from pda_fed.jax.federated import chunks

_LENGTH = 6


def make_users(spec, sizes, seed):
  """Sentences of random lengths, beginning with bos, ended by eos if short."""
  rng = np.random.default_rng(seed)
  users = []
  for size in sizes:
    sentences = np.zeros((size, _LENGTH), np.uint16)
    for row in sentences:
      words = rng.integers(1, spec.num_words + 2, rng.integers(1, _LENGTH))
      tokens = [spec.bos, *words, spec.eos][:_LENGTH]
      row[: len(tokens)] = tokens
    users.append(sentences)
  return users


def loader(users, batch_size, steps):
  """What `chunks.chunk_clients` loads users by."""
  room = steps * batch_size

  def load(places, num_clients):
    tokens = np.zeros((num_clients, room, _LENGTH), np.uint16)
    weights = np.zeros((num_clients, room), np.float32)
    for i, place in enumerate(places):
      tokens[i, : len(users[place])] = users[place]
      weights[i, : len(users[place])] = 1
    return (
      (tokens.reshape(num_clients, steps, batch_size, _LENGTH),),
      weights.reshape(num_clients, steps, batch_size),
    )

  return load


def chunk(users, batch_size, clients_per_chunk=1, steps=4, **options):
  """The chunks of users, of at most `steps` batches each."""
  return chunks.chunk_clients(
    np.array([len(u) for u in users], np.int64),
    loader(users, batch_size, steps),
    batch_size=batch_size,
    clients_per_chunk=clients_per_chunk,
    **options,
  )
