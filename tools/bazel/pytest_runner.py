"""Runs pytest on the files it is given, the way `bazel test` expects.

The main program of every target made by `pytest_test.bzl`. Bazel starts it in
the root of the runfiles, a copy of the project that holds what the target
declares and nothing else.
"""

import os
import sys

import pytest


def main() -> int:
  """Runs pytest and returns its exit code."""
  args = ['--rootdir=.', '--config-file=pyproject.toml']
  args += ['-p', 'no:cacheprovider']  # Bazel has its own cache.
  if report := os.environ.get('XML_OUTPUT_FILE'):
    args.append(f'--junitxml={report}')
  # What `bazel test --test_filter=...` sets.
  selection = os.environ.get('TESTBRIDGE_TEST_ONLY')
  if selection:
    args += ['-k', selection]
  code = pytest.main(args + sys.argv[1:])
  if selection and code == pytest.ExitCode.NO_TESTS_COLLECTED:
    return 0  # The filter is for all files; some have nothing for it.
  return int(code)


if __name__ == '__main__':
  sys.exit(main())
