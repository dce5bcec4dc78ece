"""What the tests of the runtime share."""

import pytest


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
  """Nothing of ours may be left in it."""
  monkeypatch.setenv('TMPDIR', str(tmp_path))
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  return tmp_path
