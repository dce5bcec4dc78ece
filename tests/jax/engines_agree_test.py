"""TFF's rounds and JAX's: the same weights from the same users."""

import jax
import numpy as np
from pda_fed import methods
from pda_fed import models
from pda_fed import privacy
from pda_fed import schedules
from pda_fed import tff as pda_tff
from pda_fed.jax import optimizers
from pda_fed.jax import rounds as rounds_lib
from pda_fed.jax.federated import chunks
from pda_fed.jax.federated import training
from pda_fed.runs import groups
import pytest
import tensorflow_federated as tff

from tests.jax import small_users

_SPEC = models.RecurrentSpec(num_words=11, embedding_size=5, lstm_size=6)
_BATCH = 3
_PUBLIC_SEED = 77
_USERS = small_users.make_users(_SPEC, [7, 1, 3, 12, 5, 2], seed=0)
_PUBLIC = small_users.make_users(_SPEC, [4, 9, 2, 6], seed=1)
_COHORTS = [[0, 1, 2], [3], [], [5, 0, 4, 2], [1, 3]]
_PDA = methods.PdaDpmd(alpha=schedules.cosine(7))


def _plan(**changes) -> privacy.PrivacyPlan:
  settings = dict(
    population=6,
    expected_cohort=2.5,
    rounds=5,
    delta=1e-2,
    noise_multiplier=0.0,
    clip_norm=0.05,
  )
  return privacy.PrivacyPlan(**(settings | changes))


_CLIENTS = {
  'sgd': groups.ClientSpec(learning_rate=0.8),
  # A smaller epsilon would let last digits of small gradients decide steps.
  'adam': groups.ClientSpec(optimizer='adam', learning_rate=0.02, epsilon=1e-3),
}
_SERVER_RATES = {'sgd': 0.7, 'adam': 0.01, 'yogi': 0.01, 'adagrad': 0.01}
_ADAPTIVE = privacy.AdaptiveClipping(target_quantile=0.3, count_stddev=1e-9)
# Each costs TFF some seconds to build, so a case has several settings.
_CASES = {
  'cold': dict(method=methods.ColdStart()),
  'cold, yogi, clipped gradients': dict(
    method=methods.ColdStart(), optimizer='yogi', gradient_clip=0.05
  ),
  'pda, gradient mode, no client clipped': dict(
    method=_PDA, plan=_plan(clip_norm=100.0), public='gradient'
  ),
  'pda, adaptive clip, all clips': dict(
    method=_PDA,
    plan=_plan(adaptive_clipping=_ADAPTIVE),
    public_clip_norm=0.1,
    mean_clip_norm=0.04,
  ),
  'semi_dp, gradient mode': dict(
    method=methods.SemiDp(weight=0.6), public='gradient'
  ),
  'semi_dp, adaptive clip': dict(
    method=methods.SemiDp(weight=0.6),
    plan=_plan(adaptive_clipping=_ADAPTIVE),
    public_clip_norm='private',
    optimizer='adam',
    gradient_clip=0.05,
  ),
  'dope, adaptive clip, all clips': dict(
    method=methods.Dope(),
    plan=_plan(adaptive_clipping=_ADAPTIVE),
    public_clip_norm=0.1,
    mean_clip_norm=0.04,
  ),
  "adadps, clients' Adam": dict(
    method=methods.AdaDps(), optimizer='adagrad', client='adam'
  ),
  'adadps, multiplied back, gradient mode': dict(
    method=methods.AdaDps(multiply_back=True), public='gradient'
  ),
}


def _server(optimizer):
  return groups.ServerSpec(
    optimizer=optimizer, learning_rate=_SERVER_RATES[optimizer]
  )


