"""Rounds on random words, and sums over devices, to be measured."""

from collections.abc import Callable, Sequence
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pda_fed import models
from pda_fed import privacy
from pda_fed import vectorized
from pda_fed.vectorized import devices as devices_lib

_BATCH = 16


def settings_of(
  spec: models.RecurrentSpec, clients: int, compute_dtype: str
) -> vectorized.FederatedSettings:
  """Returns the DP-FedAvg settings of measured rounds.

  Args:
    spec: The model.
    clients: Number of clients of a round.
    compute_dtype: Data type of matrix products.
  """
  return vectorized.FederatedSettings(
    model=spec.jax_model(),
    plan=privacy.PrivacyPlan(
      population=100 * clients,
      expected_cohort=clients,
      rounds=100,
      delta=1e-5,
      noise_multiplier=0.4,
      clip_norm=0.3,
    ),
    client_learning_rate=0.5,
    server_learning_rate=1.0,
    server_momentum=0.9,
    compute_dtype=compute_dtype,
  )


class Rounds:
  """Rounds of DP-FedAvg over devices of one or several hosts.

  Clients and their steps are data, so the program is only compiled once for
  each number of clients side by side.
  """

  def __init__(
    self,
    spec: models.RecurrentSpec,
    devices: Sequence[jax.Device],
    *,
    most_chunks: int,
    most_steps: int,
    compute_dtype: str = 'float32',
  ):
    """Sets up rounds, without compiling them.

    Args:
      spec: The model.
      devices: Devices that share the clients.
      most_chunks: Maximum number of chunks of a device.
      most_steps: Maximum number of steps of a client.
      compute_dtype: Data type of matrix products.
    """
    self._spec, self._devices = spec, devices
    self._most_chunks, self._most_steps = most_chunks, most_steps
    settings = settings_of(spec, 100, compute_dtype)
    self._run = vectorized.build_rounds(settings, devices)
    self._state = vectorized.initial_state(
      settings, settings.model.initial_params(0)
    )
    self._key = vectorized.noise_key(0)

  def __call__(self, clients: int, clients_per_chunk: int, steps: int) -> float:
    """Runs a round and returns its seconds, without making the data.

    Args:
      clients: Number of clients on all devices.
      clients_per_chunk: Number of clients side by side.
      steps: Number of steps of each client.
    """
    inputs = self._inputs(clients, clients_per_chunk, steps)
    started = time.perf_counter()
    self._state, metrics = jax.block_until_ready(
      self._run(self._state, inputs, 1, self._key)
    )
    seconds = time.perf_counter() - started
    if not np.isfinite(metrics['train_loss']).all():
      raise ValueError(f'The loss is not finite: {metrics}.')
    return seconds

  def _inputs(self, clients: int, clients_per_chunk: int, steps: int):
    rng = np.random.default_rng(0)
    shape = self._most_steps, _BATCH, 21

    def load(places, num_clients):
      tokens = np.zeros((num_clients, *shape), np.uint16)
      tokens[: len(places)] = rng.integers(
        1, self._spec.num_words + 1, (len(places), *shape)
      )
      weights = np.zeros((num_clients, *shape[:2]), np.float32)
      weights[: len(places), :steps] = 1
      return (tokens,), weights

    private = vectorized.chunk_clients(
      np.full(clients, steps * _BATCH),
      load,
      batch_size=_BATCH,
      clients_per_chunk=clients_per_chunk,
      num_devices=len(self._devices),
      min_chunks=self._most_chunks,
      own_devices=devices_lib.places_of_this_host(self._devices),
    )
    inputs = vectorized.RoundInputs(round_num=np.int32(0), private=private)
    return vectorized.stack_rounds([inputs], 1)


def build_sum(
  kind: str, size: int, devices: Sequence[jax.Device]
) -> Callable[[], Any]:
  """Builds the sum of float32 numbers over devices.

  Args:
    kind: 'ordered', as in rounds, or 'psum', XLA's own.
    size: Number of float32 numbers of each device.
    devices: Devices of one or several hosts.

  Returns:
    A function that computes the sum.
  """
  own = devices_lib.places_of_this_host(devices)
  numbers = np.ones((1, len(own), size), np.float32)
  numbers = devices_lib.split(numbers, devices)
  if kind == 'ordered':
    mapped = devices_lib.map_over_devices(lambda _, own, __: own, devices)
    compiled = jax.jit(lambda a: mapped((), a[0], ()))
  elif isinstance(numbers, jax.Array):
    # The sum over an axis that is split over devices is `psum` in XLA.
    spec = jax.sharding.PartitionSpec()
    everywhere = jax.sharding.NamedSharding(numbers.sharding.mesh, spec)
    compiled = jax.jit(
      lambda a: jnp.sum(a[0], axis=0), out_shardings=everywhere
    )
  else:
    compiled = jax.jit(lambda a: jnp.sum(a[0], axis=0))
  return lambda: compiled(numbers)
