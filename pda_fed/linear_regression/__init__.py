"""Linear regression: the paper's simulation and the exact mirror step."""

from pda_fed.linear_regression.problem import RegressionProblem
from pda_fed.linear_regression.problem import simulate
from pda_fed.linear_regression.quadratic import QuadraticMirrorMap

__all__ = [
  'QuadraticMirrorMap',
  'RegressionProblem',
  'simulate',
]
