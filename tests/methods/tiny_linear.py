"""A linear model of two weights and three users, in numpy and both engines."""

import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed import privacy

RATE = 0.1  # Of clients.
CLIP = 0.5
COHORT = 4  # The expected one: three clients take part.
START = np.array([[0.3], [-0.2]], np.float32)

# (x, y) of users; the second sends a large update, the third one that is
# opposite to the public update.
USERS = [
  (np.float32([[1.0, 0.5], [0.2, -1.0]]), np.float32([[0.4], [0.1]])),
  (np.float32([[9.0, -8.0], [7.0, 6.0]]), np.float32([[-30.0], [40.0]])),
  (np.float32([[0.5, 0.5], [1.0, 0.0]]), np.float32([[3.0], [2.0]])),
]
PUBLIC = [
  (np.float32([[1.0, 1.0], [0.5, -0.5]]), np.float32([[-1.0], [0.5]])),
  (np.float32([[0.0, 2.0], [1.5, 0.0]]), np.float32([[0.2], [-2.0]])),
]


def _loss(params, x, y):
  return jnp.square(x @ params[0] - y)[0]


MODEL = models.Model(lambda seed: [START], _loss)


def plan(**changes):
  fields = dict(
    population=100,
    expected_cohort=COHORT,
    rounds=6,
    delta=1e-3,
    noise_multiplier=0.0,
    clip_norm=CLIP,
  )
  return privacy.PrivacyPlan(**fields | changes)


def gradient(weights, examples):
  """Of the mean squared error, in float64."""
  x, y = (part.astype(np.float64) for part in examples)
  return 2 * x.T @ (x @ weights - y) / len(x)


def clip(update, norm=CLIP):
  return update * min(1.0, norm / np.linalg.norm(update))


def mean_of(updates):
  """Clipped, summed and divided by the expected cohort."""
  return sum(map(clip, updates)) / COHORT


def scales(public, epsilon):
  """AdaDPS' A after the first round, by its definition."""
  squares = public**2
  relative = squares / squares.mean()
  return np.sqrt((relative + epsilon**2) / (1 + epsilon**2))


def expected_update(name, private, publics):
  """What a method's first round descends, written out for each.

  Args:
    name: A key of `tests.methods.rounds_test.METHODS`.
    private: Updates of private clients.
    publics: Updates of public ones.
  """
  public = sum(publics) / len(publics)
  if name in ('cold', 'warm'):
    return mean_of(private)
  if name == 'pda':
    return 0.25 * mean_of(private) + 0.75 * public
  if name == 'semi_dp':
    clipped = sum(map(clip, publics)) / len(publics)
    return 0.6 * mean_of(private) + 0.4 * clipped
  if name == 'dope':
    return public + mean_of([u - public for u in private])
  a = scales(public, epsilon=0.3)
  mean = mean_of([u / a for u in private])
  return mean * a if name == 'adadps_back' else mean
