"""The text around Table 1 has the recorded results."""

import functools
import math
import statistics

from pda_fed import privacy
from pda_fed import schedules
from pda_fed.analysis import statistics as statistics_lib
import pytest

from tests.docs import pages

_PAGE = 'docs/reproduction.md'
_recorded = functools.partial(pages.recorded, 'table1')
_HEADING = 'Next-word prediction with user-level privacy (Table 1)'
_METHODS = {'cold start': 'cold', 'warm start': 'warm', 'PDA-DPMD': 'pda'}


def _by_seed(file, data, metric, **wanted):
  """Values of runs by seed and pre-trained model."""
  return {
    (run['seed'], run['pretraining']): float(run[metric])
    for run in _recorded(file, data=data, **wanted)
  }


def _differences(data, metric, public_update='local_training', **wanted):
  """PDA-DPMD minus warm start on test users, with the interval, as shown.

  Both have i = 8 and start from the same models.

  Args:
    data: The data set.
    metric: The metric.
    public_update: How PDA-DPMD's public update is computed.
    **wanted: Settings of both that are not those of the table.
  """
  is_shown = data == 'blogs' or public_update == 'gradient'
  file = 'final' if is_shown and not wanted else 'other_runs'
  pda = _by_seed(file, data, metric, public_update=public_update, **wanted)
  warm = _by_seed(file, data, metric, method='warm', **wanted)
  assert len(pda) == 3 and set(pda) <= set(warm)
  found = statistics_lib.difference(pda, warm)
  times = 1 if metric == 'perplexity' else 100
  return [times * value for value in (found.mean, found.low, found.high)]


def _percent_of_perplexity(data):
  warm = _by_seed('final', data, 'perplexity', method='warm')
  mean = _differences(data, 'perplexity')[0]
  return 100 * mean / statistics.mean(warm.values())


def test_the_page_has_the_verdicts_of_table_1():
  text = pages.on_one_line(_PAGE)
  # Perplexity is lower: the signs change.
  mean, low, high = _differences('blogs', 'perplexity')
  percent = -_percent_of_perplexity('blogs')
  assert high < 0
  of_paper = pages.table(_PAGE, _HEADING, '*paper, StackOverflow*')
  (warm, accuracy), (pda, higher) = (
    (float(cell.removesuffix(' %')) for cell in of_paper[name][4:6])
    for name in ('warm start', 'PDA-DPMD')
  )
  percent_of_paper = 100 * (warm - pda) / warm
  assert (
    'On blogs, PDA-DPMD is clearly better in all three metrics.** Its'
    f' perplexity is lower by {-mean:.2f} ({-high:.2f} to {-low:.2f}), or'
    f' {percent:.1f} % (paper: {percent_of_paper:.1f} %).'
  ) in text
  shown = f'{percent_of_paper:.1f} % in the paper on StackOverflow'
  assert shown in pages.on_one_line('README.md')
  assert f'on blogs, with {percent:.1f} % lower perplexity than' in text
  mean, low, high = _differences('blogs', 'accuracy')
  assert low > 0
  shown = (
    f'is higher by {mean:.2f} points over known words ({low:.2f} to {high:.2f};'
    f' paper: {higher - accuracy:.2f})'
  )
  mean, low, high = _differences('blogs', 'accuracy_with_oov')
  assert low > 0
  assert (
    f'{shown} and by {mean:.2f} points over all tokens ({low:.2f} to'
    f' {high:.2f}).'
  ) in text
  mean, low, high = _differences('stackexchange', 'accuracy')
  assert low > 0
  assert (
    'With local training and i = 8 on Stack Exchange, the metrics disagree.**'
    f' Its accuracy is clearly better, by {mean:.2f} points ({low:.2f} to'
    f' {high:.2f})'
  ) in text
  mean, low, high = _differences('stackexchange', 'perplexity')
  assert low > 0
  assert (
    f'its perplexity is clearly worse, by {mean:.2f} ({low:.2f} to {high:.2f};'
  ) in text
  mean, low, high = _differences('stackexchange', 'accuracy_with_oov')
  assert low < 0 < high
  shown = f'no clear winner ({mean:.2f} points, {low:.2f} to {high:.2f}).'
  assert shown in text


def test_the_page_has_the_verdict_of_server_rate_2_on_blogs():
  rate_2 = {'pretraining': '1'}
  mean, low, high = _differences('blogs', 'perplexity', **rate_2)
  assert high < 0
  shown = f'is lower by {-mean:.2f} ({-high:.2f} to {-low:.2f}), its accuracy'
  mean, low, high = _differences('blogs', 'accuracy', **rate_2)
  assert low > 0
  shown += f' higher by {mean:.2f} points ({low:.2f} to {high:.2f};'
  text = pages.on_one_line(_PAGE)
  assert shown in text
  mean, low, high = _differences('blogs', 'accuracy_with_oov', **rate_2)
  assert low < 0 < high
  shown = f'no clear winner ({mean:.2f} points, {low:.2f} to {high:.2f}).'
  assert shown in text


