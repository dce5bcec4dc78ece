"""Damaged folders of runs: checkpoints, warm starts, seeds, results."""

import numpy as np
from pda_fed.compare import comparison
from pda_fed.compare import grids
from pda_fed.compare import ranking
from pda_fed.compare import report
from pda_fed.compare import result_tables
from pda_fed.runs import checkpoints
from pda_fed.runs import outputs
from pda_fed.runs import resuming
from pda_fed.runs.callbacks import warm_start
import pytest

from tests import fake_engine
from tests.fuzz import harness
from tests.runs import runs


def _arrays(scale=1.0):
  return {
    'weights/0': scale * np.arange(12, dtype=np.float32).reshape(3, 4),
    'momentum/0': scale * np.ones(5, np.float32),
    'clip_norm': np.array(0.3, np.float32),
  }


_RECORD = {'rows': [{'round': 0, 'loss': 1.5}], 'pending': [], 'seconds': 2.5}


def test_arrays(fuzz):
  def load(folder):
    arrays, record = checkpoints.read_arrays(folder / 'some.ckpt')
    return [arrays, record]

  fuzz(
    harness.Target(
      write=lambda f: checkpoints.write_arrays(
        f / 'some.ckpt', _arrays(), _RECORD
      ),
      load=load,
    ),
    must_find=0.99,
  )


def test_the_newest_checkpoint_that_is_whole(fuzz):
  """Never another state than one that was saved, under its own round."""

  def write(folder):
    saved = checkpoints.Checkpoints(folder)
    for round_num in (10, 20, 30):
      saved.save(round_num, _arrays(round_num), _RECORD)

  def load(folder):
    return checkpoints.Checkpoints(folder).latest()

  def check(expected, found):
    del expected
    assert found.round_num in (10, 20, 30)
    harness.equal(_arrays(found.round_num), found.arrays)
    harness.equal(_RECORD, found.record)

  fuzz(harness.Target(write=write, load=load, check=check), must_find=0)


def test_checkpoints_that_changed_places(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(10, _arrays(10), _RECORD)
  saved.save(20, _arrays(20), _RECORD)
  first, second = sorted(tmp_path.glob('*.ckpt'))
  second.write_bytes(first.read_bytes())
  with pytest.warns(UserWarning, match='00000020.* is of round 10'):
    assert saved.latest().round_num == 10


def test_a_warm_start_of_other_settings_is_trained_again(tmp_path):
  engine = fake_engine.FakeEngine(None, None)

  def load(settings):
    return warm_start.load_or_pretrain(
      engine,
      settings,
      tmp_path,
      on_epoch=lambda *_: None,
      while_waiting=lambda: None,
    )

  load({'rate': 1})
  load({'rate': 1})
  assert engine.num_pretrainings == 1
  (path,) = tmp_path.glob('*.ckpt')
  path.rename(tmp_path / f'{warm_start.cache_key({"rate": 2})}.ckpt')
  with pytest.warns(UserWarning, match='other settings'):
    load({'rate': 2})
  assert engine.num_pretrainings == 2


def test_warm_starts(fuzz):
  """Damaged or not, the weights are those of the training."""

  def load(folder):
    weights, figures = warm_start.load_or_pretrain(
      fake_engine.FakeEngine(None, None),
      {'rate': 1},
      folder,
      on_epoch=lambda *_: None,
      while_waiting=lambda: None,
    )
    return [weights, figures]

  fuzz(harness.Target(write=load, load=load), 0.4, must_find=0)


def test_secret_seeds(fuzz):
  """A run never goes on with other noise than it had."""
  fuzz(
    harness.Target(
      write=lambda f: resuming.seeds(outputs.RunFolder(f), None),
      load=lambda f: resuming.seeds(outputs.RunFolder(f), None).as_dict(),
      # Of a run without a checkpoint they may be gone: it has no noise yet.
      check=lambda expected, found: (
        None
        if (set(found) == set(expected)) and _were_redrawn(expected, found)
        else harness.equal(expected, found)
      ),
    ),
    must_find=0.6,
  )


def _were_redrawn(expected, found):
  return all(expected[name] != found[name] for name in expected)


def _write_run(folder):
  data = fake_engine.FakeData(caveats=['A caveat.'])
  runs.train(folder, fake_engine.make_run(data=data))


_RUN_FILES = ('config.json', 'metrics.csv', 'result.json')


def _show_run(folder):
  """All that a comparison makes of a run, figures aside."""
  run = comparison.load_run(folder)
  compared = comparison.compare([run])
  result_tables.as_text(compared)
  result_tables.as_markdown(compared)
  result_tables.as_latex(compared)
  report.build_page(compared, {}, 'command')
  return run


def _run_is_sound(expected, found):
  assert found.plan.rounds == found.result['rounds'] == 10
  # It may be a method that is not installed here.
  assert isinstance(found.method, str) and found.method
  rounds = [row['round'] for row in found.rows]
  assert rounds == sorted(set(rounds)) and rounds[-1] == 10
  for row in found.rows:
    assert all(v is None or isinstance(v, (int, float)) for v in row.values())
  for name in ('delta', 'noise_multiplier', 'seed'):
    assert found.result[name] == expected.result[name]


def test_run_files(fuzz):
  fuzz(
    harness.Target(
      write=_write_run,
      load=_show_run,
      check=_run_is_sound,
      files=_RUN_FILES,
      # Said of several: it is no one's file.
      names=('runs must have', 'select_by must be'),
    ),
    must_find=0.25,
  )


def test_sweeps(fuzz):
  cell = grids.Cell((('clip_norm', 1),))

  def load(folder):
    found = ranking.look(cell, folder)
    if found.is_finished:
      ranking.rank([found], 'loss')
    ranking.as_csv([found])
    return found

  def check(expected, found):
    del expected
    assert found.cell == cell

  fuzz(
    harness.Target(
      write=_write_run,
      load=load,
      check=check,
      files=_RUN_FILES,
      names=('metrics must be among',),
    ),
    must_find=0.2,
  )


@pytest.mark.slow
def test_going_on_with_a_run(fuzz):
  """A run that goes on with damaged files ends as it would have, or says why.

  Rows of metrics.csv come again from the checkpoint.
  """

  def load(folder):
    (folder / 'result.json').unlink(missing_ok=True)
    data = fake_engine.FakeData(caveats=['A caveat.'])
    runs.train(folder, fake_engine.make_run(data=data))
    rows = outputs.RunFolder(folder).read_metrics()
    return [{n: v for n, v in r.items() if n != 'seconds'} for r in rows]

  fuzz(
    harness.Target(
      write=_write_run, load=load, files=('config.json', 'metrics.csv')
    ),
    0.1,
    must_find=0.1,
  )


def test_stopped(fuzz):
  def write(folder):
    resuming.mark_stopped(outputs.RunFolder(folder), 7)

  def load(folder):
    return resuming._stopped_after(outputs.RunFolder(folder))

  def check(expected, found):
    # It must equal the round of the checkpoint, or nothing comes of it.
    del expected
    assert found is None or (type(found) is int and found >= 0)

  fuzz(harness.Target(write=write, load=load, check=check), 0.5, must_find=0.3)
