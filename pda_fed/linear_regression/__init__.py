"""Linear regression: exact mirror descent, its baselines and its theory."""

from pda_fed.linear_regression.algorithm_1 import mirror_descent
from pda_fed.linear_regression.algorithm_1 import Result
from pda_fed.linear_regression.algorithm_1 import Setting
from pda_fed.linear_regression.constraints import ConstraintSet
from pda_fed.linear_regression.constraints import theorem_constraint
from pda_fed.linear_regression.figures import plot_simulation
from pda_fed.linear_regression.figures import plot_theory
from pda_fed.linear_regression.least_squares import LeastSquares
from pda_fed.linear_regression.mirror_maps import EuclideanMirrorMap
from pda_fed.linear_regression.mirror_maps import MirrorMap
from pda_fed.linear_regression.problem import population_mse
from pda_fed.linear_regression.problem import RegressionProblem
from pda_fed.linear_regression.problem import simulate
from pda_fed.linear_regression.quadratic import QuadraticMirrorMap
from pda_fed.linear_regression.simulation import METHODS
from pda_fed.linear_regression.simulation import Outcome
from pda_fed.linear_regression.simulation import run_trial
from pda_fed.linear_regression.simulation import SimulationConfig
from pda_fed.linear_regression.simulation import Trial
from pda_fed.linear_regression.storage import TrialStore
from pda_fed.linear_regression.summary import paired_difference
from pda_fed.linear_regression.summary import summarize
from pda_fed.linear_regression.summary import Summary

__all__ = [
  'METHODS',
  'ConstraintSet',
  'EuclideanMirrorMap',
  'LeastSquares',
  'MirrorMap',
  'Outcome',
  'QuadraticMirrorMap',
  'RegressionProblem',
  'Result',
  'Setting',
  'SimulationConfig',
  'Summary',
  'Trial',
  'TrialStore',
  'mirror_descent',
  'paired_difference',
  'plot_simulation',
  'plot_theory',
  'population_mse',
  'run_trial',
  'simulate',
  'summarize',
  'theorem_constraint',
]
