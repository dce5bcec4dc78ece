"""Searches with an epsilon, with numbers of runs that the tests choose."""

import contextlib
import json
import re
import stat
import subprocess
import sys

from absl import flags
from absl.testing import flagsaver
from pda_fed import errors
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.common import files
import pytest
from scripts.lib import private_search

from tests.scripts import programs

_SEARCH = ('--private_search=negative_binomial', '--search_runs=3')


def _compare(draws, *arguments):
  """Runs `compare`, whose searches make these numbers of runs."""
  program = (
    'import runpy, sys; from pda_fed.privacy import search;'
    f'left = {draws}; sys.argv[0] = "compare";'
    'search.PrivateSearch.draw = lambda self, rng: left.pop(0);'
    'runpy.run_module("scripts.compare", run_name="__main__")'
  )
  return subprocess.run(
    [sys.executable, '-c', program, programs.FAKE, *arguments],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


class TestPrivateSearch:
  """A search that is interrupted, goes on, ends, and is looked at again."""

  @pytest.fixture(scope='class')
  def folder(self, tmp_path_factory):
    return tmp_path_factory.mktemp('private') / 'out'

  @pytest.fixture(scope='class')
  def arguments(self, folder):
    return (
      f'--output_dir={folder}',
      '--methods=warm,pda',
      '--tune=rate=1,2,3,4',
      '--tune=pda:alpha_K=4,8',
      *_SEARCH,
      '--',
      f'--crash_if={folder.parent / "crash"}',
    )

  @pytest.fixture(scope='class')
  def draws(self, folder, arguments):
    """What was drawn before all runs crashed."""
    (folder.parent / 'crash').touch()
    done = _compare([3, 2], *arguments)
    (folder.parent / 'crash').unlink()
    assert done.returncode == 1
    assert 'A run failed with exit code 3' in done.stderr
    assert 'Give the same command again to resume the search' in done.stderr
    state = folder / 'private_search/draws.json'
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
    assert not (folder / 'runs').exists()
    found = json.loads(state.read_text())['draws']
    assert {m: len(runs) for m, runs in found.items()} == {'warm': 3, 'pda': 2}
    return found

  @pytest.fixture(scope='class')
  def done(self, arguments, draws):
    del draws
    return _compare([], *arguments)  # Nothing is drawn again.

  def test_releases_the_best_of_the_same_draws(self, done, draws, folder):
    assert done.returncode == 0, done.stderr
    assert {p.name for p in folder.iterdir()} == {
      'curves_warm_pda.png',
      'curves_warm_pda.svg',
      'index.html',
      'private_search.json',
      'runs',
      'table.md',
      'table.tex',
    }
    assert {p.name for p in (folder / 'runs').iterdir()} == {'warm_0', 'pda_0'}
    for method, runs in draws.items():
      config, _, result = runs_lib.RunFolder(
        folder / 'runs' / f'{method}_0'
      ).read_finished()
      rates = [int(cell[0].removeprefix('--rate=')) for _, cell in runs]
      assert config['rate'] == min(rates)
      assert result['seed'] is None
      assert result['test'] is not None

  def test_states_the_epsilon_of_the_search(self, done, folder):
    run = runs_lib.RunFolder(folder / 'runs/pda_0')
    search = privacy.PrivateSearch(expected_runs=3)
    one, both = (
      privacy.round_up(privacy.search_epsilon(run.read_plan(), search, n))
      for n in (1, 2)
    )
    page = (folder / 'index.html').read_text()
    for text in (done.stdout, page):
      assert f'of one method has (epsilon, delta) = ({one}, 0.0001)' in text
      assert (
        f'of all 2 methods together have (epsilon, delta) = ({both}, 0.0001)'
      ) in text
    assert f'({one}, 0.0001)' in run.read_config()['private_search']
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700

  def test_tells_nothing_else(self, done, draws, folder):
    texts = [done.stdout, done.stderr]
    texts += [
      path.read_text()
      for path in folder.rglob('*')
      if path.suffix in ('.json', '.html', '.md', '.tex')
    ]
    names = {name for runs in draws.values() for name, _ in runs}
    told = {n for n in names if any(n in text for text in texts)}
    assert len(told) == 2  # Of the two runs that are released.
    for text in texts:
      assert not re.search(r'best of \d|\[\d/\d\]', text)

  @pytest.mark.slow
  def test_again_shows_the_same(self, done, arguments, folder):
    written = (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns
    again = _compare([], *arguments)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns == written

  def test_another_search_is_refused(self, done, arguments):
    del done
    changed = [a.replace('search_runs=3', 'search_runs=4') for a in arguments]
    other = _compare([1, 1], *changed)
    assert other.returncode == 2
    assert 'holds a private search with other flags' in other.stderr
    assert 'search.expected_runs: 3.0 -> 4.0' in other.stderr


@pytest.mark.slow
def test_no_run_is_a_release_too(tmp_path):
  arguments = ('--methods=warm,pda', '--tune=rate=1', '--search_runs=2')
  arguments += ('--private_search=poisson', f'--output_dir={tmp_path}')
  done = _compare([0, 1], *arguments)
  assert done.returncode == 0, done.stderr
  words = 'warm start: the search released no run.'
  assert words in done.stdout
  assert words in (tmp_path / 'index.html').read_text()
  assert 'of all 2 methods together' in done.stdout
  assert [p.name for p in (tmp_path / 'runs').iterdir()] == ['pda_0']


@pytest.mark.slow
@pytest.mark.parametrize(
  'draws, more', [([0], []), ([1], ['--diverge_above=0'])]
)
def test_nothing_is_left_to_compare(tmp_path, draws, more):
  arguments = ('--methods=pda', '--tune=rate=1', '--search_runs=2')
  arguments += ('--private_search=poisson', f'--output_dir={tmp_path}')
  for _ in range(2):
    done = _compare(draws, *arguments, '--', *more)
    assert done.returncode == 1
    assert 'PDA-DPMD: the search released no run.' in done.stderr
    assert 'There is no run to compare.' in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ['private_search.json']


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--search_runs=1'], 'expected_runs must be in (1, inf)'),
    (['--', '--noise_multiplier=0'], 'noise_multiplier must be above 0'),
    (['--', '--delta=0.01'], 'delta must be at most 1/population'),
    (['--select_by=bleu'], "Found 'bleu'"),
    (
      [
        '--tune=warm:rate=1',
        '--methods=pda,warm',
        '--method_flags=warm:--rounds=5',
      ],
      'must have the same population, cohort, rounds',
    ),
  ],
)
def test_bad_searches(tmp_path, arguments, words):
  done = _compare(
    [1, 1],
    f'--output_dir={tmp_path}',
    '--methods=pda',
    '--tune=pda:rate=1,2',
    *_SEARCH,
    *arguments,
  )
  assert done.returncode == 2, done.stderr
  assert words in done.stderr
  assert 'Traceback' not in done.stderr
  assert not any(tmp_path.iterdir())


