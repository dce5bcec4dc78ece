"""Damaged files of ours: checkpoints, runs, trials, presets."""

import dataclasses
import math
import pathlib

import numpy as np
from pda_fed import linear_regression
from pda_fed.compare import comparison
from pda_fed.compare import report
from pda_fed.compare import tables
from pda_fed.runs import checkpoints
from pda_fed.runs import outputs
from pda_fed.runs import resuming
from pda_fed.runs.callbacks import warm_start
import pytest
from scripts.lib import cli

from tests import fake_engine
from tests.fuzz import harness
from tests.runs import runs

_PRESET = pathlib.Path(cli.__file__).parents[1] / 'presets/laptop.flags'
_RECORD = {'rows': [{'round': 0, 'loss': 1.5}], 'pending': [], 'seconds': 2.5}


def _arrays(scale=1.0):
  return {
    'weights/0': scale * np.arange(12, dtype=np.float32).reshape(3, 4),
    'optimizer/0': scale * np.ones(5, np.float32),
    'clip_norm': np.array(0.3, np.float32),
  }


def _write_checkpoints(folder):
  saved = checkpoints.Checkpoints(folder)
  for round_num in (10, 20, 30):
    saved.save(round_num, _arrays(round_num), _RECORD)


def _is_a_saved_state(expected, found):
  """Never another state than one that was saved, under its own round."""
  del expected
  assert found.round_num in (10, 20, 30)
  harness.equal(_arrays(found.round_num), found.arrays)
  harness.equal(_RECORD, found.record)


def _pretrain(folder, settings=None, engine=None):
  """Damaged or not, the weights are those of the training."""
  return list(
    warm_start.load_or_pretrain(
      engine or fake_engine.FakeEngine(None, None),
      settings or {'rate': 1},
      folder,
      on_epoch=lambda *_: None,
      while_waiting=lambda: None,
    )
  )


def _same_or_all_redrawn(expected, found):
  """A run without a checkpoint has no noise yet: its seeds may be others."""
  assert set(found) == set(expected)
  if any(expected[name] == found[name] for name in expected):
    harness.equal(expected, found)


def _write_run(folder):
  data = fake_engine.FakeData(caveats=['A caveat.'])
  runs.train(folder, fake_engine.make_run(data=data))


def _show_run(folder):
  """All that a comparison makes of a run, figures aside."""
  run = comparison.load_run(folder)
  compared = comparison.compare([run])
  tables.of_comparison(compared).as_markdown()
  shown = report.Report(comparison=compared, command='command')
  shown.lines()
  report.build_page(shown, {})
  return run


def _run_is_sound(expected, found):
  assert found.plan.rounds == found.result['rounds'] == 10
  rounds = [row['round'] for row in found.rows]
  assert rounds == sorted(set(rounds)) and rounds[-1] == 10
  for row in found.rows:
    assert all(v is None or isinstance(v, (int, float)) for v in row.values())
  for name in ('delta', 'noise_multiplier', 'seed'):
    assert found.result[name] == expected.result[name]


def _go_on(folder):
  """The run ends as it would have: metrics come again from the checkpoint."""
  (folder / 'result.json').unlink(missing_ok=True)
  _write_run(folder)
  rows = outputs.RunFolder(folder).read_metrics()
  return [{n: v for n, v in r.items() if n != 'seconds'} for r in rows]


_SIMULATION = linear_regression.SimulationConfig(
  dimensions=(500,), num_trials=2
)


def _write_trials(folder):
  store = linear_regression.TrialStore(folder, _SIMULATION)
  for number in range(2):
    outcome = linear_regression.Outcome(
      method='pda',
      regularization=math.nan,
      learning_rate=2.5,
      clip_norm=0.1,
      epochs=30,
      loss=0.1,
      population_loss=0.2,
      last_loss=0.3,
    )
    store.save(
      linear_regression.Trial(
        p=500,
        trial=number,
        condition_number=math.nan,
        seconds=1.5,
        outcomes=(outcome, dataclasses.replace(outcome, method='cold')),
      )
    )


def _read_trials(folder):
  settings = (folder / 'config.json').read_bytes()
  try:
    store = linear_regression.TrialStore(folder, _SIMULATION)
  finally:
    (folder / 'config.json').write_bytes(settings)
  trials = [store.load(500, number) for number in range(2)]
  linear_regression.summarize([trial for trial in trials if trial is not None])
  return [trial and dataclasses.asdict(trial) for trial in trials]


def _same_or_gone(expected, found):
  for one, other in zip(expected, found, strict=True):
    if other is not None:  # Then it is run again.
      harness.equal(one, other)


_RUN_FILES = ('config.json', 'metrics.csv', 'result.json')
_TARGETS = {
  'arrays': harness.Target(
    write=lambda f: checkpoints.write_arrays(f / 'a.ckpt', _arrays(), _RECORD),
    load=lambda f: list(checkpoints.read_arrays(f / 'a.ckpt')),
    must_find=0.95,
  ),
  'newest checkpoint': harness.Target(
    write=_write_checkpoints,
    load=lambda f: checkpoints.Checkpoints(f).latest(),
    check=_is_a_saved_state,
    must_find=0,
  ),
  'warm start': harness.Target(
    write=_pretrain, load=_pretrain, share=0.4, must_find=0
  ),
  'secret seeds': harness.Target(
    write=lambda f: resuming.seeds(outputs.RunFolder(f), None),
    load=lambda f: resuming.seeds(outputs.RunFolder(f), None).as_dict(),
    check=_same_or_all_redrawn,
    must_find=0.6,
  ),
  'finished run': harness.Target(
    write=_write_run,
    load=_show_run,
    check=_run_is_sound,
    files=_RUN_FILES,
    # Said of several: it is no one's file.
    names=('runs must have', 'select_by must be'),
    must_find=0.25,
  ),
  'run that goes on': harness.Target(
    write=_write_run,
    load=_go_on,
    files=('config.json', 'metrics.csv'),
    share=0.04,
  ),
  'trials': harness.Target(
    write=_write_trials,
    load=_read_trials,
    check=_same_or_gone,
    share=0.2,
  ),
  'preset': harness.Target(
    write=lambda f: (f / 'preset.flags').write_bytes(_PRESET.read_bytes()),
    load=lambda f: cli.expanded([f'--flagfile={f / "preset.flags"}']),
    check=lambda _, found: [word.encode() for word in found],
    must_find=0.1,
  ),
}


@pytest.mark.parametrize('name', _TARGETS)
def test_damaged_files(fuzz, name):
  fuzz(_TARGETS[name])


def test_checkpoints_that_changed_places(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(10, _arrays(10), _RECORD)
  saved.save(20, _arrays(20), _RECORD)
  first, second = sorted(tmp_path.glob('*.ckpt'))
  second.write_bytes(first.read_bytes())
  with pytest.warns(UserWarning, match='00000020.* is of round 10'):
    assert saved.latest().round_num == 10


def test_a_warm_start_of_other_settings_is_trained_again(tmp_path):
  _pretrain(tmp_path)
  (path,) = tmp_path.glob('*.ckpt')
  path.rename(warm_start.cache_path(tmp_path, {'rate': 2}))
  engine = fake_engine.FakeEngine(None, None)
  with pytest.warns(UserWarning, match='other settings'):
    _pretrain(tmp_path, {'rate': 2}, engine)
  assert engine.num_pretrainings == 1
