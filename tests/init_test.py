"""`import pda_fed` is light, and has the names that programs use most."""

import subprocess
import sys

import pda_fed as pda
from pda_fed import methods
from pda_fed import privacy
from pda_fed import schedules
import pytest


def test_names_are_those_of_packages():
  assert pda.PrivacyPlan is privacy.PrivacyPlan
  assert pda.cosine is schedules.cosine
  for name in methods.names():
    method = methods.get(name)
    if method.__module__.startswith('pda_fed'):
      assert getattr(pda, method.__name__) is method
  for name in pda._NAMES:
    assert name in dir(pda) and getattr(pda, name).__module__.startswith('pda')
  with pytest.raises(AttributeError, match="no attribute 'nothing'"):
    pda.nothing  # noqa: B018


def test_importing_it_imports_nothing():
  program = (
    'import sys; before = set(sys.modules); import pda_fed\n'
    'found = set(sys.modules) - before - {"pda_fed"}\n'
    'print(found - sys.stdlib_module_names - {"importlib._bootstrap",'
    ' "importlib._bootstrap_external"})'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == 'set()'
