"""The text around Table 1 has the recorded curves."""

import functools
import math
import statistics

from pda_fed import schedules
import pytest

from bench import table1
from tests.docs import pages

_PAGE = 'docs/reproduction.md'
_recorded = functools.partial(pages.recorded, 'table1')


def _curves(
  column,
  data,
  i='',
  public_update='local_training',
  rate=None,
  pretraining=None,
):
  """Values of curves by round and seed.

  Args:
    column: The column.
    data: The data set.
    i: The schedule's i; '' for warm start.
    public_update: Chooses the runs of PDA-DPMD, or warm start from the
      pre-trained models of these runs.
    rate: The server learning rate; by default 2 on blogs, 1 on Stack Exchange.
    pretraining: The number of the pre-training, if it is another one.
  """
  wanted = {'data': data, 'method': 'pda' if i else 'warm', 'alpha_i': i}
  rate = rate or {'blogs': '2', 'stackexchange': '1'}[data]
  starts = dict.fromkeys('012', '3' if public_update == 'gradient' else '1')
  if rate == '3':
    runs = _recorded('final', data=data, method='pda')
    starts = {run['seed']: run['pretraining'] for run in runs}
  if pretraining:
    starts = dict.fromkeys('012', pretraining)
  if i:
    wanted['public_update'] = public_update
  values = {}
  for row in _recorded('curves', server_learning_rate=rate, **wanted):
    if row[column] and row['pretraining'] == starts[row['seed']]:
      by_seed = values.setdefault(int(row['round']), {})
      by_seed[row['seed']] = float(row[column])
  return values


def _ahead(
  data,
  round_num,
  i='8',
  public_update='local_training',
  rate=None,
  pretraining=None,
):
  """Perplexity on validation users, PDA-DPMD minus warm start, by seed."""
  start = public_update, rate, pretraining
  pda = _curves('loss', data, i, *start)[round_num]
  warm = _curves('loss', data, '', *start)[round_num]
  return [math.exp(loss) - math.exp(warm[seed]) for seed, loss in pda.items()]


def test_the_page_says_when_perplexity_falls_behind():
  text = pages.on_one_line(_PAGE)
  alphas = schedules.for_stackoverflow(8, 1600).values(1600)
  for round_num in (1000, 1600):
    found = _ahead('stackexchange', round_num)
    weight = f'{1 - alphas[round_num - 1]:.2f}'
    bounds = f'between {min(found):.2f} and {max(found):.2f}'
    shown = f'{bounds} at round {round_num:,} (public weight {weight})'
    assert len(found) == 3 and shown in text
  benchmark = pages.on_one_line('docs/benchmark.md')
  shown = f"ends {min(found):.2f} to {max(found):.2f} above warm start's on"
  assert shown in benchmark


def test_the_pages_say_how_far_public_gradients_are_ahead():
  gains = {
    r: _ahead('stackexchange', r, public_update='gradient')
    for r in range(300, 1700, 100)
  }
  assert all(len(gain) == 3 and max(gain) < 0 for gain in gains.values())
  bounds = f'{-max(gains[1600]):.2f} to {-min(gains[1600]):.2f}'
  text = pages.on_one_line(_PAGE)
  assert f'from round 300 on, and by {bounds} at round 1,600.' in text
  shown = f'which is a shorter update, it ends {bounds} below.'
  assert shown in pages.on_one_line('docs/benchmark.md')


def test_the_pages_say_how_the_gain_on_blogs_grows():
  def shown(round_num, rate):
    found = _ahead('blogs', round_num, rate=rate)
    assert len(found) == 3
    return f'{-max(found):.2f} to {-min(found):.2f}'

  benchmark = pages.on_one_line('docs/benchmark.md')
  first, last = (shown(r, '3') for r in (800, 1600))
  assert (
    f"{first} below warm start's at round 800, and {last} below at round 1,600."
    f' At rate 2 it ends {shown(1600, "2")} below.'
  ) in benchmark
  assert 'Of server rates 2 and 3, both methods are better with 3.' in benchmark
  for i in ('', '8'):
    rate_2, rate_3 = (_curves('loss', 'blogs', i, rate=r)[1600] for r in '23')
    assert all(loss < rate_2[seed] for seed, loss in rate_3.items())


def test_the_page_says_whose_lead_grows_at_the_end():
  before, last = (_ahead('blogs', r, rate='3') for r in (1500, 1600))
  grows = [a < b for a, b in zip(last, before, strict=True)]
  assert grows == [True, True, False]
  shown = 'At rate 3 it still grows then, except with seed 2.'
  assert shown in pages.on_one_line(_PAGE)


def test_the_page_has_the_leads_of_both_runs_with_seed_2():
  wanted = {'data': 'blogs', 'server_learning_rate': '3', 'seed': '2'}
  leads = []
  for start in '56':
    pda, warm = (
      {
        int(row['round']): float(row['loss'])
        for row in _recorded(
          'curves', method=method, pretraining=start, **wanted
        )
      }
      for method in ('pda', 'warm')
    )
    assert max(pda) == (1400 if start == '5' else 1600)
    leads.append(f'{math.exp(warm[1400]) - math.exp(pda[1400]):.2f}')
  assert len(set(leads)) == 1
  wanted = f'users at round 1,400, PDA-DPMD leads by {leads[0]} in both.'
  assert wanted in pages.on_one_line(_PAGE)


