"""Everything that files show is declared, and everything declared is shown."""

import dataclasses
import io
import json
import random
import re
import shutil
import signal
import stat
import types
import warnings

import data_prep
from data_prep import sources
from data_prep import summary
import numpy as np
from pda_fed import errors
from pda_fed import privacy
from pda_fed import runs as runs_lib
from pda_fed.compare import choices
from pda_fed.compare import comparison as comparison_lib
from pda_fed.compare import jobs
from pda_fed.compare import report
from pda_fed.compare import search as search_lib
from pda_fed.runs import disclosure
from pda_fed.runs import model_files
from pda_fed.runs.callbacks import guard as guard_lib
from pda_fed.runs.callbacks import progress
from pda_fed.runs.engines import jax_federated
import pytest

from tests import fake_engine
from tests.runs import released_search
from tests.runs import runs
from tests.runs import saved_runs
from tests.runs import shown_fields
from tests.runs import tiny_users


def _of_unfinished(folder, error, end, **changes):
  config = fake_engine.make_run(**changes)
  copied = config.spec.audit.audit == 'copy'
  kind = runs.ending(end, 0 if copied else 5, only_copy=copied)
  with pytest.raises(error):
    runs.train(folder, config, kind)
  return shown_fields.of_run(folder)


@pytest.fixture(scope='module')
def unfinished(tmp_path_factory):
  """Fields of runs that ended early."""
  path = tmp_path_factory.mktemp('unfinished')
  often = {'seed': None, 'rounds_per_checkpoint': 2}
  copied = {'audit': 'copy', 'audit_canaries': 100}
  found = set().union(
    _of_unfinished(path / 'a', SystemExit, SystemExit(), **often),
    _of_unfinished(path / 'b', KeyboardInterrupt, KeyboardInterrupt, **copied),
    _of_unfinished(
      path / 'c',
      errors.DivergenceError,
      errors.DivergenceError('The model is no longer finite.'),
    ),
    _of_unfinished(path / 'd', errors.StoppedError, signal.SIGTERM),
  )
  return found | shown_fields.of_warm_starts(path / 'warm_start')


def test_of_runs_that_end_early(unfinished):
  assert shown_fields.undeclared(unfinished) == []
  assert (disclosure.FILES, 'secret_seeds.json: noise') in unfinished


@pytest.fixture(scope='module')
def stores(tmp_path_factory):
  """A store of text, from rows of which one is faulty, and one of arrays."""
  path = tmp_path_factory.mktemp('stores')
  draws = random.Random(0)
  words = [f'w{i}' for i in range(30)]
  rows = [
    {'user': f'u{i % 40}', 'text': ' '.join(draws.choices(words, k=5))}
    for i in range(800)
  ]
  (path / 'x.jsonl').write_text('\n'.join(map(json.dumps, [*rows, {}])))
  # Wide, so that a linear model has room for canaries.
  x = np.random.default_rng(0).normal(size=(400, 300))
  np.savez(path / 'x.npz', x=x, y=np.arange(400) % 3, user=np.arange(400) % 40)
  return {
    'text': saved_runs.prepare(
      sources.open_source(f'jsonl:{path}/x.jsonl'),
      path / 'text',
      12,
      vocabulary=data_prep.VocabularyConfig(size=20),
    ),
    'arrays': saved_runs.prepare(
      sources.open_npz(path / 'x.npz'), path / 'arrays', 12
    ),
  }


@pytest.fixture(scope='module')
def of_stores(stores):
  found = set()
  for store in stores.values():
    lines = summary.format_summary(store.manifest).splitlines()
    found |= shown_fields.of_store(store.path)
    found |= {(disclosure.TERMINAL, f'prepare_users: {line}') for line in lines}
  return found


def test_of_stores(of_stores):
  assert shown_fields.undeclared(of_stores) == []
  exact = ('left_out.x', 'skipped.x', 'vocabulary.unknown_share.private')
  exact += 'classes.number', 'vocabulary.size'  # Unless a flag sets them.
  for name in (*exact, 'groups.private.sentences', 'examples', 'sha256'):
    assert not disclosure.has_noise(disclosure.MANIFEST, name)
  for name in ('groups.private.users', 'vocabulary.unknown_share.public'):
    assert disclosure.has_noise(disclosure.MANIFEST, name)


@pytest.fixture(scope='module')
def search(tmp_path_factory):
  return released_search.make(tmp_path_factory.mktemp('search'))


