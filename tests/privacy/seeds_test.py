import copy
import hmac
import itertools
import pickle

import numpy as np
from pda_fed import privacy
from pda_fed.privacy import seeds
import pytest

_STREAMS = ('sampling', 'initialization', 'shuffling', 'noise', 'public')


def _values(streams):
  return [getattr(streams, name) for name in _STREAMS]


def test_a_seed_gives_separate_streams_that_repeat():
  values = _values(privacy.SeedStreams(3))
  assert len(set(values)) == len(_STREAMS)
  assert all(0 <= v < 2**63 for v in values)
  assert values == _values(privacy.SeedStreams(3))
  assert not set(values) & set(_values(privacy.SeedStreams(4)))


def test_without_a_seed_every_run_is_fresh():
  assert not set(_values(privacy.SeedStreams())) & set(
    _values(privacy.SeedStreams())
  )


def test_the_statement_tells_which():
  assert 'can remove the noise' in privacy.SeedStreams(0).statement()
  assert 'secret' in privacy.SeedStreams().statement()


def test_generators_differ_by_stream_and_step():
  draws = [
    seeds.generator(stream, seed, step).random(1000)
    for stream, seed, step in itertools.product(_STREAMS, (0, 1), (0, 1))
  ]
  correlations = np.corrcoef(draws)
  np.fill_diagonal(correlations, 0)
  assert np.abs(correlations).max() < 0.2


def test_bad_input():
  with pytest.raises(ValueError, match='seed must be at least 0'):
    privacy.SeedStreams(-1)
  with pytest.raises(ValueError, match='stream must be one of'):
    seeds.generator('nonsense', 0, 0)


def test_secret_seeds_can_be_kept():
  secret = privacy.SeedStreams(None)
  again = privacy.SeedStreams.from_dict(secret.as_dict())
  assert again.as_dict() == secret.as_dict()
  assert not again.reproducible
  assert privacy.SeedStreams(None).as_dict() != secret.as_dict()
  with pytest.raises(ValueError, match='seeds must have the streams'):
    privacy.SeedStreams.from_dict({'noise': 1})
  with pytest.raises(ValueError, match='noise must be at least 0'):
    privacy.SeedStreams.from_dict({**secret.as_dict(), 'noise': -1})


@pytest.mark.parametrize('seed', [None, 5])
def test_seeds_stay_in_the_process(seed):
  streams = privacy.SeedStreams(seed)
  texts = repr(streams) + str([streams])
  assert not any(str(value) in texts for value in _values(streams))
  for leave in (pickle.dumps, copy.copy, copy.deepcopy):
    with pytest.raises(TypeError, match='must not be pickled'):
      leave(streams)


def test_hosts_derive_the_same_seeds_from_a_secret_and_a_nonce():
  secret = b's' * 32
  derived = privacy.SeedStreams.derived(secret)
  again = privacy.SeedStreams.derived(secret, derived.nonce)
  kept = privacy.SeedStreams.from_dict(derived.as_dict())
  assert derived.as_dict() == again.as_dict() == kept.as_dict()
  assert not derived.reproducible and len(set(_values(derived))) == 5
  assert all(0 <= v < 2**63 for v in _values(derived))
  # RFC 2104, with the standard library's other interface.
  words = f'pda_fed seeds 1 {derived.nonce} noise'.encode()
  noise = int(hmac.new(secret, words, 'sha256').hexdigest()[:16], 16) >> 1
  assert derived.noise == noise
  # Each run has a nonce of its own, so that one secret serves for many.
  for other in (
    privacy.SeedStreams.derived(secret),
    privacy.SeedStreams.derived(b't' * 32, derived.nonce),
  ):
    assert not set(_values(derived)) & set(_values(other))


@pytest.mark.parametrize(
  'secret, nonce, words',
  [
    (b's' * 31, None, 'secret must have at least 32 bytes. Found 31.'),
    (b's' * 32, 'f' * 63, 'nonce must have 64 hex digits'),
    (b's' * 32, 5, 'nonce must have 64 hex digits. Found 5.'),
  ],
)
def test_secrets_and_nonces_that_are_refused(secret, nonce, words):
  with pytest.raises(ValueError, match=words):
    privacy.SeedStreams.derived(secret, nonce)
  if nonce is not None:
    given = {**privacy.SeedStreams().as_dict(), 'nonce': nonce}
    with pytest.raises(ValueError, match=words):
      privacy.SeedStreams.from_dict(given)
