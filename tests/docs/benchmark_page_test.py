"""The benchmark's tasks are those of its page, and take the flags they give."""

import json
import re
import subprocess
import sys

from pda_fed.compare import benchmark_tasks
import pytest
from scripts.lib import cli

from tests.docs import pages

_TASKS = {
  path.stem: benchmark_tasks.load(path)
  for path in (pages.ROOT / 'scripts/benchmark_tasks').glob('*.json')
}


def _rows():
  """Cells of the page's table of tasks, by task."""
  text = (pages.ROOT / 'docs/benchmark.md').read_text()
  table = text.partition('## Tasks')[2].partition('## Rules')[0]
  lines = [line for line in table.splitlines() if line.startswith('| `')]
  rows = [line.strip('| ').split(' | ') for line in lines]
  return {row[0].strip('`'): row for row in rows}


def test_tasks_are_those_of_the_page():
  assert set(_rows()) == set(_TASKS)


@pytest.mark.parametrize('name', _TASKS)
def test_a_row_has_the_privacy_of_its_task(name, monkeypatch):
  monkeypatch.chdir(pages.ROOT)
  task = _TASKS[name]
  words = cli.expanded(task.flags)
  flags = dict(word.lstrip('-').partition('=')[::2] for word in words)
  rows = _rows()
  epsilon, delta = map(float, rows[name][3].split(', '))
  assert (epsilon, delta) == (task.epsilon, float(flags['delta']))
  is_same = rows[name][4] == 'the same'
  steps = rows['cifar10_eps0.185' if is_same else name][4]
  found = [int(n) for n in re.findall(r'\d+', steps.replace(',', ''))]
  if task.binary == 'train_sample_level':
    # A step takes a twentieth of the examples.
    expected = [20 * int(flags['epochs']), int(flags['batch_size'])]
  else:
    expected = [int(flags['rounds']), int(flags['clients_per_round'])]
  assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
  'binary', sorted({task.binary for task in _TASKS.values()})
)
def test_flags_of_tasks_exist(binary):
  commands = []
  for task in _TASKS.values():
    if task.binary == binary:
      for method, axes in task.grids.items():
        first = [f'--{axis.partition(",")[0]}' for axis in axes]
        own = [f'--method={method}', *first]
        commands.append([*task.flags, *task.search_flags, *own])
  done = subprocess.run(
    [sys.executable, '-m', 'tests.docs.flag_checker'],
    input=json.dumps({'module': f'scripts.{binary}', 'commands': commands}),
    cwd=pages.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  )
  assert json.loads(done.stdout.splitlines()[-1])['errors'] == []
  assert commands
