"""Updates of a few clients, as flat vectors too."""

import jax
import numpy as np


def flat(tree):
  """One float64 row per client."""
  rows = [
    np.asarray(leaf, np.float64).reshape(leaf.shape[0], -1)
    for leaf in jax.tree_util.tree_leaves(tree)
  ]
  return np.concatenate(rows, axis=1)


def norms(tree):
  """One number per client."""
  return np.linalg.norm(flat(tree), axis=1)


def random_updates(num_clients, seed=0):
  """Of three arrays."""
  rng = np.random.default_rng(seed)
  return {
    'kernel': rng.standard_normal((num_clients, 3, 4)).astype(np.float32),
    'bias': rng.standard_normal((num_clients, 4)).astype(np.float32),
    'scale': rng.standard_normal(num_clients).astype(np.float32),
  }
