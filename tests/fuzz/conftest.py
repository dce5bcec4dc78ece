"""What the fuzz tests share."""

import pytest

from tests.fuzz import harness


@pytest.fixture
def fuzz(request, tmp_path):
  """Runs the cases of a target, as many as the flags say."""

  def run(target):
    folder = tmp_path / 'fuzzed_folder'
    folder.mkdir()
    cases, seed = map(request.config.getoption, ('fuzz_cases', 'fuzz_seed'))
    harness.run(target, folder, cases, seed)

  return run
