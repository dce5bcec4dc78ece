"""Shows the paper's theory of linear regression as table and figure.

    python -m scripts.show_theory --plot=theory.png
    bazel run //scripts:show_theory

Shows the bounds of the linear regression theorem for the paper's two examples:
how they grow with p, and their values for one p.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
import math
from typing import Optional

from absl import flags
from pda_fed import linear_regression
from pda_fed.common import tables
from pda_fed.linear_regression import bounds

_DIMENSION = flags.DEFINE_integer(
  'dimension',
  1000,
  'p, the dimension for which the bounds are computed.',
  lower_bound=2,
)
_NUM_PRIVATE = flags.DEFINE_float(
  'num_private',
  1e8,
  'Number of private samples. At least the number of public samples.',
)
_EPSILON = flags.DEFINE_float('epsilon', 1.0, 'The epsilon of the bounds.')
_DELTA = flags.DEFINE_float('delta', 1e-5, 'The delta of the bounds.')
_PLOT = flags.DEFINE_string(
  'plot',
  None,
  'Plot the theory to this PNG file, and to an SVG file beside it.',
)

# Numbers of public samples are p^c, for these c.
_POWERS = (1.5, 2.0, 2.25, 2.5)
# With log(1/delta) = 1, the powers of p show, as in the paper's O~().
_NO_LOGARITHM = math.exp(-1)


def _bound(spectrum, p: int, num_public: Optional[float]) -> bounds.Bound:
  return bounds.excess_risk(
    spectrum(p),
    num_public=num_public,
    num_private=_NUM_PRIVATE.value,
    epsilon=_EPSILON.value,
    delta=_DELTA.value,
  )


def main() -> None:
  """Runs with the flags' settings."""
  p = _DIMENSION.value
  rows = []
  for name, spectrum, powers in (
    ('isotropic', bounds.isotropic, (1.0,)),
    ('one flat direction', bounds.one_flat_direction, _POWERS),
  ):
    found = _bound(spectrum, p, None)
    size = lambda p, s=spectrum: p / s(p).min()  # noqa: E731
    rows.append((name, 'DP-SGD', size, found))
    for power in powers:
      found = _bound(spectrum, p, p**power)
      size = lambda p, s=spectrum, c=power: bounds.chi(  # noqa: E731
        s(p), p**c, _NO_LOGARITHM
      )
      rows.append((name, f'PDA-DPMD, n_pub = p^{power:g}', size, found))
  rows = [
    (
      name,
      method,
      f'{bounds.growth_exponent(size):.2f}',
      f'{found.privacy:.3g}',
      f'{found.sampling:.3g}',
    )
    for name, method, size, found in rows
  ]
  print(
    f'Excess risk without constants for p = {p:,}, n_priv ='
    f' {_NUM_PRIVATE.value:g}, epsilon = {_EPSILON.value:g}, delta ='
    f' {_DELTA.value:g}; privacy grows like p^exponent.\n'
  )
  header = ['eigenvalues', 'method', 'exponent', 'privacy', 'sampling']
  print(tables.format_table(header, rows))
  if _PLOT.value is not None:
    paths = linear_regression.plot_theory(_PLOT.value)
    print(f'\nWritten: {", ".join(str(path) for path in paths)}')


if __name__ == '__main__':
  cli.run(main)
