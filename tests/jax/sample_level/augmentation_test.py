"""Standardised inputs, and images varied for a warm start."""

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed.jax.sample_level import augmentation
import pytest


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


def test_strong_variations_are_finite_and_all_differ():
  image = jax.random.normal(jax.random.key(1), (12, 8, 3))
  images = jnp.tile(image, (16, 1, 1, 1))
  vary = jax.jit(augmentation.vary_strongly)
  varied = np.asarray(vary(images, jax.random.key(0)))
  assert varied.shape == images.shape
  assert np.isfinite(varied).all()
  assert len({v.tobytes() for v in varied}) == 16
  again = np.asarray(vary(images, jax.random.key(0)))
  np.testing.assert_array_equal(varied, again)


def test_the_square_that_is_cut_out_is_a_quarter_at_most():
  images = jnp.ones((200, 8, 8, 1))
  keys = jax.random.split(jax.random.key(0), 200)
  varied = np.asarray(jax.vmap(augmentation._cut_out)(images, keys))
  cut = (varied == 0).sum(axis=(1, 2, 3))
  assert cut.max() == 16
  assert cut.min() < 16  # Where it reaches over the edge.
  assert set(np.unique(varied)) == {0, 1}


@pytest.mark.slow
def test_an_image_that_is_not_turned_stays(monkeypatch):
  for name in ('_MAX_ANGLE', '_MAX_SHEAR', '_MAX_GROWTH', '_MAX_COLOUR'):
    monkeypatch.setattr(augmentation, name, 0.0)
  image = jax.random.normal(jax.random.key(1), (7, 8, 3))
  key = jax.random.key(0)
  np.testing.assert_allclose(augmentation._turn(image, key), image, atol=1e-5)
  found = augmentation._change_colours(image, key)
  np.testing.assert_allclose(found, image, atol=1e-5)
  # A quarter turn.
  monkeypatch.setattr(
    jax.random, 'uniform', lambda *_, **__: jnp.array([1, 0, 0])
  )
  monkeypatch.setattr(augmentation, '_MAX_ANGLE', np.pi / 2)
  square = image[:, :7]
  turned = augmentation._turn(square, key)
  np.testing.assert_allclose(turned, jnp.rot90(square, 3), atol=1e-5)


def test_mixed_images_are_blends_of_two():
  images = jnp.arange(5.0)[:, None] * jnp.ones((5, 2))
  mixed, others, weight = augmentation.mix_up(images, jax.random.key(0), 1.0)
  assert sorted(others.tolist()) == [0, 1, 2, 3, 4]
  assert 0 <= float(weight) <= 1
  expected = weight * np.arange(5) + (1 - weight) * np.asarray(others)
  np.testing.assert_allclose(mixed[:, 0], expected, rtol=1e-6)
