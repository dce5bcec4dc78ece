"""Hosts with the same command: what is the same, and which GPUs runs see."""

import pathlib
import re

from absl import flags
from absl.testing import flagsaver
from pda_fed import errors
from pda_fed import privacy
from pda_fed.analysis import claims
from pda_fed.analysis import jobs
from pda_fed.analysis import slots
import pytest
from scripts.lib import private_search
from scripts.lib import sharing

from tests.scripts import programs


@pytest.mark.parametrize(
  'one, other, is_same',
  [
    (['--seeds=2'], ['--seeds=3'], False),
    (['--num_processes=2', '--seeds=2'], ['--seeds=2'], True),
    (['--num_processes', '2', '--seeds=2'], ['--seeds=2'], True),
    (['--debug', '--output_dir=/a'], ['--output_dir', '/b'], True),
    (['--', '--output_dir=/a'], ['--', '--output_dir=/b'], False),
  ],
)
def test_commands_of_hosts(monkeypatch, one, other, is_same):
  found = set()
  for arguments in (one, other):
    monkeypatch.setattr('sys.argv', ['x/scripts/compare.py', *arguments])
    found.add(sharing._purpose())
  assert (len(found) == 1) == is_same
  assert all(text.startswith('compare ') for text in found)


def test_a_program_joins_once_and_leaves_at_its_end(tmp_path, capsys):
  assert sharing.join(tmp_path, print) is None  # Not a program that shares.
  with sharing.writing(), sharing.shared():
    found = sharing.join(tmp_path, print)
    assert sharing.join(tmp_path, print) is found
    with sharing.writing():
      assert list((tmp_path / '.claims').glob('writing.0'))
    assert list((tmp_path / '.claims').glob('writing.0.free'))
  assert not list(tmp_path.iterdir())
  assert sharing.join(tmp_path, print) is None
  assert capsys.readouterr().out == ''


def test_a_private_search_is_alone(tmp_path, monkeypatch):
  monkeypatch.setattr(claims, '_BEAT_SECONDS', 0.05)
  monkeypatch.setattr(claims, '_WAIT_SECONDS', 0.05)
  with sharing.alone(tmp_path, print):
    with pytest.raises(errors.BusyError, match='Only one process at a time'):
      with sharing.alone(tmp_path, print):
        pass
  with sharing.alone(tmp_path, print):  # It is free again.
    pass
  assert not list(tmp_path.iterdir())


class _Ended:
  """Private searches that another host ends while this one waits."""

  def __init__(self, *unused):
    self.answers = [False, True]

  def is_released(self):
    return self.answers.pop(0)

  def released(self):
    return ['the folder'], ['a note']


def test_a_search_that_ended_meanwhile_is_not_made_again(tmp_path, monkeypatch):
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['compare'])
  monkeypatch.setattr(private_search.secret_runs, 'SecretRuns', _Ended)
  binary = 'tests.scripts.fake_train'
  monkeypatch.setattr('sys.argv', ['compare', f'--binary={binary}'])
  with flagsaver.flagsaver(binary=binary, output_dir=str(tmp_path)):
    search = privacy.PrivateSearch(expected_runs=3)
    found = private_search.release(search, [], {'pda': []}, {'pda': {}})
  assert found == (['the folder'], ['a note'])


def _job(module, *arguments):
  return jobs.Job('x', module, arguments, pathlib.Path('x'))


@pytest.mark.parametrize(
  'module, arguments, uses_gpus',
  [
    ('scripts.train_stackoverflow', [], False),
    ('scripts.train_stackoverflow', ['--engine=jax'], True),
    ('scripts.train_stackoverflow', ['--engine', 'jax'], True),
    ('scripts.train_stackoverflow', ['--engine=jax', '--engine=tff'], False),
    ('scripts.train_stackoverflow', ['--engine=jax', '--platform=cpu'], False),
    ('scripts.train_stackoverflow', ['--engine=jax', '--platform=gpu'], True),
    ('scripts.train_stackoverflow', ['--flagfile=FILE'], True),
    ('scripts.train_sample_level', [], True),
    ('my.program', [], True),
  ],
)
def test_gpus_are_for_runs_with_jax(
  monkeypatch, tmp_path, module, arguments, uses_gpus
):
  (tmp_path / 'x.flags').write_text('--engine=jax\n')
  arguments = [a.replace('FILE', str(tmp_path / 'x.flags')) for a in arguments]
  monkeypatch.setattr(slots, 'gpus', lambda: ('0', '1'))
  found = sharing.gpus_for([_job(module, *arguments)])
  assert found == (('0', '1') if uses_gpus else ())


def test_default_engines_are_those_of_the_binaries():
  for path in (programs.ROOT / 'scripts').glob('train_*.py'):
    found = re.search(r"DEFINE_enum\(\s*'engine',\s*'(\w+)'", path.read_text())
    default = found[1] if found else 'jax'
    module = f'scripts.{path.stem}'
    assert sharing._ENGINES.get(module, 'jax') == default


@pytest.mark.parametrize(
  'arguments', [['--distributed'], ['--seed=1', '--distributed=true']]
)
def test_runs_side_by_side_are_on_one_host_each(arguments):
  with pytest.raises(ValueError, match='start this command on several hosts'):
    sharing.refuse_distributed(arguments)
  sharing.refuse_distributed(['--seed=1'])
