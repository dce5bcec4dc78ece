"""Runs the tests of what changed, without the slow ones.

    python tools/check.py          # since the last commit
    python tools/check.py main     # since another commit

The tests of pda_fed/privacy/plan.py are tests/privacy/plan_test.py and every
test file that names the module. Changed pages and results run the tests of
links, figures and tables.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
_OF_PAGES = {
  'tests/docs/links_test.py',
  'tests/docs/results_test.py',
  'tests/tools/write_tables_test.py',
}


def _git(*words: str) -> list[str]:
  return subprocess.check_output(['git', *words], cwd=ROOT, text=True).split()


def tests_for(path: str) -> set[str]:
  """Returns the test files of a changed file, relative to the root.

  Args:
    path: The changed file, relative to the root.
  """
  if path.endswith(('.md', '.csv')):
    return _OF_PAGES
  if not path.endswith('.py') or path.endswith('_test.py'):
    return {path} if path.endswith('_test.py') else set()
  package, _, stem = path.removesuffix('.py').replace('/', '.').rpartition('.')
  # A package's tests are in its folder without pda_fed.
  own = 'tests/' + re.sub(r'^pda_fed/|\.py$', '', path) + '_test.py'
  names = rf'(from {package} import {stem}|{package}\.{stem})\b'
  return {
    name
    for test in (ROOT / 'tests').rglob('*_test.py')
    if (name := test.relative_to(ROOT).as_posix()) == own
    or re.search(names, test.read_text())
  }


def main() -> int:
  """Runs the tests; returns pytest's exit code."""
  base = sys.argv[1] if sys.argv[1:] else 'HEAD'
  files = _git('diff', '--name-only', '--diff-filter=d', base)
  files += _git('ls-files', '--others', '--exclude-standard')
  tests = sorted(set().union(*map(tests_for, files)))
  print(f'{len(files)} files changed, {len(tests)} files of tests', flush=True)
  if not tests:
    return 0
  command = [sys.executable, '-m', 'pytest', '-n', 'auto', '-m', 'not slow']
  code = subprocess.call([*command, *tests], cwd=ROOT)
  return 0 if code == 5 else code  # 5: all of them are slow.


if __name__ == '__main__':
  sys.exit(main())
