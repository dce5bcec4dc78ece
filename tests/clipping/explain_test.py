"""The table of how each weight is treated."""

import jax
import jax.numpy as jnp
from pda_fed import clipping
import pytest

from tests.clipping import nets

# The cells of Flax name float64 also where it is switched off.
pytestmark = pytest.mark.filterwarnings('ignore:Explicitly requested dtype')


def _methods(net):
  loss, params, batch = net
  example = jax.tree.map(lambda a: a[0], batch)
  rows = clipping.explain(loss, params, *example).rows
  return {(row.weights, row.operation): row.norm for row in rows}


def test_each_weight_and_what_it_takes():
  loss, params, (x, y) = nets.mlp()
  assert str(clipping.explain(loss, params, x[0], y[0])).splitlines() == [
    'weights  operation    norm           bytes an example',
    '-------  -----------  -------------  ----------------',
    "['w']    dot_general  Gram matrices                 8",
    "['b']    add          sum                          24",
    "['v']    dot_general  Gram matrices                 8",
    'all                                                40',
  ]


def test_tied_weights_are_not_formed():
  table = "['Embed_0']['embedding']"
  found = _methods(nets.tied(vocabulary=500, length=3))
  assert found[table, 'gather'] == 'Gram matrices'
  assert found[table, 'dot_general'] == 'Gram matrices'
  # A small table is formed: that takes less.
  found = _methods(nets.tied(vocabulary=11, length=20))
  assert found[table, 'gather'] == 'formed'


def test_weights_of_each_step_of_a_scan_are_not_formed():
  found = _methods(nets.BY_NAME['deep']())
  inside = [v for (weights, _), v in found.items() if 'Layer' in weights]
  assert sorted(set(inside)) == ['Gram matrices', 'sum']


def test_joined_cut_and_unused_weights():
  found = _methods(nets.BY_NAME['recurrent']())
  joined = {v for (weights, _), v in found.items() if weights.count(', ') == 3}
  assert joined == {'product', 'sum'}
  found = _methods(nets.odds_and_ends())
  assert found["['unused']", ''] == 'unused'
  assert found["['cut']", 'dot_general'] == 'product'
  assert found["['v']", 'dot_general'] == 'formed'


@pytest.mark.parametrize('name', nets.PLAIN)
def test_nothing_is_computed(name):
  loss, params, batch = nets.BY_NAME[name]()
  example = jax.tree.map(lambda a: a[0], batch)
  shapes = jax.eval_shape(lambda *a: a, params, *example)
  assert clipping.explain(loss, *shapes).rows


def test_operations_that_are_not_known():
  def loss(w, x):
    return jnp.sort(w * 2 + x).sum() + jnp.linalg.slogdet(w + x)[1]

  rows = clipping.explain(loss, jnp.eye(3), jnp.ones((3, 3))).rows
  assert {row.norm for row in rows} == {'sum'}