def _tff_rounds(
  weights,
  method,
  plan,
  public,
  public_clip_norm,
  mean_clip_norm,
  optimizer,
  client,
  gradient_clip,
):
  process = pda_tff.build_learning_process(
    pda_tff.build_model_fn(_SPEC),
    plan,
    pda_tff.build_optimizer(_CLIENTS[client]),
    pda_tff.build_optimizer(_server(optimizer)),
    method=method,
    public_data=[
      (s[:, :-1].astype(np.int64), s[:, 1:].astype(np.int64)) for s in _PUBLIC
    ],
    public_update=public,
    public_users_per_round=2,
    public_batch_size=_BATCH,
    public_clip_norm=public_clip_norm,
    public_seed=_PUBLIC_SEED,
    noise_seed=0,
    mean_clip_norm=mean_clip_norm,
    client_gradient_clip=gradient_clip,
  )
  state = process.set_model_weights(
    process.initialize(),
    tff.learning.models.ModelWeights(tuple(weights), ()),
  )
  for cohort in _COHORTS:
    datasets = [pda_tff.make_dataset(_USERS[i], _BATCH) for i in cohort]
    state = process.next(state, datasets).state
    yield list(process.get_model_weights(state).trainable)


def _public_chunks(public, round_num):
  if public == 'gradient':
    sentences = np.concatenate(_PUBLIC)
    rows = rounds_lib.draw_rows(
      _PUBLIC_SEED, round_num, len(sentences), 2 * _BATCH
    )
    return small_users.chunk([sentences[rows]], 2 * _BATCH)
  users = rounds_lib.draw_users(_PUBLIC_SEED, round_num, len(_PUBLIC), 2)
  return small_users.chunk([_PUBLIC[i] for i in users], _BATCH, min_chunks=2)


def _jax_rounds(
  weights,
  method,
  plan,
  public,
  public_clip_norm,
  mean_clip_norm,
  optimizer,
  client,
  gradient_clip,
):
  trainer = training.Federated(
    _SPEC.jax_model(),
    plan,
    method,
    client_optimizer=optimizers.build_optimizer(
      _CLIENTS[client], gradient_clip
    ),
    server_optimizer=optimizers.build_optimizer(_server(optimizer)),
    public_clip_norm=public_clip_norm,
    mean_clip_norm=mean_clip_norm,
    devices=jax.devices()[:1],
  )
  rounds = [
    chunks.RoundInputs(
      round_num=np.int32(t),
      private=small_users.chunk(
        [_USERS[i] for i in cohort], _BATCH, clients_per_chunk=2, min_chunks=2
      ),
      public=_public_chunks(public, t) if method.uses_public else None,
      schedules=method.schedules_at(t),
    )
    for t, cohort in enumerate(_COHORTS)
  ]
  key = rounds_lib.noise_key(0)
  state = trainer.init(weights)
  for inputs in rounds:
    state, _ = trainer.run(state, rounds_lib.stack_rounds([inputs], 1), 1, key)
    yield jax.tree.leaves(state.params)


def test_every_method_is_compared():
  names = {case['method'].name for case in _CASES.values()}
  # A warm start is a cold one from other weights.
  assert names == set(methods.names()) - {'warm'}


@pytest.mark.slow
@pytest.mark.parametrize('case', _CASES)
def test_weights_agree(case):
  settings = {
    'plan': _plan(),
    'public': 'local_training',
    'public_clip_norm': None,
    'mean_clip_norm': None,
    'optimizer': 'sgd',
    'client': 'sgd',
    'gradient_clip': None,
  } | _CASES[case]
  params = _SPEC.jax_model().init(5)
  weights = [np.asarray(w) for w in jax.tree.leaves(params)]
  both = zip(
    _tff_rounds(weights, **settings),
    _jax_rounds(params, **settings),
    strict=True,
  )
  before = weights
  for t, (expected, actual) in enumerate(both):
    tolerance = 1e-5 if t == 0 else 1e-4
    moved = 0.0
    for b, e, a in zip(before, expected, actual, strict=True):
      moved += np.square(e - b).sum()
      error = np.linalg.norm(a - e) / np.linalg.norm(e)
      assert error <= tolerance
    assert moved > 0 or not _COHORTS[t]
    before = expected
  # Not only weights, of which updates are a small part: the change too.
  for w, e, a in zip(weights, expected, actual, strict=True):
    assert np.linalg.norm(a - e) <= 1e-3 * np.linalg.norm(e - w)
