"""The mirror step in JAX, by numbers that were computed by hand."""

import jax.numpy as jnp
import numpy as np
from pda_fed.vectorized import server_step
import pytest

# Norms 5 and 10, a dot product of 3 * 8 + 4 * 6 = 48.
_PRIVATE = (jnp.array([3.0, 0.0]), jnp.array([[4.0]]))
_PUBLIC = (jnp.array([8.0, 0.0]), jnp.array([[6.0]]))


def _flat(tree):
  return np.concatenate([np.ravel(leaf) for leaf in tree]).tolist()


def test_a_step():
  mixed, measured = server_step.mirror_step(
    _PRIVATE, _PUBLIC, jnp.float32(0.75)
  )
  assert _flat(mixed) == [0.75 * 3 + 0.25 * 8, 0, 0.75 * 4 + 0.25 * 6]
  measured = {name: float(value) for name, value in measured.items()}
  assert measured == pytest.approx(
    {
      'alpha': 0.75,
      'private_norm': 5,
      'public_norm': 10,
      'mixed_norm': (4.25**2 + 4.5**2) ** 0.5,
      'cosine': 48 / 50,
    }
  )


@pytest.mark.parametrize('alpha, kept', [(1.0, _PRIVATE), (0.0, _PUBLIC)])
def test_at_the_ends_the_other_one_is_not_touched(alpha, kept):
  broken = (jnp.array([jnp.nan, jnp.inf]), jnp.array([[-jnp.inf]]))
  arguments = (kept, broken) if alpha else (broken, kept)
  assert _flat(server_step.mix(*arguments, jnp.float32(alpha))) == _flat(kept)


def test_nothing_has_no_direction():
  nothing = (jnp.zeros(2), jnp.zeros((1, 1)))
  _, measured = server_step.mirror_step(_PRIVATE, nothing, jnp.float32(0.5))
  assert float(measured['cosine']) == 0


def test_sgd():
  params, momentum = server_step.sgd_step(_PRIVATE, (), _PUBLIC, 0.5, 0.0)
  assert _flat(params) == [-1, 0, 1]
  assert momentum == ()


def test_sgd_with_momentum():
  zeros = (jnp.zeros(2), jnp.zeros((1, 1)))
  params, momentum = server_step.sgd_step(zeros, zeros, _PUBLIC, 0.5, 0.5)
  assert (_flat(params), _flat(momentum)) == ([-4, 0, -3], [8, 0, 6])
  params, momentum = server_step.sgd_step(params, momentum, _PRIVATE, 0.5, 0.5)
  # 0.5 * 8 + 3 = 7 and 0.5 * 6 + 4 = 7.
  assert (_flat(params), _flat(momentum)) == ([-7.5, 0, -6.5], [7, 0, 7])
