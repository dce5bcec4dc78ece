"""Tables of results are the recorded runs, and presets are their settings."""

import collections
import re

from pda_fed import privacy
import pytest

from tests.docs import pages

_PAGE = 'docs/reproduction.md'
_METHODS = {'cold start': 'cold', 'warm start': 'warm', 'PDA-DPMD': 'pda'}
# Of a table: its heading and rows from the one that begins so, and which column
# shows which preset with which noise (the preset's own where it is None).
_TABLES = [
  (
    'CIFAR-10',
    '*epsilon 3.51*',
    {2: ('cifar10', None), 3: ('cifar10_best', None)},
  ),
  (
    'CIFAR-10',
    '*epsilon 0.185*',
    {2: ('cifar10_private', None), 3: ('cifar10_private_best', None)},
  ),
  (
    'EMNIST',
    '*sigma 0.41, or epsilon 25.8*',
    {
      2: ('emnist', None),
      3: ('emnist', 0.4982),
      4: ('emnist_best', 0.4856),
    },
  ),
  (
    'EMNIST',
    '*sigma 1.89, or epsilon 0.48*',
    {
      2: ('emnist_private', None),
      3: ('emnist_private', 4.5507),
      4: ('emnist_private_best', 4.2357),
    },
  ),
  (
    'WikiText-2',
    'method',
    {
      2: ('wikitext2', None),
      3: ('wikitext2_best', None),
      5: ('wikitext2_private', None),
      6: ('wikitext2_private_best', None),
    },
  ),
  (
    'WikiText-2 with other public text',
    'method',
    {2: ('wikitext103', None), 4: ('wikitext103_private', None)},
  ),
]
_PRESETS = sorted({p for *_, cells in _TABLES for p, _ in cells.values()})
# Cells whose settings the one search chose; the last table's are older.
_OF_ONE_RULE = [c for *_, cells in _TABLES[:-1] for c in cells.values()]


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
    for row in pages.read_csv(f'sample_level/{name}')
    if (row['preset'], row['method'], row[marked]) == (preset, method, 'yes')
    and float(row['noise_multiplier']) == noise
  ]


def _runs(preset, method, noise=None):
  """The recorded runs of a table, one a seed."""
  runs = _recorded('test.csv', preset, method, noise, marked='in_table')
  assert sorted(r['seed'] for r in runs) == ['0', '1', '2']
  return runs


@pytest.mark.parametrize('heading, first, cells', _TABLES)
@pytest.mark.parametrize('method', _METHODS)
def test_tables_are_the_recorded_runs(heading, first, cells, method):
  row = pages.table(_PAGE, heading, first)[method]
  for column, (preset, noise) in cells.items():
    runs = _runs(preset, _METHODS[method], noise)
    if preset.startswith('wikitext'):
      expected = pages.mean_of(runs, 'loss', 4, with_deviation=False)
    else:
      accuracy = pages.mean_of(runs, 'accuracy', 2, times=100)
      expected = f'{accuracy} %, {pages.mean_of(runs, "loss", 3)}'
    assert row[column] == expected, preset


@pytest.mark.parametrize(
  'begin, preset',
  [
    ("| 3.51 | the paper's |", 'cifar10'),
    ('| 3.51 | with augmentation |', 'cifar10_best'),
    ("| 0.185 | the paper's |", 'cifar10_private'),
    ('| 0.185 | with augmentation |', 'cifar10_private_best'),
  ],
)
def test_the_readmes_table_is_the_recorded_runs(begin, preset):
  shown = []
  for method in _METHODS.values():
    runs = _runs(preset, method)
    accuracy = pages.mean_of(
      runs, 'accuracy', 2, with_deviation=False, times=100
    )
    loss = pages.mean_of(runs, 'loss', 3, with_deviation=False)
    shown.append(f'{accuracy} %, {loss}')
  text = (pages.ROOT / 'README.md').read_text()
  assert f'{begin} {" | ".join(shown)} |' in text


@pytest.mark.parametrize('preset', _PRESETS)
@pytest.mark.parametrize('method', _METHODS.values())
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
    [float(row['loss']) for row in _runs(preset, method)]
    for method in ('cold', 'warm', 'pda')
  ]
  for cold, warm, pda in zip(*losses, strict=True):
    assert warm < cold
    # With as much public text as private, the two are the same.
    assert pda < warm or preset.startswith('wikitext103')


@pytest.mark.parametrize('preset, noise', _OF_ONE_RULE)
def test_a_cell_has_one_noise_version_and_one_pretrained_model(preset, noise):
  runs = [r for m in ('cold', 'warm', 'pda') for r in _runs(preset, m, noise)]
  # As docs/reproduction.md says: before noised sums were rounded to a grid.
  assert {int(r['noise_version']) for r in runs} == {2}
  assert len({r['private'] for r in runs}) == 1
  models = {(r['method'] == 'cold', r['held_out_loss']) for r in runs}
  assert len(models) == 2 and (True, '') in models


