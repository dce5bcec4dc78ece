"""What the fuzz tests share."""

import pytest

from tests.fuzz import harness


@pytest.fixture
def fuzz(request, tmp_path):
  """Runs the cases of a target, as many as the flags say."""

  def run(target, share=1.0, *, must_find=0.3):
    cases = max(1, round(share * request.config.getoption('fuzz_cases')))
    folder = tmp_path / 'fuzzed_folder'
    folder.mkdir()
    found = harness.run(
      target, folder, cases, request.config.getoption('fuzz_seed')
    )
    # A loader that finds hardly any damage, or damage that hardly damages,
    # would make a test of nothing.
    if cases >= 100:
      assert found >= must_find * cases, f'{found} of {cases} found'

  return run