def _check(arguments=(), own=(), methods=('pda',), num_seeds=1, tune=None):
  grids = {'pda': {'rate': ('1', '2')} if tune is None else tune}
  own = {method: list(own) for method in methods}
  private_search.check(arguments, own, grids, num_seeds)


@pytest.fixture
def parsed_flags(monkeypatch):
  monkeypatch.setattr('sys.argv', ['compare', programs.FAKE])
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['compare'])
  with flagsaver.flagsaver(binary='tests.scripts.fake_train'):
    yield


@pytest.mark.usefixtures('parsed_flags')
class TestCheck:
  @pytest.mark.parametrize(
    'name, value',
    [('extend', ['rate']), ('print_runs', 'true'), ('tune_flags', '--x')],
  )
  def test_flags_that_do_not_fit(self, name, value):
    _check()
    with flagsaver.as_parsed(**{name: value}):
      with pytest.raises(ValueError, match=f'--{name} must not be given with'):
        _check()

  @pytest.mark.parametrize(
    'settings, words',
    [
      ({'num_seeds': 2}, '--seeds must be 1 with --private_search'),
      ({'methods': ['cold', 'pda']}, 'every method. Found none for cold'),
      ({'tune': {'rounds': ('1',)}}, '--rounds must not be given in --tune'),
      ({'tune': {'method': ('pda',)}}, '--method must not be given in --tune'),
      ({'arguments': ['--seed=1']}, '--seed must not be given with'),
      ({'own': ['--seed=1']}, '--seed must not be given with'),
      ({'arguments': ['--nofinal_test']}, '--nofinal_test must not be given'),
      ({'arguments': ['--rate=1']}, '--rate must not be given beside it'),
    ],
  )
  def test_settings_that_do_not_fit(self, settings, words):
    with pytest.raises(ValueError, match=re.escape(words)):
      _check(**settings)

  def test_a_seed_in_a_flag_file(self, tmp_path):
    (tmp_path / 'seed.flags').write_text('--seed=1')
    with pytest.raises(ValueError, match='--seed must not be given with'):
      _check([f'--flagfile={tmp_path / "seed.flags"}'])

  def test_a_batch_of_the_sample_level_changes_epsilon(self):
    _check(tune={'batch_size': ('8',)})
    with flagsaver.flagsaver(binary='train_sample_level'):
      with pytest.raises(ValueError, match='--batch_size must not be given'):
        _check(tune={'batch_size': ('8',)})


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--search_runs=3'], '--search_runs must be given with --private_search'),
    (['--private_search=poisson'], 'must be given with --search_runs'),
    (_SEARCH, '--private_search must be given with --tune for every method'),
    (['--combine=X', *_SEARCH], '--private_search --search_runs.'),
  ],
)
def test_flags_that_come_alone(tmp_path, arguments, words):
  done = _compare([], f'--output_dir={tmp_path}', *arguments)
  assert done.returncode == 2
  assert words in done.stderr
  assert not any(tmp_path.iterdir())


