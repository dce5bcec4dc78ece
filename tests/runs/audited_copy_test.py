"""The copy of an audit is gone when the run has ended.

It is another look at the same users.
"""

from pda_fed import errors
from pda_fed import runs as runs_lib
import pytest

from tests import fake_engine
from tests.runs import runs

_CONFIG = fake_engine.make_run(audit='copy', audit_canaries=100)


def _ending(error, round_num):
  class Ending(runs.ending(error, round_num, only_copy=True)):
    def evaluate(self, weights, group, max_users=None):
      return {'loss': 1.0}  # Nothing that a guard would stop.

  return fake_engine.Opener(Ending)


@pytest.mark.parametrize('round_num', [0, 4])
def test_a_copy_that_diverges(tmp_path, round_num):
  opener = _ending(errors.DivergenceError('No longer finite.'), round_num)
  for _ in range(2):  # Its noise is new each time, so it may be repeated.
    with pytest.raises(
      errors.DivergenceError, match='its copy for the audit diverged'
    ) as e:
      runs_lib.train(_CONFIG, tmp_path, open_engine=opener)
    assert 'No longer finite' in str(e.value)
    assert not (tmp_path / 'audit').exists()
  result = runs_lib.RunFolder(tmp_path).read_result()
  assert result['rounds'] == 10 and result['audit'] is None


def test_a_run_that_is_killed_before_it_removes_its_copy(tmp_path):
  with pytest.raises(KeyboardInterrupt):
    runs_lib.train(_CONFIG, tmp_path, open_engine=_ending(KeyboardInterrupt, 4))
  assert (tmp_path / 'audit/secret_seeds.json').exists()
  folder = runs_lib.RunFolder(tmp_path)
  names = 'canaries', 'delta', 'added_noise', 'most', 'lower_bound'
  found = dict.fromkeys((*names, 'resolution', 'proven'), 1.0)
  found |= {'canaries': 100, 'views': {}}
  folder.write_result({**folder.read_result(), 'audit': found})
  runs.train(tmp_path, _CONFIG)
  assert not (tmp_path / 'audit').exists()
