"""Predictions are the sums that one computes by hand."""

import dataclasses
import math

import pytest

from bench import full_size
from bench import pieces
from bench import plan_tables

_PIECES = pieces.Pieces(
  'GPU',
  pieces.RoundCost(fixed=0.01, step=0.001, client=0.0001),
  evaluation=1e-5,
  read=0.0002,
  device_bytes_per_client=1e6,
  devices_per_host=8,
)
_LINK = pieces.Link('link', bytes_per_second=1e9, latency=0.001)
_WORK = full_size.Work(is_poisson=False, num_parameters=1_000_000)


def test_defaults_are_the_paper():
  work = full_size.Work()
  assert (work.cohort, work.rounds, work.steps) == (100, 1600, 16)
  assert work.num_parameters == 4_050_748
  assert full_size.SPLITS['train'].users == 342_477


def test_one_device():
  found = full_size.predict(_WORK, _PIECES, _LINK, 1, 100)
  assert found.clients == pytest.approx(0.01 + 16 * (0.001 + 0.01))
  assert found.reduction == 0
  assert found.reading == pytest.approx(100 * 0.0002)
  assert found.round == pytest.approx(0.186 + 0.02)
  evaluated = 16 * 500 * 256 + 16_586_035
  assert found.total == pytest.approx(1600 * 0.206 + evaluated * 1e-5)


def test_eight_devices_of_a_host():
  found = full_size.predict(_WORK, _PIECES, _LINK, 8, 13)
  assert found.clients == pytest.approx(0.01 + 16 * (0.001 + 0.0013))
  # 14 messages of an eighth of 4 MB.
  assert found.reduction == pytest.approx(14 * (0.001 + 0.0005))
  assert found.reading == pytest.approx(0.02)


def test_hosts_share_reading_and_memory():
  found = full_size.predict(_WORK, _PIECES, _LINK, 32, 4)
  assert found.reading == pytest.approx(25 * 0.0002)
  assert found.device_bytes == 4 * 4e6 + 4 * 1e6
  one_host = full_size.predict(_WORK, _PIECES, _LINK, 8, 13)
  # 75 users fewer, of 256 sentences of 21 tokens and a weight, for 20 rounds.
  saved = one_host.host_bytes - found.host_bytes
  assert saved == pytest.approx(20 * 75 * 256 * (21 * 2 + 4))


def test_smaller_chunks_make_a_longer_chain():
  found = full_size.predict(_WORK, _PIECES, _LINK, 8, 5)
  # 20 chunks of 5 on 8 devices: three of them, one after the other.
  assert found.clients == pytest.approx(0.01 + 3 * 16 * (0.001 + 0.0005))


def test_public_users_add_chunks_and_a_sum():
  work = dataclasses.replace(_WORK, public_users=10)
  alone = full_size.predict(_WORK, _PIECES, _LINK, 8, 13)
  found = full_size.predict(work, _PIECES, _LINK, 8, 13)
  assert found.clients - alone.clients == pytest.approx(16 * (0.001 + 0.001))
  assert found.reduction == pytest.approx(2 * alone.reduction)
  assert found.reading == pytest.approx(110 * 0.0002)


def test_by_default_the_fastest_chunks():
  found = full_size.predict(_WORK, _PIECES, _LINK, 8)
  assert found.clients_per_chunk == 13
  others = [
    full_size.predict(_WORK, _PIECES, _LINK, 8, c) for c in range(1, 30)
  ]
  assert found.round == min(p.round for p in others)


def test_chunks_of_poisson_cohorts():
  # With room for all there is one chunk unless the cohort is empty.
  found = full_size.expected_chunks(1, 100, 1, is_poisson=True)
  assert found == pytest.approx(1 - math.exp(-1))
  # One client a chunk: the expected cohort.
  assert full_size.expected_chunks(3, 1, 1, is_poisson=True) == pytest.approx(3)
  # Two a chunk and a mean of 1: P(K > 0) + P(K > 2) + P(K > 4) + ...
  e = math.exp(-1)
  tails = [
    1 - e * sum(1 / math.factorial(k) for k in range(2 * i + 1))
    for i in range(8)
  ]
  assert full_size.expected_chunks(1, 2, 1, True) == pytest.approx(sum(tails))
  assert full_size.expected_chunks(1, 1, 2, True) == pytest.approx(sum(tails))


@pytest.mark.parametrize('name', ['cohort', 'rounds', 'steps'])
def test_work_is_checked(name):
  with pytest.raises(ValueError, match=f'{name} must be at least 1'):
    full_size.Work(**{name: 0})


def test_numbers_of_a_prediction_are_checked():
  with pytest.raises(ValueError, match='num_devices must be at least 1'):
    full_size.predict(_WORK, _PIECES, _LINK, 0)
  with pytest.raises(ValueError, match='clients_per_chunk must be at least 1'):
    full_size.predict(_WORK, _PIECES, _LINK, 1, 0)


def test_engine_choice_is_one_client_on_a_core():
  core = dataclasses.replace(_PIECES, device_bytes_per_client=0.0)
  assert full_size.engine_choice(_WORK, core, 2) == 1
  assert full_size.engine_choice(_WORK, _PIECES, 8) > 1


def test_plan_of_the_repository():
  loaded = pieces.load(pieces.DEFAULT_FILE)
  text = plan_tables.format_plan(*loaded, [1, 8])
  for words in ('one run, 100 clients', '32 runs', 'core, TFF', 'measured s'):
    assert words in text
  for link in loaded.links:
    assert link.name in text
  # Costs explain the rounds that were measured.
  for check in loaded.checks:
    (row,) = plan_tables.check_rows(loaded.devices, [check])
    assert 0.9 < float(row[-1]) < 1.1


def test_a_sweep_takes_whole_runs():
  rows = plan_tables.plan_rows(_PIECES, _LINK, [1, 32, 20])
  one, all_, some = (float(row[7]) for row in rows[-3:])
  assert one == pytest.approx(32 * all_, rel=0.1)
  # 20 devices have 2 runs one after the other.
  assert some == pytest.approx(2 * all_, rel=0.1)


def test_a_link_slows_sums_alone():
  slow = pieces.Link('slow', bytes_per_second=1e8, latency=0.001)
  fast_row, slow_row = plan_tables.link_rows(_PIECES, [_LINK, slow], [1, 2])
  assert [row[:2] for row in (fast_row, slow_row)] == [
    ('link', '2'),
    ('slow', '2'),
  ]
  # Two messages of half of 4 x 4,050,748 bytes.
  assert float(slow_row[2]) == pytest.approx(2 * (1 + 81.015), abs=0.1)
  gap = (float(slow_row[2]) - float(fast_row[2])) / 1000
  assert float(slow_row[3]) - float(fast_row[3]) == pytest.approx(gap, abs=2e-3)
