"""Runs the tests of what changed, without the slow ones.

    python tools/check.py          # since the last commit, or of it
    python tools/check.py main     # since another commit

The tests of pda_fed/privacy/plan.py are tests/privacy/plan_test.py and every
test file that names the module. Changed pages run the tests of links, figures
and tables.
"""

from collections.abc import Iterable
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
_OF_PAGES = (
  'tests/docs/links_test.py',
  'tests/docs/results_test.py',
  'tests/tools/write_tables_test.py',
)


def _git(*words: str) -> list[str]:
  done = subprocess.run(
    ['git', *words], cwd=ROOT, capture_output=True, text=True, check=True
  )
  return done.stdout.splitlines()


def changed(base: str | None = None) -> list[str]:
  """Returns the files that differ from a commit, without removed ones.

  Args:
    base: The commit. Default: the last one, or the one before it if nothing
      has changed since.
  """
  new = _git('ls-files', '--others', '--exclude-standard')
  differ = 'diff', '--name-only', '--diff-filter=d'
  found = _git(*differ, base or 'HEAD') + new
  if not found and base is None:
    found = _git(*differ, 'HEAD~1')
  return sorted(found)


def tests_for(path: str, test_files: Iterable[pathlib.Path]) -> set[str]:
  """Returns the test files of a changed file, relative to the root.

  Args:
    path: The changed file, relative to the root.
    test_files: All test files, relative to the root.
  """
  changed_file = pathlib.PurePosixPath(path)
  if changed_file.suffix in ('.md', '.csv'):
    return set(_OF_PAGES)
  if changed_file.suffix != '.py':
    return set()
  if changed_file.parts[0] == 'tests':
    return {path} if changed_file.name.endswith('_test.py') else set()
  # A package's tests are in its folder without pda_fed, or with the name of
  # another top-level package.
  folder = changed_file.parent.parts
  folder = folder[1:] if folder[:1] == ('pda_fed',) else folder
  stem = changed_file.stem
  own = pathlib.PurePosixPath('tests', *folder, f'{stem}_test.py')
  package = '.'.join(changed_file.parent.parts)
  named = re.compile(
    rf'(from {re.escape(package)} import {stem}|{re.escape(package)}\.{stem})\b'
  )
  return {
    test.as_posix()
    for test in test_files
    if test == own or named.search((ROOT / test).read_text())
  }


def main() -> int:
  """Runs the tests; returns pytest's exit code."""
  every = [p.relative_to(ROOT) for p in (ROOT / 'tests').rglob('*_test.py')]
  files = changed(*sys.argv[1:2])
  tests = sorted(set().union(*(tests_for(path, every) for path in files)))
  print(f'{len(files)} files changed, {len(tests)} files of tests', flush=True)
  if not tests:
    return 0
  command = [sys.executable, '-m', 'pytest', '-n', 'auto', '-m', 'not slow']
  code = subprocess.call([*command, *tests], cwd=ROOT)
  return 0 if code == 5 else code  # 5: all of them are slow.


if __name__ == '__main__':
  sys.exit(main())
