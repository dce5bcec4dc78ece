"""Sums over devices are sums, in both forms that are measured."""

import jax
import numpy as np
import pytest

from bench import made_up_rounds


@pytest.mark.parametrize('kind', ['ordered', 'psum'])
def test_sum_over_devices(kind):
  devices = jax.devices()
  found = np.asarray(made_up_rounds.build_sum(kind, 5, devices)())
  assert found.tolist() == [len(devices)] * 5
