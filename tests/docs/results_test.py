"""Recorded runs have the settings of presets and of the best tries."""

import collections
import re

from pda_fed import privacy
import pytest

from tests.docs import pages
from tools.tables import recorded

_METHODS = ('cold', 'warm', 'pda')
# Presets, and the noise of their runs: the preset's own where it is None.
_CELLS = [
  ('cifar10', None),
  ('cifar10_best', None),
  ('cifar10_private', None),
  ('cifar10_private_best', None),
  ('emnist', None),
  ('emnist', 0.4982),
  ('emnist_best', 0.4856),
  ('emnist_private', None),
  ('emnist_private', 4.5507),
  ('emnist_private_best', 4.2357),
  ('wikitext2', None),
  ('wikitext2_best', None),
  ('wikitext2_private', None),
  ('wikitext2_private_best', None),
]
# The runs with other public text are older than the one search.
_PRESETS = sorted(
  {p for p, _ in _CELLS} | {'wikitext103', 'wikitext103_private'}
)


def _flags(preset):
  """The flags of a preset, those of files that it includes first."""
  text = (pages.ROOT / f'scripts/presets/{preset}.flags').read_text()
  found = {}
  for name, value in re.findall(r'^--(\w+)=(\S+)$', text, re.MULTILINE):
    if name == 'flagfile':
      found |= _flags(re.fullmatch(r'scripts/presets/(\w+)\.flags', value)[1])
    else:
      found[name] = value
  return found


def _flags_of_methods(preset):
  """What a preset's comment adds for cold and warm start."""
  text = (pages.ROOT / f'scripts/presets/{preset}.flags').read_text()
  text = ' '.join(re.findall(r'^# (.*)$', text, re.MULTILINE))
  added = {}
  pattern = r'(cold|warm) start (?:add )?((?:--\w+=[\w.]*\w ?)+)'
  for method, flags in re.findall(pattern, text):
    added[method] = dict(re.findall(r'--(\w+)=([\w.]*\w)', flags))
  return added


def _recorded(name, preset, method, noise, marked):
  """Rows of a CSV file of results in which the column `marked` says yes."""
  noise = float(noise or _flags(preset)['noise_multiplier'])
  return [
    row
    for row in recorded.runs(
      f'sample_level/{name}', preset=preset, method=method, **{marked: 'yes'}
    )
    if float(row['noise_multiplier']) == noise
  ]


def _runs(preset, method, noise=None):
  """The recorded runs of a table, one a seed."""
  runs = _recorded('test', preset, method, noise, marked='in_table')
  assert sorted(r['seed'] for r in runs) == ['0', '1', '2']
  return runs


@pytest.mark.parametrize('preset', _PRESETS)
@pytest.mark.parametrize('method', _METHODS)
def test_presets_are_the_settings_of_recorded_runs(preset, method):
  flags = _flags(preset) | _flags_of_methods(preset).get(method, {})
  for run in _runs(preset, method):
    assert float(run['learning_rate']) == float(flags['learning_rate'])
    assert run['decay'] == flags.get('learning_rate_decay', 'none')
    if method == 'pda':
      assert float(run['alpha_K']) == float(flags['alpha_K'])


@pytest.mark.parametrize('preset', _PRESETS)
def test_public_data_help_in_every_seed(preset):
  """The paper's order of losses, with the same seed and warm start."""
  losses = [
    [float(row['loss']) for row in _runs(preset, method)] for method in _METHODS
  ]
  for cold, warm, pda in zip(*losses, strict=True):
    assert warm < cold
    # With as much public text as private, the two are the same.
    assert pda < warm or preset.startswith('wikitext103')


@pytest.mark.parametrize('preset, noise', _CELLS)
def test_a_cell_has_one_noise_version_and_one_pretrained_model(preset, noise):
  runs = [r for m in _METHODS for r in _runs(preset, m, noise)]
  # As docs/reproduction.md says: before noised sums were rounded to a grid.
  assert {int(r['noise_version']) for r in runs} == {2}
  assert len({r['private'] for r in runs}) == 1
  models = {(r['method'] == 'cold', r['held_out_loss']) for r in runs}
  assert len(models) == 2 and (True, '') in models


@pytest.mark.parametrize('method', _METHODS)
@pytest.mark.parametrize('preset, noise', _CELLS)
def test_validation_chose_what_the_tables_show(preset, noise, method):
  tried = _recorded('search', preset, method, noise, marked='last_search')
  best = min(tried, key=lambda row: float(row['loss']))
  searched = ('learning_rate', 'decay', 'alpha_K')
  for run in _runs(preset, method, noise):
    assert [run[n] for n in searched] == [best[n] for n in searched]
  # The search went on until there was something worse on both sides.
  for name in ('learning_rate', 'alpha_K') if method == 'pda' else searched[:1]:
    values = [float(row[name]) for row in tried]
    assert min(values) < float(best[name]) < max(values)


def test_runs_of_the_residual_net_have_the_most_accurate_setting():
  search = recorded.runs('residual/search')
  for run in recorded.runs('residual/final'):
    tries = [row for row in search if row['method'] == run['method']]
    best = max(tries, key=lambda row: float(row['accuracy']))
    assert [row for row in tries if row['chosen'] == 'yes'] == [best]
    assert run['learning_rate'] == best['learning_rate']


def test_the_residual_net_keeps_its_epsilon_and_its_preset():
  flags = _flags('cifar10_residual')
  plan = privacy.PrivacyPlan(
    population=48_000,
    expected_cohort=int(flags['batch_size']),
    rounds=int(flags['epochs']) * 48_000 // int(flags['batch_size']),
    delta=float(flags['delta']),
    noise_multiplier=float(flags['noise_multiplier']),
    clip_norm=float(flags['clip_norm']),
  )
  for run in recorded.runs('residual/final'):
    assert int(run['steps']) == plan.rounds
    assert float(run['delta']) == plan.delta
    assert run['learning_rate'] == flags['learning_rate']
    is_pda = run['method'] == 'pda'
    assert run['alpha_K'] == (flags['alpha_K'] if is_pda else '')
    assert float(run['epsilon']) == pytest.approx(plan.epsilon(), rel=1e-3)


def test_every_method_of_the_benchmark_had_nine_tries():
  search = recorded.runs('benchmark/search')
  tries = collections.Counter((r['task'], r['method']) for r in search)
  assert set(tries.values()) == {9}
  final = recorded.runs('benchmark/final')
  for task, method in tries:
    of_one = [r for r in search if (r['task'], r['method']) == (task, method)]
    best = min(of_one, key=lambda r: float(r['loss']))
    assert [r for r in of_one if r['chosen'] == 'yes'] == [best]
    runs = [r for r in final if (r['task'], r['method']) == (task, method)]
    assert sorted(run['seed'] for run in runs) == ['0', '1', '2']
    assert {run['settings'] for run in runs} == {best['settings']}


def test_runs_with_one_change_have_the_best_settings():
  runs = recorded.runs('benchmark/conditions')
  search = recorded.runs('benchmark/conditions_search')
  for key in {(run['changed'], run['method']) for run in runs}:
    tries = [r for r in search if (r['changed'], r['method']) == key]
    best = min(tries, key=lambda r: float(r['loss']))['settings']
    of_one = [r for r in runs if (r['changed'], r['method']) == key]
    assert len(tries) == 6 and len(of_one) == 3
    assert {run['settings'] for run in of_one} == {best}
