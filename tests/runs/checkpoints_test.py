"""Checkpoints: whole or not there, and never more than wanted."""

import errno
import os

import numpy as np
from pda_fed import errors
from pda_fed.common import files
from pda_fed.runs import checkpoints
import pytest

_ARRAYS = {
  'weights/0': np.arange(3, dtype=np.float32),
  'clip_norm': np.ones(()),
}


def _rounds(folder):
  return sorted(int(p.stem.split('_')[1]) for p in folder.glob('*.ckpt'))


def test_round_trip(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path / 'c')
  assert saved.latest() is None
  saved.save(7, _ARRAYS, {'rows': [{'loss': 0.1}]})
  found = saved.latest()
  assert (found.round_num, found.record) == (7, {'rows': [{'loss': 0.1}]})
  assert found.arrays.keys() == _ARRAYS.keys()
  for name, array in _ARRAYS.items():
    np.testing.assert_array_equal(found.arrays[name], array)
    assert found.arrays[name].dtype == array.dtype
  (path,) = (tmp_path / 'c').iterdir()
  assert path.stat().st_mode & 0o077 == 0  # A state may hold secrets.


def test_old_ones_go_and_later_ones_of_a_damaged_run(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, kept=2)
  for round_num in (0, 5, 10, 15):
    saved.save(round_num, _ARRAYS, {})
  assert _rounds(tmp_path) == [10, 15]
  saved.save(12, _ARRAYS, {})
  assert _rounds(tmp_path) == [10, 12]


def test_one_that_was_found_good_stays(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path, kept=2)
  for round_num in range(6):
    saved.save(round_num, _ARRAYS, {}, good_round=round_num // 5 * 5)
  assert _rounds(tmp_path) == [4, 5]
  saved.save(6, _ARRAYS, {}, good_round=4)
  saved.save(7, _ARRAYS, {}, good_round=4)
  assert _rounds(tmp_path) == [4, 6, 7]
  saved.remove_after(4)
  assert _rounds(tmp_path) == [4]


@pytest.mark.parametrize(
  'damage',
  [
    lambda content: content[: len(content) // 2],  # Half-written.
    lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    lambda content: content.replace(b'arrays 1', b'arrays 2'),
    lambda content: b'',
  ],
)
def test_a_damaged_one_falls_back_with_a_warning(tmp_path, damage):
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(5, _ARRAYS, {'at': 5})
  saved.save(10, _ARRAYS, {'at': 10})
  path = tmp_path / 'round_00000010.ckpt'
  path.write_bytes(damage(path.read_bytes()))
  with pytest.warns(UserWarning, match='round_00000010.*one before it'):
    found = saved.latest()
  assert found.record == {'at': 5}


def test_none_whole_is_an_error_and_not_a_new_start(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path)
  saved.save(5, _ARRAYS, {})
  (tmp_path / 'round_00000005.ckpt').write_bytes(b'?')
  with (
    pytest.warns(UserWarning),
    pytest.raises(
      errors.CheckpointError, match='All checkpoints .* are damaged'
    ),
  ):
    saved.latest()


def test_a_full_disk_leaves_the_one_before(tmp_path, monkeypatch):
  saved = checkpoints.Checkpoints(tmp_path, kept=1)
  saved.save(5, _ARRAYS, {'at': 5})

  def no_space(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', no_space)
  with pytest.raises(errors.CheckpointError, match='The disk is full: .* MB'):
    saved.save(10, _ARRAYS, {})
  monkeypatch.undo()
  assert [p.name for p in tmp_path.iterdir()] == ['round_00000005.ckpt']
  assert saved.latest().record == {'at': 5}


def test_bad_number_kept(tmp_path):
  with pytest.raises(ValueError, match='checkpoints_kept must be at least 1'):
    checkpoints.Checkpoints(tmp_path, kept=0)


def test_a_lock_is_for_one(tmp_path):
  path = tmp_path / 'lock'
  with files.locked(path):
    with pytest.raises(BlockingIOError), files.locked(path):
      pass

    def give_up():
      raise TimeoutError

    with (
      pytest.raises(TimeoutError),
      files.locked(path, while_waiting=give_up),
    ):
      pass
  with files.locked(path):
    pass
