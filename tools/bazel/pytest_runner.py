"""Runs pytest on the given files, as `bazel test` expects.

This is the main program of every target of `pytest_test.bzl`. Bazel starts it
in the root of the runfiles, a copy of the project with only the files that the
target declares.
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
  # Set by `bazel test --test_filter=...`.
  selection = os.environ.get('TESTBRIDGE_TEST_ONLY')
  if selection:
    args += ['-k', selection]
  code = pytest.main(args + sys.argv[1:])
  if selection and code == pytest.ExitCode.NO_TESTS_COLLECTED:
    return 0  # The filter may match no test of this file.
  return int(code)


if __name__ == '__main__':
  sys.exit(main())
