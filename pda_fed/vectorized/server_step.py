"""The mirror step of PDA-DPMD in JAX; see `learning.mirror` for TFF's.

"Public Data-Assisted Mirror Descent for Private Model Training" (Amid et al.,
ICML 2022, arXiv:2112.00193), equation (3). What is mixed is noised already:
everything here is post-processing.
"""

from typing import Any, Union

import jax
import jax.numpy as jnp

_Scalar = Union[float, jax.Array]


def global_norm(tree: Any) -> jax.Array:
  """The L2 norm of all leaves together."""
  return jnp.sqrt(_dot(tree, tree))


def _dot(a: Any, b: Any) -> jax.Array:
  # Sums of products, not matrix products: on GPUs these may round to TF32.
  return sum(
    jnp.sum(x * y)
    for x, y in zip(
      jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b), strict=True
    )
  )


def mix(private: Any, public: Any, alpha: jax.Array) -> Any:
  """Returns alpha * private + (1 - alpha) * public.

  At alpha 1 it is `private` and at 0 `public`, bit for bit: the other one is
  not touched, whatever it holds.

  Args:
    private: A pytree of arrays.
    public: The same structure.
    alpha: A scalar in [0, 1].
  """

  def mixed(a, b):
    both = alpha * a + (1 - alpha) * b
    return jnp.where(alpha >= 1, a, jnp.where(alpha <= 0, b, both))

  return jax.tree_util.tree_map(mixed, private, public)


def mirror_step(
  private: Any, public: Any, alpha: jax.Array
) -> tuple[Any, dict[str, jax.Array]]:
  """Mixes a public update at theta_t into the noised private one.

  Args:
    private: g_t + b_t.
    public: grad Psi(theta_t), in the unit of the private update.
    alpha: alpha_t.

  Returns:
    What the server optimizer descends, and measurements of it.
  """
  mixed = mix(private, public, alpha)
  private_norm, public_norm = global_norm(private), global_norm(public)
  scale = private_norm * public_norm
  dot = _dot(private, public)
  return mixed, {
    'alpha': alpha,
    'private_norm': private_norm,
    'public_norm': public_norm,
    'mixed_norm': global_norm(mixed),
    'cosine': jnp.where(scale == 0, 0.0, dot / jnp.where(scale == 0, 1, scale)),
  }


def sgd_step(
  params: Any,
  momentum: Any,
  update: Any,
  learning_rate: _Scalar,
  momentum_rate: float,
) -> tuple[Any, Any]:
  """SGD with momentum, as TFF's `build_sgdm` takes it.

  Args:
    params: The weights.
    momentum: The accumulator; anything without momentum.
    update: What is descended.
    learning_rate: The rate.
    momentum_rate: Of the accumulator; 0 for none.

  Returns:
    New weights and accumulator.
  """
  if momentum_rate:
    momentum = update = jax.tree_util.tree_map(
      lambda m, u: momentum_rate * m + u, momentum, update
    )
  params = jax.tree_util.tree_map(
    lambda w, u: w - learning_rate * u, params, update
  )
  return params, momentum
