"""Modules that files name: imported only if they are trusted."""

import sys

from pda_fed import errors
from pda_fed.common import trust
import pytest


@pytest.fixture(name='module')
def fixture_module(tmp_path, monkeypatch):
  """Name of a module whose import leaves a file behind, and that file."""
  (tmp_path / 'trust_of_test.py').write_text(
    'import pathlib\npathlib.Path(__file__).with_suffix(".ran").touch()\n'
  )
  monkeypatch.syspath_prepend(tmp_path)
  yield 'trust_of_test', tmp_path / 'trust_of_test.ran'
  sys.modules.pop('trust_of_test', None)


def test_a_module_runs_only_if_it_is_trusted(module):
  name, ran = module
  with pytest.raises(errors.UntrustedCodeError) as error:
    trust.import_named(name, 'a.json', False)
  assert str(error.value).startswith(f'a.json names the Python module {name!r}')
  assert '\n' not in str(error.value)
  assert error.value.exit_code == 2
  assert not ran.exists()
  found = trust.import_named(name, 'a.json', True)
  assert found.__name__ == name and ran.exists()
  # What has run already is returned.
  assert trust.import_named(name, 'a.json', False) is found


@pytest.mark.parametrize(
  'name', ['pda_fed.methods.dope', 'pda_fed.runs.records']
)
def test_our_modules_need_no_trust(name):
  assert trust.import_named(name, 'a.json', False).__name__ == name
  trust.check(name, 'a.json', False)


@pytest.mark.parametrize(
  'name', ['pda_fed', 'pda_federated.x', 'my.pda_fed.x', 'pda_fed..x']
)
def test_names_like_ours_are_not_ours(name):
  with pytest.raises(errors.UntrustedCodeError, match=repr(name)):
    trust.check(name, 'a.json', False)


@pytest.mark.parametrize(
  'name', ['', '.x', 'pda_fed..x', 'pda_fed.', 'a-b', '../a', 'a b', 'a,b']
)
@pytest.mark.parametrize('trust_code', [False, True])
def test_what_is_no_name_is_never_imported(name, trust_code):
  with pytest.raises(ValueError, match='not the name of a module'):
    trust.import_named(name, 'a.json', trust_code)