def test_runs_that_were_made_before_are_refused(tmp_path):
  (tmp_path / 'runs/pda_0').mkdir(parents=True)
  (tmp_path / 'runs/pda_0/config.json').write_text('{}')
  done = _compare(
    [1], f'--output_dir={tmp_path}', '--methods=pda', '--tune=rate=1', *_SEARCH
  )
  assert done.returncode == 2
  assert 'has earlier runs' in done.stderr


@pytest.mark.slow
def test_flags_that_runs_refuse_may_be_corrected(tmp_path):
  arguments = (f'--output_dir={tmp_path}', '--methods=pda', *_SEARCH)
  done = _compare([1], *arguments, '--tune=rate=1', '--', '--fail')
  assert done.returncode == 1
  assert 'fail must be false' in done.stderr
  assert 'Nothing was run' in done.stderr
  done = _compare([1], *arguments, '--tune=rate=1')
  assert done.returncode == 0, done.stderr


def test_an_audit_in_a_flag_file_is_refused(tmp_path):
  (tmp_path / 'audit.flags').write_text('--audit\n')
  done = programs.run(
    'compare',
    programs.FAKE,
    f'--output_dir={tmp_path / "out"}',
    '--methods=warm',
    '--tune=rate=1,2',
    *_SEARCH,
    '--',
    f'--flagfile={tmp_path / "audit.flags"}',
  )
  assert done.returncode == 2
  assert '--audit must not be given with --private_search' in done.stderr


def _release(folder, monkeypatch):
  """Releases the runs of a search; their binary is a fake one."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['compare'])
  binary = 'tests.scripts.fake_train'
  monkeypatch.setattr('sys.argv', ['compare', f'--binary={binary}'])
  with flagsaver.flagsaver(binary=binary, output_dir=str(folder)):
    search = privacy.PrivateSearch(expected_runs=3)
    return private_search.release(search, [], {'pda': []}, {'pda': {}})


def test_a_second_process_makes_no_runs(tmp_path, monkeypatch):
  (tmp_path / 'private_search').mkdir()
  with files.locked(tmp_path / 'private_search/.lock'):
    with pytest.raises(errors.BusyError, match='Only one process at a time'):
      _release(tmp_path, monkeypatch)
  assert [p.name for p in tmp_path.rglob('*')] == ['private_search', '.lock']


class _Ended:
  """Private searches that another process ends as this one begins."""

  def __init__(self, *unused):
    self.answers = [False, True]

  def locked(self):
    return contextlib.nullcontext()

  def is_released(self):
    return self.answers.pop(0)

  def released(self):
    return ['the folder'], ['a note']


def test_a_search_that_ended_meanwhile_is_not_made_again(tmp_path, monkeypatch):
  monkeypatch.setattr(private_search.secret_runs, 'SecretRuns', _Ended)
  assert _release(tmp_path, monkeypatch) == (['the folder'], ['a note'])
