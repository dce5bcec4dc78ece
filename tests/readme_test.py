"""README.md is true: its program runs; links of all pages lead somewhere."""

import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_README = (_ROOT / 'README.md').read_text()
_DOCS = sorted((_ROOT / 'docs').glob('*.md'))


def test_library_example_runs_as_written():
  section = _README.partition('## As a library')[2]
  program = re.search(r'```python\n(.*?)```', section, re.DOTALL).group(1)
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  lines = done.stdout.splitlines()
  claimed = re.search(r'privacy.epsilon\(plan\)\)  # ([\d.]+)', program).group(
    1
  )
  assert f'{float(lines[0]):.2f}' == claimed
  assert len(lines) == 1 + 10
  assert all('alpha' in line and 'cosine' in line for line in lines[1:])


@pytest.mark.parametrize(
  'page',
  ['README.md', 'bench/README.md', *(f'docs/{p.name}' for p in _DOCS)],
)
def test_relative_links_exist(page):
  path = _ROOT / page
  links = re.findall(r'\]\((?!http)([^)#]+)', path.read_text())
  assert [link for link in links if not (path.parent / link).exists()] == []


def test_links_are_found():
  assert re.findall(r'\]\((?!http)([^)#]+)', _README)
