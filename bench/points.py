"""Points of `bench.scaling`, lines through them, and a table."""

from collections.abc import Sequence
import csv
import dataclasses
import pathlib
from typing import Optional

import numpy as np
from pda_fed.common import tables


@dataclasses.dataclass(frozen=True)
class Point:
  """A measurement.

  Attributes:
    axis: Name of the quantity that varies.
    engine: 'jax' or 'tff'.
    x: Size of the cohort, or number of users or rounds.
    seconds: Seconds of a round, or of all rounds if axis is rounds. None for
      memory.
    megabytes: Memory of the process, without mapped files.
  """

  axis: str
  engine: str
  x: int
  seconds: Optional[float] = None
  megabytes: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Fit:
  """A line through points.

  Attributes:
    intercept: Value at 0.
    slope: Increase per unit.
    r_squared: Share of the variance that the line explains.
  """

  intercept: float
  slope: float
  r_squared: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Fit:
  """Returns the least squares line."""
  slope, intercept = np.polyfit(x, y, 1)
  residuals = np.subtract(y, intercept + slope * np.asarray(x))
  total = np.var(y)
  share = 1 - np.mean(residuals**2) / total if total else 1.0
  return Fit(float(intercept), float(slope), float(share))


def describe(points: Sequence[Point]) -> list[str]:
  """Returns lines on how time and memory grow."""
  lines = []
  for axis, quantity, unit in (
    ('cohort', 'seconds', 's per client'),
    ('rounds', 'seconds', 's per round'),
    ('users', 'seconds', 's per user of the store'),
    ('memory', 'megabytes', 'MB per user of the store'),
  ):
    for engine in dict.fromkeys(p.engine for p in points):
      of = [p for p in points if (p.axis, p.engine) == (axis, engine)]
      if len(of) < 3:
        continue
      fit = fit_line([p.x for p in of], [getattr(p, quantity) for p in of])
      lines.append(
        f'{axis}, {engine}: {fit.intercept:.4g} + {fit.slope:.4g} {unit}'
        f' (R^2 = {fit.r_squared:.4f})'
      )
  return lines


def write_csv(points: Sequence[Point], path: pathlib.Path) -> None:
  """Writes points to a CSV file.

  Args:
    points: The points of all axes.
    path: The file.
  """
  with path.open('w', newline='') as f:
    writer = csv.writer(f, lineterminator='\n')
    writer.writerow([field.name for field in dataclasses.fields(Point)])
    for point in points:
      writer.writerow(
        '' if v is None else f'{v:.6g}' if isinstance(v, float) else v
        for v in dataclasses.astuple(point)
      )


def format_points(points: Sequence[Point]) -> str:
  """Returns a table for a terminal.

  Args:
    points: The points of all axes.
  """
  rows = [
    (
      *(p.axis, p.engine, f'{p.x:,}'),
      '' if p.seconds is None else f'{p.seconds:.4f}',
      _rate(p),
      '' if p.megabytes is None else f'{p.megabytes:.0f}',
    )
    for p in points
  ]
  header = ['axis', 'engine', 'x', 'seconds', 'rounds/s', 'MB']
  return tables.format_table(header, rows)


def _rate(point: Point) -> str:
  if point.seconds is None:
    return ''
  rounds = point.x if point.axis == 'rounds' else 1
  return f'{rounds / point.seconds:.3g}'
