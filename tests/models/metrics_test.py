"""Metrics that engines share."""

import math

from pda_fed.models import metrics
import pytest


@pytest.mark.parametrize(
  'loss, expected',
  [(0.0, 1.0), (math.log(141.9), 141.9), (1e4, math.inf), (math.inf, math.inf)],
)
def test_perplexity(loss, expected):
  assert metrics.perplexity(loss) == pytest.approx(expected)


def test_what_is_no_number_stays_so():
  assert math.isnan(metrics.perplexity(math.nan))
