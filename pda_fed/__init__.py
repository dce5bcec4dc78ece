"""Private federated learning with a little public data.

pda_fed implements PDA-DPMD, "Public Data-Assisted Mirror Descent for Private
Model Training" (Amid et al., ICML 2022, arXiv:2112.00193). Importing it is
light: a package loads when it is first used.

    import pda_fed as pda

    pda.privacy            the privacy plan: sampling, clipping, noise
    pda.methods            public-data methods, one file each
    pda.schedules          alpha_t
    pda.tff                federated learning processes (TFF)
    pda.jax                the same rounds, and sample-level steps (JAX)
    pda.models             model specifications
    pda.linear_regression  the exact mirror step
    pda.audit              canaries that measure what a run leaks
    pda.runs               settings, the training loop, engines
    pda.compare            comparisons, verdicts, figures, the page

What a program names most is here, too: `pda.PrivacyPlan`, `pda.PdaDpmd` and the
other methods, `pda.cosine` and the other schedules.

Import `pda_fed.tff` before `tensorflow_federated`.
"""

import importlib

__version__ = '0.1.0'

_PACKAGES = frozenset(
  [
    'audit',
    'clipping',
    'compare',
    'errors',
    'jax',
    'linear_regression',
    'methods',
    'models',
    'privacy',
    'runs',
    'schedules',
    'tff',
  ]
)


# Names of packages that are names of pda_fed, too.
_NAMES = {
  **dict.fromkeys(['PrivacyPlan', 'SeedStreams'], 'privacy'),
  **dict.fromkeys(
    ['AdaDps', 'ColdStart', 'Dope', 'PdaDpmd', 'SemiDp', 'WarmStart'], 'methods'
  ),
  **dict.fromkeys(['constant', 'cosine', 'linear', 'listed'], 'schedules'),
}


def __getattr__(name: str):
  """Imports a package when it is first used (PEP 562)."""
  if name in _PACKAGES:
    return importlib.import_module(f'{__name__}.{name}')
  if name in _NAMES:
    module = importlib.import_module(f'{__name__}.{_NAMES[name]}')
    return getattr(module, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__():
  return sorted({*globals(), *_PACKAGES, *_NAMES})