@pytest.mark.parametrize('method', _METHODS.values())
@pytest.mark.parametrize('preset, noise', _OF_ONE_RULE)
def test_validation_chose_what_the_tables_show(preset, noise, method):
  tried = _recorded('search.csv', preset, method, noise, marked='last_search')
  best = min(tried, key=lambda row: float(row['loss']))
  searched = ('learning_rate', 'decay', 'alpha_K')
  for run in _runs(preset, method, noise):
    assert [run[n] for n in searched] == [best[n] for n in searched]
  # The search went on until there was something worse on both sides.
  for name in ('learning_rate', 'alpha_K') if method == 'pda' else searched[:1]:
    values = [float(row[name]) for row in tried]
    assert min(values) < float(best[name]) < max(values)


def _of_residual_net(name):
  return pages.read_csv(f'residual/{name}.csv')


def test_the_table_of_the_residual_net_is_the_recorded_runs():
  table = pages.table(_PAGE, 'CIFAR-10 with a residual net', 'method')
  final, search = _of_residual_net('final'), _of_residual_net('search')
  for title, method in (('warm start', 'warm'), ('PDA-DPMD, K = 400', 'pda')):
    runs = [run for run in final if run['method'] == method]
    assert len(runs) == len({run['seed'] for run in runs})
    with_deviation = len(runs) > 1
    (epsilon,) = {run['epsilon'] for run in runs}
    tries = [run for run in search if run['method'] == method]
    accuracy = pages.mean_of(runs, 'accuracy', 2, with_deviation, times=100)
    assert table[title][1:] == [
      f'{accuracy} %',
      pages.mean_of(runs, 'loss', 3, with_deviation),
      f'{float(epsilon):.3f}',
      str(len(runs)),
      str(len(tries)),
    ]
    best = max(tries, key=lambda run: float(run['accuracy']))
    assert [run for run in tries if run['chosen'] == 'yes'] == [best]
    assert {run['learning_rate'] for run in runs} == {best['learning_rate']}
  alone = {(r['warm_start_accuracy'], r['warm_start_loss']) for r in final}
  ((accuracy, loss),) = alone
  assert table['public data alone'][1:3] == [
    f'{100 * float(accuracy):.2f} %',
    f'{float(loss):.3f}',
  ]


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
  for run in _of_residual_net('final'):
    assert int(run['steps']) == plan.rounds
    assert float(run['delta']) == plan.delta
    assert run['learning_rate'] == flags['learning_rate']
    is_pda = run['method'] == 'pda'
    assert run['alpha_K'] == (flags['alpha_K'] if is_pda else '')
    assert float(run['epsilon']) == pytest.approx(
      privacy.epsilon(plan), rel=1e-3
    )


def test_the_front_page_has_the_residual_nets_mean():
  runs = [r for r in _of_residual_net('final') if r['method'] == 'warm']
  mean = pages.mean_of(runs, 'accuracy', 1, with_deviation=False, times=100)
  text = pages.on_one_line('README.md')
  assert f'public images reaches [{mean} %]' in text
  assert min(float(r['accuracy']) for r in runs) > 0.751


def test_every_method_of_the_benchmark_had_nine_tries():
  search = pages.read_csv('benchmark/search.csv')
  tries = collections.Counter((r['task'], r['method']) for r in search)
  assert set(tries.values()) == {9}
  final = pages.read_csv('benchmark/final.csv')
  for task, method in tries:
    of_one = [r for r in search if (r['task'], r['method']) == (task, method)]
    best = min(of_one, key=lambda r: float(r['loss']))
    assert [r for r in of_one if r['chosen'] == 'yes'] == [best]
    runs = [r for r in final if (r['task'], r['method']) == (task, method)]
    assert sorted(run['seed'] for run in runs) == ['0', '1', '2']
    assert {run['settings'] for run in runs} == {best['settings']}


def test_runs_with_one_change_have_the_best_settings():
  runs = pages.read_csv('benchmark/conditions.csv')
  search = pages.read_csv('benchmark/conditions_search.csv')
  for key in {(run['changed'], run['method']) for run in runs}:
    tries = [r for r in search if (r['changed'], r['method']) == key]
    best = min(tries, key=lambda r: float(r['loss']))['settings']
    of_one = [r for r in runs if (r['changed'], r['method']) == key]
    assert len(tries) == 6 and len(of_one) == 3
    assert {run['settings'] for run in of_one} == {best}