def test_seeds_do_not_show_whether_diverging_public_users_matter():
  losses = _curves('public_loss', 'stackexchange', '8')
  seeds = ('0', '1', '2')
  largest = [max(of[seed] for of in losses.values()) for seed in seeds]
  last = [losses[1600][seed] for seed in seeds]
  lost = _ahead('stackexchange', 1600)
  assert largest.index(max(largest)) == lost.index(min(lost)) == 2
  assert last.index(max(last)) == lost.index(max(lost)) == 0
  early = max(losses, key=lambda r: losses[r]['2'])
  assert 1 - schedules.for_stackoverflow(8, 1600).values(1600)[early] < 0.01


# Rows of the table of cosines: the data, how the public update is computed, the
# server learning rate, i, the number of seeds that finished.
_COSINES = [
  ('blogs', 'local_training', '3', '8', 3),
  ('blogs', 'local_training', '2', '8', 3),
  ('blogs', 'local_training', '2', '5', 1),
  ('blogs', 'gradient', '2', '8', 2),
  ('stackexchange', 'local_training', '1', '8', 3),
  ('stackexchange', 'gradient', '1', '8', 3),
]


@pytest.mark.parametrize('data, public_update, rate, i, num_seeds', _COSINES)
def test_the_page_has_the_cosines(data, public_update, rate, i, num_seeds):
  # Public gradients on blogs and their warm start have another start.
  is_other = (data, public_update) == ('blogs', 'gradient')
  start = {'pretraining': '4'} if is_other else {}
  losses = _curves('loss', data, i, public_update, rate, **start)
  last = max(losses)
  seeds = set(losses[last])
  assert len(seeds) == num_seeds
  cosines = {
    r: statistics.mean(value for seed, value in of.items() if seed in seeds)
    for r, of in _curves(
      'cosine', data, i, public_update, rate, **start
    ).items()
  }
  ahead = _ahead(data, last, i, public_update, rate, **start)
  (sign,) = {difference < 0 for difference in ahead}
  cells = [
    {'blogs': 'blogs', 'stackexchange': 'Stack Exchange'}[data],
    {'local_training': 'local training', 'gradient': 'gradients'}[
      public_update
    ],
    rate,
    i,
    str(num_seeds),
    f'{cosines[100]:.4f}',
    f'{cosines[last]:.4f}',
    f'{max(r for r, cosine in cosines.items() if cosine > 0):,}',
    'ahead' if sign else 'behind',
  ]
  assert f'| {" | ".join(cells)} |' in (pages.ROOT / _PAGE).read_text()


def test_the_page_says_how_far_noise_moves_a_cosine():
  # The standard deviation is 1 / sqrt(dimension), for each of 100 rounds.
  three, one = (1.96 / math.sqrt(4_050_748 * 100 * seeds) for seeds in (3, 1))
  assert (
    f'noise alone stays within {three:.5f} of 0 in nineteen of twenty cases'
    f' with three seeds ({one:.5f} with one).'
  ) in pages.on_one_line(_PAGE)


def test_the_page_says_when_the_loss_is_above_warm_starts():
  text = pages.on_one_line(_PAGE)
  rounds = range(0, 1700, 100)
  above = [r for r in rounds if max(_ahead('blogs', r)) >= 0]
  assert (
    "the loss is below warm start's with every seed from round"
    f' {max(above) + 100} on; the lead shrinks in the last 100 rounds.'
  ) in text
  last, before = (_ahead('blogs', r) for r in (1600, 1500))
  assert all(a > b for a, b in zip(last, before, strict=True))
  seed_0 = {r: _ahead('blogs', r, i='5')[0] for r in rounds[:15]}
  below = [r for r, difference in seed_0.items() if difference < 0]
  assert f"above warm start's from round {max(below) + 100:,} on." in text


def test_the_page_has_the_losses_on_public_users():
  losses = _curves('public_loss', 'stackexchange', '8')
  values = [value for of in losses.values() for value in of.values()]
  expected = f'varies between {min(values):.1f} and {max(values):.1f}.'
  assert expected in pages.on_one_line(_PAGE)


def _loss_at_the_end(run):
  """The loss after round 1,600 on the curve of a run."""
  wanted = {name: run[name] for name in table1.SETTINGS}
  (point,) = _recorded('curves', round='1600', **wanted)
  return point['loss']


def test_runs_with_the_same_pretraining_start_from_the_same_model():
  starts = {}
  for point in _recorded('curves', round='0'):
    if point['pretraining']:
      key = point['data'], point['seed'], point['pretraining']
      starts.setdefault(key, []).append(float(point['loss']))
  assert len({losses[0] for losses in starts.values()}) == len(starts)
  for losses in starts.values():
    # The sums of an evaluation on a GPU have no fixed order.
    assert max(losses) - min(losses) < 2e-5


def test_curves_of_table_1_end_where_its_runs_end():
  for run in _recorded('search', rounds='1600'):
    assert _loss_at_the_end(run) == run['loss']
  for run in _recorded('final') + _recorded('other_runs'):
    perplexity = math.exp(float(run['loss']))
    assert perplexity == pytest.approx(float(run['perplexity']), rel=1e-6)
    if run['method'] != 'public':
      assert _loss_at_the_end(run) == run['validation_loss']
