"""Where the packages lie; all else about them is in pyproject.toml.

The programs are `scripts` in a clone. Installed under that name they would
clash with those of others, so a wheel has them within pda_fed, where the
command pda-fed finds them.
"""

import setuptools

_INSIDE = 'pda_fed._programs.'

setuptools.setup(
  packages=setuptools.find_packages(include=['pda_fed*', 'data_prep*'])
  + [_INSIDE + name for name in setuptools.find_packages(include=['scripts*'])],
  package_dir={f'{_INSIDE}scripts': 'scripts'},
  package_data={
    'data_prep': ['py.typed', 'samples/*/*'],
    'pda_fed': ['py.typed', 'compare/page.html'],
    f'{_INSIDE}scripts': ['benchmark_tasks/*', 'presets/*'],
  },
)
