"""Tests for pda_fed.linear_regression.baselines."""

import numpy as np
from pda_fed import privacy
from pda_fed.linear_regression import baselines
import pytest

_TARGET = dict(epsilon=1.0, delta=1e-5)
_BOUNDS = dict(feature_norm=1.0, response_bound=1.0)


def _samples(num_samples, p=3):
  rng = np.random.default_rng(0)
  features = rng.uniform(-0.5, 0.5, (num_samples, p))
  theta = np.array([0.5, -1.0, 0.25])
  return features, features @ theta, theta


def test_many_samples_give_least_squares():
  features, responses, theta = _samples(2_000_000)
  found = baselines.dp_sufficient_statistics(
    features, responses, np.random.default_rng(0), **_TARGET, **_BOUNDS
  )
  np.testing.assert_allclose(found, theta, atol=5e-3)


def test_few_samples_give_the_center():
  features, responses, _ = _samples(2)
  center = np.array([3.0, 4.0, 5.0])
  found = baselines.dp_sufficient_statistics(
    features,
    responses,
    np.random.default_rng(0),
    center=center,
    epsilon=1.0,
    delta=1e-5,
    **_BOUNDS,
  )
  # All of it is noise, of about half the ridge.
  assert np.linalg.norm(found - center) < 3 * np.linalg.norm(center)
  assert np.isfinite(found).all()


def test_one_sample_is_bounded():
  # A sample as large as can be moves the result as little as a clipped one.
  features, responses, _ = _samples(1000)
  results = []
  for size in (1.0, 1e9):
    extreme = np.concatenate([features, [[size, 0.0, 0.0]]])
    results.append(
      baselines.dp_sufficient_statistics(
        extreme,
        np.append(responses, size),
        np.random.default_rng(0),
        **_TARGET,
        **_BOUNDS,
      )
    )
  np.testing.assert_allclose(results[0], results[1], rtol=1e-9)


@pytest.mark.parametrize('noise', ['algorithm_1', 'tight'])
def test_noise(noise):
  settings = dict(rounds=10, population=1000, **_TARGET)
  found = baselines.noise_stddev(noise, clip_norm=2.0, **settings)
  function = getattr(privacy, f'{noise}_noise_stddev')
  assert found == function(lipschitz=2.0, **settings)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    # Broadcast against a vector of noise, it would come out p times, each time
    # with the same noise.
    (lambda x, y: {'responses': y[:, None]}, r'responses .*\(10,\).*\(10, 1\)'),
    (lambda x, y: {'responses': y[:3]}, r'responses .* Found \(3,\)'),
    (lambda x, y: {'responses': y * np.nan}, 'responses must be finite'),
    (lambda x, y: {'features': x * np.nan}, 'features must be finite'),
    (lambda x, y: {'features': x * np.inf}, 'features must be finite'),
    (lambda x, y: {'center': np.zeros(2)}, 'center must be a vector of 3'),
    (lambda x, y: {'center': np.full(3, np.nan)}, 'center must be a vector'),
  ],
)
def test_samples_that_no_clip_bounds(change, message):
  features, responses, _ = _samples(10)
  arguments = {'features': features, 'responses': responses}
  arguments |= change(features, responses)
  with pytest.raises(ValueError, match=message):
    baselines.dp_sufficient_statistics(
      **arguments, rng=np.random.default_rng(0), **_TARGET, **_BOUNDS
    )


def test_bad_arguments():
  with pytest.raises(ValueError, match="noise must be one of .*'none'"):
    baselines.noise_stddev(
      'none', clip_norm=1.0, rounds=1, population=10, **_TARGET
    )
  features, responses, _ = _samples(10)
  for bad in ({'feature_norm': 0.0}, {'response_bound': -1.0}, {'delta': 2.0}):
    with pytest.raises(ValueError, match=next(iter(bad))):
      baselines.dp_sufficient_statistics(
        features,
        responses,
        np.random.default_rng(0),
        **{**_TARGET, **_BOUNDS, **bad},
      )
