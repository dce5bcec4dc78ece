"""The paper's theory of linear regression in numbers and a figure.

    python -m scripts.show_theory --plot=theory.png
    bazel run //scripts:show_theory

The bounds of the linear-regression theorem for the two examples of the text:
how they grow with p, and what they are for one p.
"""

from scripts import cli  # First: it silences TensorFlow.

# isort: split
import math

from absl import flags
from pda_fed import linear_regression
from pda_fed import tables
from pda_fed.linear_regression import bounds

_DIMENSION = flags.DEFINE_integer(
  'dimension', 1000, 'p of the bounds.', lower_bound=2
)
_NUM_PRIVATE = flags.DEFINE_float(
  'num_private', 1e9, 'Private samples; at least as many as public ones.'
)
_EPSILON = flags.DEFINE_float('epsilon', 1.0, 'Of the bounds.')
_DELTA = flags.DEFINE_float('delta', 1e-5, 'Of the bounds.')
_PLOT = flags.DEFINE_string(
  'plot', None, 'Draw the theory into this PNG file, and an SVG beside it.'
)

# Public samples are p^c.
_POWERS = (1.5, 2.0, 2.25, 2.5)


def _row(name, method, eigenvalues_fn, size_fn, bound) -> tuple:
  return (
    name,
    method,
    f'{bounds.growth_exponent(lambda p: size_fn(eigenvalues_fn(p), p)):.2f}',
    f'{bound.privacy:.3g}',
    f'{bound.sampling:.3g}',
  )


def main() -> None:
  """Runs with the flags' settings."""
  p = _DIMENSION.value
  settings = {
    'num_private': _NUM_PRIVATE.value,
    'epsilon': _EPSILON.value,
    'delta': _DELTA.value,
  }
  rows = []
  for name, spectrum, powers in (
    ('isotropic', bounds.isotropic, (1.0,)),
    ('one flat direction', bounds.one_flat_direction, _POWERS),
  ):
    sgd = bounds.dp_sgd_bound(spectrum(p), **settings)
    size = lambda values, p: p / values.min()  # noqa: E731
    rows.append(_row(name, 'DP-SGD', spectrum, size, sgd))
    for power in powers:
      # The text's Omega~ hides a logarithm, which belongs to n_pub.
      def num_public(p: int, power: float = power) -> float:
        return math.log(1 / settings['delta']) * p**power

      pda = bounds.pda_dpmd_bound(
        spectrum(p), num_public=num_public(p), **settings
      )

      def chi(values, p: int, num_public=num_public) -> float:
        return bounds.chi(values, num_public(p), settings['delta'])

      method = f'PDA-DPMD, n_pub ~ p^{power:g}'
      rows.append(_row(name, method, spectrum, chi, pda))
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
