"""Standardised inputs."""

import jax.numpy as jnp
import numpy as np
from pda_fed.vectorized.sample_level import augmentation


def test_features_have_mean_0_and_variance_1():
  rng = np.random.default_rng(0)
  scales, shifts = np.array([1e-6, 1, 1e6]), np.array([0, 50, -1e6])
  public = (rng.normal(size=(40, 3)) * scales + shifts).astype(np.float32)
  standard = augmentation.Standardization.of(public)
  found = np.asarray(standard.apply(jnp.asarray(public)))
  np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-5)
  np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-5)


def test_constant_features_are_only_shifted():
  # 1e-40 is 0 to XLA.
  public = np.full((17, 3), 0.1, np.float32)
  public[:, 1] = 0
  public[0, 1] = 1e-40
  public[:, 2] = np.arange(17)
  standard = augmentation.Standardization.of(public)
  assert standard.stddev[:2].tolist() == [1, 1]
  found = np.asarray(standard.apply(jnp.asarray(public + 1)))
  np.testing.assert_allclose(found[:, :2], 1, rtol=1e-6)
  np.testing.assert_allclose(found[:, 2].std(), 1, rtol=1e-5)
