"""Progress of binaries that start others, and hints."""

import io
import os
import pathlib
import re

from pda_fed.compare import jobs
from pda_fed.compare import slots
import pytest
from scripts.lib import job_flags

from tests import fake_engine
from tests.runs import runs
from tests.scripts import programs


@pytest.mark.parametrize(
  ('arguments', 'is_finished'),
  [
    ([], False),
    (['--nofinal_test'], True),
    (['--final_test=false'], True),
    (['--nofinal_test', '--final_test'], False),
  ],
)
def test_a_run_without_a_test_is_finished_if_none_is_wanted(
  tmp_path, arguments, is_finished
):
  config = fake_engine.make_config(final_test=False)
  runs.train(tmp_path / 'run', config)
  job = jobs.Job(
    name='x',
    module='none',
    arguments=tuple(arguments),
    folder=tmp_path / 'run',
  )
  assert job_flags.is_finished(job) == is_finished


def test_a_log_is_told_of_runs_under_way(monkeypatch, capsys, tmp_path):
  job = jobs.Job(name='pda_0', module='none', arguments=(), folder=tmp_path)
  progress = job_flags._Progress(1)
  monkeypatch.setattr(job_flags, '_SECONDS_OF_SILENCE', float('inf'))
  progress([job], [])
  assert capsys.readouterr().err == ''
  monkeypatch.setattr(job_flags, '_SECONDS_OF_SILENCE', -1)
  progress([job], [])
  assert capsys.readouterr().err == 'pda_0: starts\n'
  progress([], [job])
  assert '[1/1] pda_0: starts\n' in capsys.readouterr().err


class _Terminal(io.StringIO):
  def isatty(self):
    return True

  def fileno(self):
    return 2


@pytest.mark.parametrize('columns', [None, 0, 20, 60])
def test_a_bar_fits_terminals_of_any_width(monkeypatch, tmp_path, columns):
  def size(descriptor):
    del descriptor
    if columns is None:
      raise OSError('not a terminal')
    return os.terminal_size((columns, 0))

  terminal = _Terminal()
  monkeypatch.delenv('COLUMNS', raising=False)
  monkeypatch.setattr(os, 'get_terminal_size', size)
  monkeypatch.setattr('sys.stderr', terminal)
  some = [
    jobs.Job(name=f'method_{i}', module='none', arguments=(), folder=tmp_path)
    for i in range(20)
  ]
  progress = job_flags._Progress(20)
  progress(some, [])
  progress.close()
  bars = terminal.getvalue().replace('\n', '\r').split('\r')
  assert any('runs' in bar or 'method' in bar or '%' in bar for bar in bars)
  assert max(map(len, bars)) <= (columns or 80)


@pytest.mark.parametrize(
  ('flag', 'is_known'),
  [
    ('clip_norm', True),
    ('noise_multiplier', True),
    ('nofinal_test', True),
    ('epochs', True),
    ('bleu', False),
  ],
)
def test_flags_of_the_training_binary_get_a_hint(flag, is_known):
  expected = f'. --{flag} is a flag of the training binary: put it after --'
  assert job_flags._hint(flag) == (expected if is_known else '')


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
  job = jobs.Job('x', module, tuple(arguments), pathlib.Path('x'))
  assert job_flags.gpus_for([job]) == (('0', '1') if uses_gpus else ())


def test_default_engines_are_those_of_the_binaries():
  for path in (programs.ROOT / 'scripts').glob('train_*.py'):
    found = re.search(r"DEFINE_enum\(\s*'engine',\s*'(\w+)'", path.read_text())
    default = found[1] if found else 'jax'
    assert job_flags._ENGINES.get(f'scripts.{path.stem}', 'jax') == default


@pytest.mark.parametrize(
  'arguments', [['--distributed'], ['--seed=1', '--distributed=true']]
)
def test_runs_side_by_side_are_on_one_host_each(arguments):
  with pytest.raises(ValueError, match='several hosts, give --print_runs'):
    job_flags.refuse_distributed(arguments)
  job_flags.refuse_distributed(['--seed=1'])