def test_the_page_has_the_verdict_of_public_gradients():
  text = pages.on_one_line(_PAGE)
  mean, low, high = _differences('stackexchange', 'accuracy', 'gradient')
  assert low > 0
  shown = f'is clearly better, by {mean:.2f} points ({low:.2f} to {high:.2f}),'
  mean, low, high = _differences(
    'stackexchange', 'accuracy_with_oov', 'gradient'
  )
  assert low > 0
  shown += f' and by {mean:.2f} over all tokens ({low:.2f} to {high:.2f}).'
  assert f'it is better with every seed.** Its accuracy {shown}' in text
  mean, low, high = _differences('stackexchange', 'perplexity', 'gradient')
  assert low < 0 < high
  assert (
    f'Its perplexity is lower by {-mean:.2f}; with three seeds this is not'
    f' clear ({-high:.3f} to {-low:.3f}).'
  ) in text
  for metric, sign in (('perplexity', -1), ('accuracy', 1)):
    pda = _by_seed('final', 'stackexchange', metric, public_update='gradient')
    warm = _by_seed('final', 'stackexchange', metric, method='warm')
    assert all(sign * (pda[seed] - warm[seed]) > 0 for seed in warm)


def test_the_page_has_public_gradients_on_blogs():
  shown = []
  of_blogs = functools.partial(_by_seed, 'other_runs', 'blogs', 'perplexity')
  seeds = []
  for public_update, start in (('gradient', '4'), ('local_training', '1')):
    pda = of_blogs(public_update=public_update, pretraining=start)
    warm = of_blogs(method='warm', pretraining=start)
    assert list(pda) == list(warm)
    seeds.append([seed for seed, _ in pda])
    gains = [f'{warm[seed] - pda[seed]:.2f}' for seed in warm]
    shown.append(' and '.join([', '.join(gains[:-1]), gains[-1]]))
  assert seeds == [['0', '1'], ['0', '1', '2']]
  assert (
    f'test perplexity is {shown[0]} below that of warm start from the same'
    ' models (seeds 0 and 1); with local training, from other models, it is'
    f' {shown[1]} below (seeds 0 to 2).'
  ) in pages.on_one_line(_PAGE)


def _on_stackexchange(file, metric='perplexity', **wanted):
  runs = _recorded(file, data='stackexchange', **wanted)
  return {run['seed']: float(run[metric]) for run in runs}


def test_the_table_lies_between_the_repeats_of_warm_start():
  repeats = [('other_runs', {'method': 'warm'}), ('final', {'method': 'warm'})]
  i_16 = 'final', {'public_update': 'local_training'}
  low, between, high = (
    statistics.mean(_on_stackexchange(file, **wanted).values())
    for file, wanted in (repeats[0], i_16, repeats[1])
  )
  assert low < between < high
  above, more = (
    100
    * (
      statistics.mean(
        _on_stackexchange(i_16[0], 'accuracy', **i_16[1]).values()
      )
      - statistics.mean(_on_stackexchange(file, 'accuracy', **wanted).values())
    )
    for file, wanted in repeats
  )
  weights = (
    1 - schedules.for_stackoverflow(i, 1600).values(1600) for i in (8, 16)
  )
  small, large = sorted(values.mean() for values in weights)
  assert small / large == pytest.approx(0.25, abs=0.01)
  assert (
    'The public weight is a quarter of that with i = 8. The perplexity,'
    f" {between:.2f}, lies between those of warm start's two repeats,"
    f' {low:.2f} and {high:.2f}. The accuracy is {above:.2f} and {more:.2f}'
    ' points above theirs.'
  ) in pages.on_one_line(_PAGE)


def test_the_readme_has_the_verdicts_of_table_1():
  percent = -_percent_of_perplexity('blogs')
  shown = f'perplexity is {percent:.1f} % lower on blogs ('
  assert shown in pages.on_one_line('README.md')
  for public_update in ('local_training', 'gradient'):
    points = _differences('stackexchange', 'accuracy', public_update)[0]
    assert (
      f'On Stack Exchange, accuracy over known words is at most about'
      f' {points:.1f} points higher, and perplexity is worse or not clearly'
      ' different.'
    ) in pages.on_one_line('README.md')
    shown = f"with i = 8, PDA-DPMD's accuracy is {points:.1f} points above"
    assert shown in pages.on_one_line(_PAGE)


def test_the_page_says_what_repeated_pretraining_changes():
  shown = []
  for method in ('public', 'warm'):
    before = _on_stackexchange('other_runs', method=method)
    after = _on_stackexchange('final', method=method)
    first, second, third = (
      f'{after[seed] - before[seed]:.2f}' for seed in ('0', '1', '2')
    )
    shown.append(f'by {first}, {second} and {third}')
  assert (
    f'The perplexity of public data alone changed {shown[0]}, that of warm'
    f' start {shown[1]}.'
  ) in pages.on_one_line(_PAGE)


