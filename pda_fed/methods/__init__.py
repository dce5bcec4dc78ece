"""Public-data methods. Each is one file that works with all engines."""

import importlib
import pkgutil

from pda_fed.methods.adadps import AdaDps
from pda_fed.methods.arrays import mix
from pda_fed.methods.base import Method
from pda_fed.methods.base import server_step
from pda_fed.methods.base import setting
from pda_fed.methods.cold_start import ColdStart
from pda_fed.methods.dope import Dope
from pda_fed.methods.pda_dpmd import PdaDpmd
from pda_fed.methods.registry import find
from pda_fed.methods.registry import get
from pda_fed.methods.registry import names
from pda_fed.methods.registry import title
from pda_fed.methods.semi_dp import SemiDp
from pda_fed.methods.warm_start import WarmStart

__all__ = [
  'AdaDps',
  'ColdStart',
  'Dope',
  'Method',
  'PdaDpmd',
  'SemiDp',
  'WarmStart',
  'find',
  'get',
  'mix',
  'names',
  'server_step',
  'setting',
  'title',
]

# Import every file in this folder, so that added methods register themselves.
for _module in pkgutil.iter_modules(__path__):
  importlib.import_module(f'{__name__}.{_module.name}')
