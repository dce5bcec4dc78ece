"""Measures the costs of rounds on the first device of this machine.

    python -m bench.scaling --axes=pieces --output_dir=out/scaling
    python -m bench.scaling --axes=plan --pieces=out/scaling/pieces.json

Uses the paper's model, and users of 256 sentences.
"""

from collections.abc import Callable
import functools
import pathlib
import statistics
import time
from typing import Any

import data_prep
import jax
import numpy as np
from pda_fed import models
from pda_fed import vectorized

from bench import made_up_rounds
from bench import pieces as pieces_lib
from bench import synthetic_store

_BATCH = 16
_SENTENCES = 256
# For a CPU, which trains one client at a time, and a GPU: (clients side by
# side, steps), and number of sentences of an evaluation.
_CPU = ((1, 1), (1, 4)), 256
_GPU = ((1, 16), (4, 16), (13, 16), (25, 16), (50, 16), (100, 16), (10, 2))
_GPU = _GPU, 100 * 1024
_USERS, _COHORT = 1000, 100


def _median(run: Callable[[], float], repeats: int) -> float:
  run()  # Compiles.
  return statistics.median(run() for _ in range(repeats))


def _timed(function: Callable[[], Any]) -> float:
  started = time.perf_counter()
  function()
  return time.perf_counter() - started


def measure_reading(work_dir: pathlib.Path, repeats: int) -> float:
  """Returns the seconds to read and arrange a client for a device.

  Args:
    work_dir: Folder for a synthetic store of 10 MB.
    repeats: Number of cohorts to read.
  """
  spec = models.RecurrentSpec()
  store = data_prep.open_store(
    synthetic_store.write_store(
      work_dir,
      num_users=_USERS,
      sentences_per_user=_SENTENCES,
      num_words=spec.num_words,
    )
  )
  rng = np.random.default_rng(0)

  def read():
    users = rng.choice(_USERS, _COHORT, replace=False)

    def load(places, num_clients):
      cohort = data_prep.load_cohort(
        store,
        'private',
        users[places],
        batch_size=_BATCH,
        num_clients=num_clients,
      )
      return cohort.examples, cohort.weights

    chunks = vectorized.chunk_clients(
      np.full(_COHORT, _SENTENCES),
      load,
      batch_size=_BATCH,
      clients_per_chunk=_COHORT,
    )
    inputs = vectorized.RoundInputs(np.int32(0), chunks)
    return vectorized.stack_rounds([inputs], 1)

  return _median(functools.partial(_timed, read), repeats) / _COHORT


def _measure_evaluation(sentences: int, repeats: int) -> float:
  """Returns the seconds per sentence in an evaluation."""
  spec = models.RecurrentSpec()
  model = spec.jax_model()
  weights = model.initial_params(0)
  tokens = np.random.default_rng(0).integers(
    1, spec.num_words + 1, (sentences, 21), np.uint16
  )

  def evaluate():
    vectorized.evaluate(model, weights, (tokens,))

  return _median(functools.partial(_timed, evaluate), repeats) / sentences


def _device_bytes(device: jax.Device, clients: int) -> float:
  """Returns the memory per client, from the peak memory so far."""
  stats = device.memory_stats() or {}
  return stats.get('peak_bytes_in_use', 0) / clients


def measure(work_dir: pathlib.Path, repeats: int) -> list[dict[str, Any]]:
  """Measures in float32, and on a GPU also in bfloat16.

  Args:
    work_dir: See `measure_reading`.
    repeats: Number of measurements of each cost, after one to warm up.

  Returns:
    Entries of a file of pieces.
  """
  device = jax.devices()[0]
  is_cpu = device.platform == 'cpu'
  sizes, sentences = _CPU if is_cpu else _GPU
  read = measure_reading(work_dir, repeats)
  evaluation = _measure_evaluation(sentences, repeats)
  entries = []
  for dtype in ('float32',) if is_cpu else ('float32', 'bfloat16'):
    run = made_up_rounds.Rounds(
      models.RecurrentSpec(),
      [device],
      most_chunks=1,
      most_steps=max(steps for _, steps in sizes),
      compute_dtype=dtype,
    )
    rounds = [
      pieces_lib.MeasuredRound(
        steps, c, _median(functools.partial(run, c, c, steps), repeats)
      )
      for c, steps in sizes
    ]
    most = max(c for c, _ in sizes)
    pieces = pieces_lib.Pieces(
      f'{device.device_kind}, JAX, {dtype}',
      pieces_lib.fit_cost(rounds),
      evaluation,
      read,
      0.0 if is_cpu else _device_bytes(device, most),
      devices_per_host=jax.local_device_count(),
    )
    how = f'bench.scaling --axes=pieces, jax {jax.__version__}'
    entries.append(pieces_lib.to_json(pieces, rounds, how))
  return entries
