"""Private federated learning with a little public data.

pda_fed implements PDA-DPMD, "Public Data-Assisted Mirror Descent for Private
Model Training" (Amid et al., ICML 2022, arXiv:2112.00193). Import its packages
one by one. Those that do not use TensorFlow Federated (TFF) work without it:

    pda_fed.schedules          alpha_t
    pda_fed.privacy            the privacy plan: sampling, clipping, noise
    pda_fed.methods            public-data methods, one file each
    pda_fed.learning           federated learning processes (TFF)
    pda_fed.runtime            where TFF computations run
    pda_fed.vectorized         clients as a batch dimension (JAX)
    pda_fed.linear_regression  the exact mirror step
    pda_fed.models             model specifications
    pda_fed.experiments        settings, the training loop, engines
    pda_fed.analysis           comparisons, sweeps, figures, the HTML report
"""

from pda_fed import _tff_imports

__version__ = '0.1.0'

_tff_imports.install()
