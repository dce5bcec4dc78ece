r"""Measures a round of stock TFF, DP-FedAvg, PDA-DPMD and pfl-research.

    python -m bench.federated_round --work=small,paper --rounds=5 \
        --pfl_python=build/pfl-venv/bin/python

Every algorithm does the same local training on the same users and the same
runtime. Rounds alternate, so that noise of the machine affects all of them
alike. Stock TFF trains the Keras model with one metric; pfl-research trains in
its own environment, without metrics. The ratios of the medians matter, not the
seconds.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from collections.abc import Callable
import time

import numpy as np
from pda_fed import schedules
from pda_fed import tff as pda_tff
from pda_fed.common import tables
from pda_fed.tff import runtime
import tensorflow as tf
import tensorflow_federated as tff

from bench import rounds
from bench import timing

_STOCK, _DP_FEDAVG, _PDA_DPMD = 'stock TFF', 'DP-FedAvg', 'PDA-DPMD'
_RATIOS = (
  (_DP_FEDAVG, _STOCK),
  (_PDA_DPMD, _DP_FEDAVG),
  (_DP_FEDAVG, rounds.PEER),
)


def _stock_model_fn(work: rounds.Work):
  """Returns a model_fn with the same layers, loss and sizes, in Keras."""
  sizes = work.spec
  tokens = tf.TensorSpec([None, None], tf.int64)

  def model_fn():
    layers = tf.keras.layers
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential(
        [
          layers.Input(shape=(None,), dtype=tf.int64),
          layers.Embedding(sizes.vocabulary_size, sizes.embedding_size),
          layers.LSTM(sizes.lstm_size, return_sequences=True),
          layers.Dense(sizes.embedding_size),
          layers.Dense(sizes.vocabulary_size),
        ]
      ),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=(tokens, tokens),
      metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )

  return model_fn


def _build_processes(work: rounds.Work) -> dict:
  model_fn = pda_tff.build_model_fn(work.spec)
  client, server = (
    tff.learning.optimizers.build_sgdm(0.5),
    tff.learning.optimizers.build_sgdm(1.0, 0.9),
  )
  plan = rounds.plan(work)
  public = [
    (tokens[:, :-1], tokens[:, 1:])
    for tokens in _sentences(work, max(10, work.clients // 10), seed=1)
  ]
  return {
    _STOCK: tff.learning.algorithms.build_unweighted_fed_avg(
      _stock_model_fn(work), client, server
    ),
    _DP_FEDAVG: pda_tff.build_dp_fedavg(model_fn, plan, client, server),
    _PDA_DPMD: pda_tff.build_pda_dpmd(
      model_fn,
      plan,
      client,
      server,
      public_data=public,
      alpha=schedules.cosine(100),
      public_users_per_round=max(1, work.clients // 10),
    ),
  }


def _sentences(work: rounds.Work, users: int, seed: int) -> np.ndarray:
  rng = np.random.default_rng(seed)
  shape = users, work.sentences, 21
  return rng.integers(1, work.spec.num_words + 1, shape)


def _round_fn(process, cohort) -> Callable[[], float]:
  """Returns a function that runs the next round and returns its seconds."""
  state = process.initialize()

  def run() -> float:
    nonlocal state
    started = time.perf_counter()
    state = process.next(state, cohort).state
    return time.perf_counter() - started

  return run


def _measure(work: rounds.Work) -> dict[str, float]:
  """Returns the median seconds of a round, after one to warm up."""
  cohort = [
    pda_tff.make_dataset(s, 16) for s in _sentences(work, work.clients, seed=0)
  ]
  measures = {
    name: _round_fn(process, cohort)
    for name, process in _build_processes(work).items()
  }
  with rounds.peer(work) as peer:
    return timing.in_turn(measures | peer, rounds.ROUNDS.value)[0]


def main() -> None:
  """Measures the works of the flags, and prints a table of each."""
  works = rounds.chosen_works()
  with runtime.in_process():
    for name, work in works.items():
      median = _measure(work)
      rows = [(key, f'{seconds:.2f} s') for key, seconds in median.items()]
      rows += [
        (f'{a} / {b}', f'{median[a] / median[b]:.2f}')
        for a, b in _RATIOS
        if b in median
      ]
      header = [f'{name}: {work.clients} x {work.sentences} sentences', '']
      print(tables.format_table(header, rows))


if __name__ == '__main__':
  cli.run(main)
