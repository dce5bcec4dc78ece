"""What the tests of programs share."""

import sys

from pda_fed.methods import base
import pytest


@pytest.fixture
def stranger(tmp_path, monkeypatch):
  """The name of a method's module, whose import leaves a file `ran`."""
  name = f'method_of_{tmp_path.name.replace("-", "_")}'
  (tmp_path / f'{name}.py').write_text(
    'import pathlib\n'
    'from pda_fed import methods\n'
    f'pathlib.Path({str(tmp_path / "ran")!r}).touch()\n'
    'class Own(methods.Method):\n'
    f'  name = {name!r}\n'
    "  title = 'Own'\n"
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  yield name
  sys.modules.pop(name, None)
  base.REGISTRY.pop(name, None)