def test_the_export_of_a_search_begins_with_its_epsilon(search, tmp_path):
  run = runs_lib.RunFolder(search / 'runs/warm_0')
  found = privacy.search_epsilon(run.read_config().plan, released_search.DRAWS)
  epsilon = privacy.round_up(found)
  model = runs_lib.load_model(run.path)
  model_files.export_model(model, 'npz', tmp_path / 'model.npz')
  about = json.loads(str(np.load(tmp_path / 'model.npz')['about']))
  assert about['privacy'] == list(model.privacy)
  first, second, *others = model.privacy
  assert re.search(r'\(epsilon, delta\) = \(([^,]+),', first)[1] == epsilon
  assert second.startswith('This run alone: ')
  assert '(epsilon, delta) = (1.25, 0.001)' in second
  assert disclosure.of_run() in others
  assert sum('Private search' in line for line in model.privacy) == 1
  assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


def _with_audit(run):
  view = {'estimate': 0.5, 'interval': [0, 1], 'one_run_bound': 0}
  view |= {'rates_bound': 0.1}
  names = ('delta', 'added_noise', 'most', 'lower_bound', 'resolution')
  report = {'canaries': 100, 'proven': 1.0, **dict.fromkeys(names, 0.1)}
  report['views'] = {'every noised mean': view}
  return dataclasses.replace(run, result={**run.result, 'audit': report})


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  """A comparison of audited runs, and a sweep."""
  path = tmp_path_factory.mktemp('compared')
  found = []
  for method in ('cold', 'warm'):
    for seed in (0, 1):
      config = fake_engine.make_run(method, rounds=3, seed=seed)
      folder, _ = runs.train(path / 'runs' / f'{method}_{seed}', config)
      found.append(_with_audit(comparison_lib.load_run(folder.path)))
  out = path / 'out'
  jobs.run_jobs(
    [jobs.Job('log', runs_lib.RunSpec(), out / 'runs/log')], out / 'logs'
  )
  shown = ['loss', 'perplexity', 'accuracy']
  compared = comparison_lib.compare(found, shown)
  tried = choices.Choice({'clip_norm': 1}, trials=3, value=4.5)
  chosen = choices.Choices('compare', 'loss', {'cold': tried, 'warm': tried})
  chosen.write(out / 'chosen.json')
  report.Report(comparison=compared, command='compare', choices=chosen).write(
    out
  )
  cells = [
    search_lib.look({'clip_norm': i}, run.path)
    for i, run in enumerate(found, 1)
  ]
  (out / 'search.csv').write_text(search_lib.as_csv(cells))
  return out


def test_of_a_comparison(page):
  found = shown_fields.of_comparison(page)
  assert shown_fields.undeclared(found) == []
  assert (disclosure.CONFIG, 'settings.plan.rounds') in found
  assert (disclosure.CONFIG, 'settings.data_hash') not in found
  assert disclosure.of_page() in (page / 'index.html').read_text()
  assert stat.S_IMODE((page / 'logs').stat().st_mode) == 0o700


def test_an_invented_column_of_a_page_is_noticed(page, tmp_path):
  table = (page / 'table.md').read_text()
  (tmp_path / 'table.md').write_text(table.replace('runs', 'users seen', 1))
  (tmp_path / 'users.png').touch()
  found = shown_fields.of_comparison(tmp_path)
  assert shown_fields.undeclared(found) == [
    (disclosure.PAGE, 'users seen'),
    (disclosure.COMPARISON, 'users.png'),
  ]


_AUDIT = {'audit': 'run', 'audit_canaries': 100}


def _on_users(store, method, **values):
  return tiny_users.make_run(store.path, method, **{'rounds': 2, **values})


def _on_digits(**values):
  spec = runs_lib.RunSpec.for_data(
    'digits',
    **{
      'method': 'adadps',
      'model': 'cnn',
      'expected_cohort': 20,
      'rounds': 2,
      # Epsilon is 10, more than 100 canaries can refute.
      'noise_multiplier': 0.3,
      'server.momentum': 0.9,
      'server.averaging': 0.9,
      'public.batch_size': 8,
      'microbatch_size': 10,
      'test_curve': True,
      'pretraining.max_epochs': 1,
      **values,
    },
  )
  return runs_lib.resolve(spec)