def test_the_pages_say_what_one_more_epoch_of_pretraining_gained():
  wanted = {'data': 'blogs', 'seed': '2'}
  (sixth,) = _recorded('other_runs', method='warm', pretraining='7', **wanted)
  (alone,) = _recorded('other_runs', method='public', pretraining='7', **wanted)
  in_table = [
    _recorded('final', method=method, **wanted)[0]
    for method in ('warm', 'pda', 'public')
  ]
  of_sixth, *of_fifth, _ = (
    f'{100 * float(run["accuracy"]):.2f}' for run in (sixth, *in_table)
  )
  sixth, sixth_alone = (float(run['perplexity']) for run in (sixth, alone))
  fifth, pda, fifth_alone = (float(run['perplexity']) for run in in_table)
  assert sixth < pda < fifth and sixth_alone > fifth_alone
  text = pages.on_one_line(_PAGE)
  assert (
    f'From the sixth, warm start has a test perplexity of {sixth:.2f}; from the'
    f' fifth, warm start has {fifth:.2f} and PDA-DPMD {pda:.2f}.'
  ) in text
  assert (
    f'does not follow: {of_sixth} % from the sixth, {" and ".join(of_fifth)} %'
    ' from the fifth.'
  ) in text
  assert (
    f'on test users the sixth has a perplexity of {sixth_alone:.2f}, the fifth'
    f' {fifth_alone:.2f}.'
  ) in text
  percent = 100 * (fifth - sixth) / fifth
  shown = f"a later epoch lowered warm start's perplexity by {percent:.1f} %."
  assert shown in pages.on_one_line('README.md')


def test_the_page_says_how_little_warm_starts_rates_differ():
  by_rate = [
    _recorded('curves', round='1600', data='blogs', method='warm', **rate)
    for rate in (
      {'server_learning_rate': '2', 'pretraining': '1'},
      {'server_learning_rate': '3'},
    )
  ]
  rate_2, rate_3 = (
    {
      seed: [float(row['loss']) for row in rows if row['seed'] == seed]
      for seed in '012'
    }
    for rows in by_rate
  )
  assert all(max(rate_3[seed]) < min(rate_2[seed]) for seed in '012')
  shown = f'2 and 3 differ by only {rate_2["0"][0] - rate_3["0"][0]:.4f}.'
  assert shown in pages.on_one_line(_PAGE)


def test_cold_start_is_worse_with_every_seed():
  shown = (
    'On Stack Exchange it is even worse than public data alone, with every'
  )
  assert shown in pages.on_one_line(_PAGE)
  for run in _recorded('final', method='cold'):
    wanted = {'data': run['data'], 'seed': run['seed']}
    for method in ('warm', 'pda'):
      for other in _recorded('final', method=method, **wanted):
        assert float(other['perplexity']) < float(run['perplexity'])
        assert float(other['accuracy']) > float(run['accuracy'])
    if run['data'] == 'stackexchange':
      (alone,) = _recorded('final', method='public', **wanted)
      assert float(run['perplexity']) > float(alone['perplexity'])
      for metric in ('accuracy', 'accuracy_with_oov'):
        assert float(run[metric]) < float(alone[metric])


def test_the_page_says_how_many_clients_diverge():
  shown = []
  for data, digits in (('blogs', 1), ('stackexchange', 2)):
    runs = [
      run
      for method in ('warm', 'pda')
      for run in _recorded('final', data=data, method=method)
    ]
    assert len(runs) == (6 if data == 'blogs' else 9)
    mean = statistics.mean(float(run['diverged_clients']) for run in runs)
    shown.append(f'{mean:.{digits}f}')
  text = pages.on_one_line('docs/benchmark.md')
  assert (
    f'in a round of about 100 clients, {shown[0]} diverge on blogs and'
    f' {shown[1]} on Stack Exchange.'
  ) in text


@pytest.mark.parametrize(
  'title, population', [('blogs', 8067), ('Stack Exchange', 18749)]
)
def test_epsilon_of_table_1(title, population):
  plan = privacy.PrivacyPlan(
    population=population,
    expected_cohort=100,
    rounds=1600,
    delta=1e-6,
    noise_multiplier=0.4,
    clip_norm=0.3,
  )
  epsilon = privacy.epsilon(plan)
  data = title.lower().replace(' ', '')
  for method in _METHODS.values():
    for run in _recorded('final', data=data, method=method):
      assert float(run['epsilon']) == pytest.approx(epsilon, rel=1e-4)
  rounded_up = math.ceil(100 * epsilon) / 100
  assert f'{rounded_up:.2f} on {title}' in pages.on_one_line(_PAGE)
