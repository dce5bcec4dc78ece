"""Damaged trials of the linear regression."""

import dataclasses
import math

from pda_fed import linear_regression
import pytest

from tests.fuzz import harness

pytestmark = pytest.mark.slow

_CONFIG = linear_regression.SimulationConfig(dimensions=(500,), num_trials=2)


def _trial(number):
  outcomes = tuple(
    linear_regression.Outcome(
      method=method,
      regularization=math.nan if method == 'cold' else 0.01,
      learning_rate=rate,
      clip_norm=0.1,
      epochs=30,
      loss=0.1 / rate,
      population_loss=0.2,
      last_loss=0.3,
    )
    for method in ('cold', 'pda')
    for rate in (1.0, 2.5)
  )
  return linear_regression.Trial(
    p=500,
    trial=number,
    condition_number=math.nan,
    seconds=1.5,
    outcomes=outcomes,
  )


def _write(folder):
  store = linear_regression.TrialStore(folder, _CONFIG)
  for number in range(2):
    store.save(_trial(number))


def _read(folder):
  settings = (folder / 'config.json').read_bytes()
  try:
    store = linear_regression.TrialStore(folder, _CONFIG)
  finally:
    (folder / 'config.json').write_bytes(settings)
  trials = [store.load(500, number) for number in range(2)]
  found = [trial for trial in trials if trial is not None]
  linear_regression.summarize(found)
  return [trial and dataclasses.asdict(trial) for trial in trials]


def _same_or_gone(expected, found):
  for one, other in zip(expected, found, strict=True):
    if other is not None:  # Then it is run again.
      harness.equal(one, other)


_TRIALS = ('trials/p00500_trial000.json', 'trials/p00500_trial001.json')


def test_trials(fuzz):
  fuzz(
    harness.Target(
      write=_write, load=_read, check=_same_or_gone, files=_TRIALS
    ),
    must_find=0.8,
  )


def test_settings(fuzz):
  fuzz(
    harness.Target(
      write=_write, load=_read, check=_same_or_gone, files=('config.json',)
    ),
    must_find=0.3,
  )