def _train(run, folder, opener=runs_lib.open_engine):
  """Trains, and returns the lines that are printed."""
  stream = io.StringIO()
  shown = runs_lib.Progress(stream=stream)
  runs_lib.train(run, folder, open_engine=opener, callbacks=[shown])
  return stream.getvalue().splitlines()


def _of_warnings(config):
  """What is said of clients, and of a run that does badly."""
  first = {'round': 0, 'loss': 4.0, 'weights_norm': 3.0}
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for row in (
      {'diverged_clients': 3.0, 'clients': 10},
      {'public_norm': 50.0, 'private_norm': 2.0},
      {'public_loss': 9.0, 'train_loss': 4.0},
      {'loss': 4.5},
    ):
      guard_lib.Guard(config).check([first, {**first, 'round': 3, **row}])
    with pytest.raises(errors.DivergenceError) as grown:
      guard_lib.Guard(config).check([first, {**first, 'weights_norm': 1e9}])
    metrics = {'weights_norm': 1.0, 'clients': 2.0, 'non_finite_clients': 2.0}
    engine = jax_federated.JaxEngine(config, privacy.SeedStreams(0))
    engine._shown(0, {**metrics, 'train_loss': 0.0, 'clip_norm': 1.0})

    def short_of_memory(*arguments):
      raise RuntimeError('RESOURCE_EXHAUSTED')

    engine._trainer = types.SimpleNamespace(
      run=short_of_memory, init=engine._trainer.init
    )
    with pytest.raises(RuntimeError):
      engine.run_rounds(engine.initialize(), 0, 1)
  texts = [str(grown.value), *(str(w.message) for w in caught)]
  return {(disclosure.TERMINAL, text) for text in texts}


@pytest.fixture(scope='module')
def of_engines(stores, tmp_path_factory):
  """Fields of finished runs on every engine, and of what they print."""
  path = tmp_path_factory.mktemp('runs')
  text, arrays = stores['text'], stores['arrays']
  adam = {
    'adaptive_clipping': True,
    'expected_cohort': 4,
    'noise_multiplier': 0.3,
    'model.embedding_size': 24,
    'model.lstm_size': 8,
    # Without a seed, some runs with Adam and the usual rate diverge.
    'server.optimizer': 'adam',
    'server.learning_rate': 0.001,
    'seed': None,
  }
  yogi = {'server.optimizer': 'yogi', 'server.learning_rate': 0.001}
  tree = {'sampling': 'epochs', 'mechanism': 'tree'}
  chunks = {'engine': 'jax', 'clients_per_chunk': 2}
  plain = _on_users(arrays, 'cold', **chunks)
  copied = {**_AUDIT, 'audit': 'copy'}
  lines = [
    *_train(
      _on_users(text, 'pda', engine='jax', **_AUDIT, **adam), path / 'jax'
    ),
    *_train(_on_users(arrays, 'cold', **tree), path / 'tff'),
    *_train(_on_users(arrays, 'cold', **_AUDIT, **yogi), path / 'tff_audited'),
    *_train(plain, path / 'jax_plain'),
    *_train(_on_digits(), path / 'digits'),
    *_train(_on_digits(**_AUDIT), path / 'digits_audited'),
    *_train(_on_digits(**copied), path / 'digits_copied'),
    *_train(
      fake_engine.make_run(rounds=20), path / 'long', fake_engine.Opener()
    ),
  ]
  rare = progress._describe({'diverged_clients': 2.0})
  found = shown_fields.of_lines([*lines, f'round 1/2, {rare}'])
  for name in ('jax', 'tff', 'digits'):
    for folder in path.glob(f'{name}*'):
      found |= shown_fields.of_run(folder)
  found |= shown_fields.of_warm_starts(path / 'warm_start')
  return found | _of_warnings(plain)


@pytest.mark.slow
def test_of_all_of_it(
  unfinished, of_stores, of_engines, search, page, tmp_path
):
  found = unfinished | of_stores | of_engines
  found |= shown_fields.of_comparison(page)
  found |= shown_fields.of_run(search / 'runs/warm_0')
  shutil.copy(search / 'private_search.json', tmp_path)
  found |= shown_fields.of_comparison(tmp_path)
  for kind in ('linear', 'lstm'):
    run = saved_runs.make_run(kind, tmp_path / kind)
    exported = tmp_path / f'{kind}.npz'
    model_files.export_model(runs_lib.load_model(run), 'npz', exported)
    found |= shown_fields.of_export(exported)
  assert shown_fields.undeclared(found) == []
  assert shown_fields.unmatched(found) == []
