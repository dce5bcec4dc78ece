"""Private searches, with numbers of runs that the tests choose."""

import json
import re
import stat
from unittest import mock

from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.common import files
from pda_fed.compare import jobs
from pda_fed.privacy import search as search_lib
import pytest

from tests.scripts import programs

_DIGITS = ('--dataset=digits', '--epochs=1')
_SEARCH = ('--private_search=negative_binomial', '--search_runs=3')
_POISSON = ('--private_search=poisson', '--search_runs=2')
_RATES = '--tune=server.learning_rate=0.1,0.2,0.5'


def _compare(draws, *words):
  """Runs `compare`, whose searches draw these numbers of runs."""
  left = list(draws)
  with mock.patch.object(
    search_lib.PrivateSearch, 'draw', lambda self, rng: left.pop(0)
  ):
    return programs.run('compare', *_DIGITS, *words)


def _crash(all_jobs, log_dir, **_):
  """Stands for `jobs.run_jobs`: the first run is made, the second crashes."""
  first, second, *_ = all_jobs
  first.prepare()
  programs.run('train', *first.arguments)
  log = log_dir / 'crash.log'
  lines = 'round 3/17: loss 4.2\nerror: The disk is full.'
  return [jobs.Failure(second, 3, log, lines)]


class TestPrivateSearch:
  """A search that is interrupted, goes on, ends, and is looked at again."""

  @pytest.fixture(scope='class')
  def folder(self, tmp_path_factory):
    return tmp_path_factory.mktemp('private') / 'out'

  @pytest.fixture(scope='class')
  def settings(self, folder):
    return (
      *(f'--output_dir={folder}', '--methods=warm,pda', _RATES, *_SEARCH),
      '--tune=pda:method.alpha_K=4,8',
    )

  @pytest.fixture(scope='class')
  def draws(self, folder, settings):
    """What was drawn before a run crashed, and the seed of the first run."""
    with mock.patch.object(programs, '_run_jobs', _crash):
      done = _compare([3, 2], *settings)
    assert done.code == 1, done.err
    assert 'A run failed with exit code 3' in done.err
    assert 'The disk is full' in done.err and 'loss' not in done.err
    assert 'Give the same command again to resume the search' in done.err
    state = folder / 'private_search/draws.json'
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
    assert not (folder / 'runs').exists()
    found = json.loads(state.read_text())['draws']
    assert {m: len(runs) for m, runs in found.items()} == {'warm': 3, 'pda': 2}
    return found

  @pytest.fixture(scope='class')
  def seen(self):
    """The losses of all runs, and their configs, by the folder's name."""
    return {}

  @pytest.fixture(scope='class')
  def done(self, settings, draws, seen):
    del draws
    publish = files.write_json

    def note(path, content, **how):
      if path.name == 'private_search.json':
        for run in (path.parent / 'private_search/runs').glob('*/result.json'):
          found = runs_lib.RunFolder(run.parent)
          _, rows, result = found.read_finished()
          seen[run.parent.name] = rows, result, found.read_config()
      return publish(path, content, **how)

    with mock.patch.object(files, 'write_json', note):
      return _compare([], *settings)  # Nothing is drawn again.

  def test_releases_the_best_of_the_same_draws(self, done, draws, folder):
    assert done.code == 0, done.err
    assert {p.name for p in folder.iterdir()} == {
      *('curves_warm_pda.png', 'curves_warm_pda.svg', 'index.html'),
      *('private_search.json', 'runs', 'table.md'),
    }
    assert {p.name for p in (folder / 'runs').iterdir()} == {'warm_0', 'pda_0'}
    for method, runs in draws.items():
      run = runs_lib.RunFolder(folder / 'runs' / f'{method}_0')
      config, _, result = run.read_finished()
      drawn = [cell['server.learning_rate'] for _, cell in runs]
      assert config.spec.server.learning_rate in drawn
      assert result['seed'] is None and result['test'] is not None

  def test_the_released_runs_are_the_best(self, done, seen, draws, folder):
    del done
    for method, runs in draws.items():
      _, rows, _ = runs_lib.RunFolder(
        folder / 'runs' / f'{method}_0'
      ).read_finished()
      # Those that were not moved yet when the record was written.
      others = [seen[name][0][-1]['loss'] for name, _ in runs if name in seen]
      assert len(others) == len(runs) - 1
      assert rows[-1]['loss'] <= min(others)

  def test_runs_share_no_seeds(self, done, seen, folder):
    del done
    assert all(result['seed'] is None for _, result, _ in seen.values())
    first = {rows[0]['loss'] for rows, _, _ in seen.values()}
    last = {rows[-1]['loss'] for rows, _, _ in seen.values()}
    assert first and len(last) == len(seen)
    assert not list(folder.rglob('secret_seeds*'))

  def test_states_the_epsilon_of_the_search(self, done, folder):
    run = runs_lib.RunFolder(folder / 'runs/pda_0')
    search = privacy.PrivateSearch(expected_runs=3)
    config = run.read_config()
    one, both = (
      privacy.round_up(privacy.search_epsilon(config.plan, search, n))
      for n in (1, 2)
    )
    page = (folder / 'index.html').read_text()
    for text in (done.out, page):
      assert f'of one method has (epsilon, delta) = ({one}, 0.0001)' in text
      assert (
        f'of all 2 methods together have (epsilon, delta) = ({both}, 0.0001)'
      ) in text
    assert f'({one}, 0.0001)' in config.private_search
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700

  def test_tells_nothing_else(self, done, draws, folder):
    texts = [done.out, done.err]
    texts += [
      path.read_text()
      for path in folder.rglob('*')
      if path.suffix in ('.json', '.html', '.md', '.tex')
    ]
    names = {name for runs in draws.values() for name, _ in runs}
    told = {n for n in names if any(n in text for text in texts)}
    assert len(told) <= 2  # Of the two runs that are released.
    for text in texts:
      assert not re.search(r'best of \d|\[\d/\d\]', text)

  def test_again_shows_the_same(self, done, settings, folder):
    written = (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns
    again = _compare([], *settings)
    assert (again.code, again.out) == (0, done.out)
    assert (folder / 'runs/pda_0/metrics.csv').stat().st_mtime_ns == written

  def test_another_search_is_refused(self, done, settings):
    del done
    other = _compare([1, 1], *settings, '--search_runs=4')
    assert other.code == 2
    assert 'holds a private search with other settings' in other.error
    assert 'search.expected_runs: 3.0 -> 4.0' in other.error


def test_no_run_is_a_release_too(tmp_path):
  words = ('--methods=warm,pda', _RATES, *_POISSON, f'--output_dir={tmp_path}')
  done = _compare([0, 1], *words)
  assert done.code == 0, done.err
  line = 'warm start: the search released no run.'
  assert line in done.out
  assert line in (tmp_path / 'index.html').read_text()
  assert 'of all 2 methods together' in done.out
  assert [p.name for p in (tmp_path / 'runs').iterdir()] == ['pda_0']


@pytest.mark.parametrize('draws, rate', [([0], '1'), ([1], '1e30')])
def test_nothing_is_left_to_compare(tmp_path, draws, rate):
  words = ('--methods=cold', f'--tune=server.learning_rate={rate}', *_POISSON)
  for _ in range(2):
    done = _compare(draws, *words, f'--output_dir={tmp_path}')
    assert done.code == 1
    assert 'cold start: the search released no run.' in done.err
    assert 'There is no run to compare.' in done.error
    assert [p.name for p in tmp_path.iterdir()] == ['private_search.json']


@pytest.mark.parametrize(
  'words, message',
  [
    (['--search_runs=1'], 'expected_runs must be in (1, inf)'),
    (['--noise_multiplier=0'], 'noise_multiplier must be above 0'),
    (['--delta=0.01'], 'delta must be at most 1/population'),
    (['--select_by=bleu'], "Found 'bleu'"),
    (
      ['--tune=warm:clip_norm=1', '--methods=pda,warm', '--set=warm:rounds=5'],
      'must have the same population, cohort, rounds',
    ),
    (['--seeds=2'], '--seeds must be 1 with --private_search'),
    (['--methods=cold,pda'], 'for every method. Found none for cold'),
    (['--tune=rounds=1,2'], '--rounds must not be given in --tune'),
    (['--tune=delta=1e-5'], '--delta must not be given in --tune'),
    (['--tune=method=pda'], '--method must not be given in --tune'),
    (['--seed=1'], '--seed must not be given'),
    (['--set=pda:seed=1'], '--seed must not be given'),
    (['--audit=run'], '--audit must not be given'),
    (['--tune=audit=run'], '--audit must not be given in --tune'),
    (['--tune=mechanism=gaussian,tree'], '--mechanism must not be given'),
    (['--print_runs'], '--print_runs must not be given'),
    (['--tune_set=rounds=3'], '--tune_set must not be given'),
  ],
)
def test_bad_searches(tmp_path, words, message):
  done = _compare(
    [1, 1],
    *(f'--output_dir={tmp_path}', '--methods=pda', '--tune=pda:clip_norm=1,2'),
    *(*_SEARCH, *words),
  )
  assert done.code == 2, done.err
  assert message in done.error
  assert not any(tmp_path.iterdir())


def test_files_cannot_give_what_is_refused(tmp_path):
  path = tmp_path / 'seed.flags'
  for line in ('--seed=1', '--audit=run'):
    path.write_text(line)
    done = _compare(
      [1],
      *(f'--output_dir={tmp_path / "out"}', '--methods=pda', _RATES),
      *(*_SEARCH, f'--flagfile={path}'),
    )
    assert done.code == 2
    assert f'{line.partition("=")[0]} must not be given with' in done.error


def test_earlier_runs_and_other_processes_are_refused(tmp_path):
  words = (f'--output_dir={tmp_path}', '--methods=pda', _RATES, *_SEARCH)
  (tmp_path / 'private_search').mkdir()
  with files.locked(tmp_path / 'private_search/.lock'):
    done = _compare([1], *words)
  assert done.code == 3
  assert 'Only one process at a time' in done.error
  (tmp_path / 'runs/pda_0').mkdir(parents=True)
  (tmp_path / 'runs/pda_0/config.json').write_text('{}')
  done = _compare([1], *words)
  assert done.code == 2
  assert 'has earlier runs' in done.error
