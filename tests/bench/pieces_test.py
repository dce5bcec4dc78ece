"""Costs are found from measured rounds, and files of pieces are checked."""

import dataclasses
import json

import pytest

from bench import pieces

_COST = pieces.RoundCost(fixed=0.01, step=0.001, client=0.0001)
_ENTRY = {
  'device': 'GPU',
  'rounds': [[16, 100, 0.186], [160, 10, 0.33], [2, 10, 0.014]],
  'evaluation': 1e-5,
  'read': 5e-5,
  'device_bytes_per_client': 6e7,
  'devices_per_host': 8,
}


def _measured(*sizes):
  return [pieces.MeasuredRound(*s, _COST.seconds(*s)) for s in sizes]


def test_seconds_of_a_round():
  # 0.01 + 16 x (0.001 + 100 x 0.0001).
  assert _COST.seconds(16, 100) == pytest.approx(0.186)
  assert _COST.seconds(0, 100) == 0.01


def test_fit_finds_the_costs():
  found = pieces.fit_cost(_measured((16, 100), (160, 10), (2, 10)))
  assert dataclasses.astuple(found) == pytest.approx((0.01, 0.001, 0.0001))


def test_fit_with_a_known_fixed_part():
  # All of one cohort, as when only clients side by side are varied.
  rounds = _measured((16, 100), (160, 10))
  found = pieces.fit_cost(rounds, fixed=0.01)
  assert dataclasses.astuple(found) == pytest.approx((0.01, 0.001, 0.0001))
  with pytest.raises(ValueError, match='rounds must differ'):
    pieces.fit_cost(rounds)


def test_fit_on_a_cpu_gives_all_to_clients():
  rounds = [pieces.MeasuredRound(4, 1, 5.0), pieces.MeasuredRound(8, 1, 9.0)]
  found = pieces.fit_cost(rounds)
  assert dataclasses.astuple(found) == pytest.approx((1.0, 0.0, 1.0))


def test_costs_are_not_negative():
  rounds = [pieces.MeasuredRound(1, 1, 1.0), pieces.MeasuredRound(2, 1, 3.0)]
  found = pieces.fit_cost(rounds)
  assert found.fixed == 0 and found.client > 0
  with pytest.raises(ValueError, match='step must be non-negative'):
    pieces.RoundCost(0.0, -1.0, 0.0)


def test_link_sends_two_parts_to_each_other_device():
  link = pieces.Link('link', bytes_per_second=1000.0, latency=0.5)
  assert link.seconds(8000, 1) == 0
  # 2 messages of 4,000 bytes; 14 of 1,000 bytes.
  assert link.seconds(8000, 2) == pytest.approx(2 * (0.5 + 4))
  assert link.seconds(8000, 8) == pytest.approx(14 * (0.5 + 1))


def test_fitted_link_gives_back_what_was_measured():
  link = pieces.fit_link('link', 8000, seconds=9.0, of_two=1.0)
  assert link == pieces.Link('link', 1000.0, 0.5)
  assert link.seconds(8000, 2) == pytest.approx(9.0)
  with pytest.raises(ValueError, match='seconds - of_two must be positive'):
    pieces.fit_link('link', 8000, seconds=1.0, of_two=1.0)


def test_entry_is_read_and_written():
  found = pieces.from_json(_ENTRY)
  assert dataclasses.astuple(found.cost) == pytest.approx((0.01, 0.001, 0.0001))
  rounds = [pieces.MeasuredRound(*r) for r in _ENTRY['rounds']]
  assert pieces.to_json(found, rounds, 'so') == {**_ENTRY, 'how': 'so'}


@pytest.mark.parametrize(
  'change, message',
  [
    ({'read': -1.0}, 'read must be non-negative'),
    ({'devices_per_host': 0}, 'devices_per_host must be at least 1'),
    ({'rounds': [[16, 1, 0.0]]}, 'seconds must be positive'),
    ({'rounds': [[16, 1, float('nan')]]}, 'seconds must be positive'),
  ],
)
def test_wrong_entries_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    pieces.from_json({**_ENTRY, **change})


def test_missing_fields_are_named():
  entry = {k: v for k, v in _ENTRY.items() if k not in ('read', 'rounds')}
  with pytest.raises(ValueError, match='must have read, rounds'):
    pieces.from_json(entry)


def test_save_keeps_other_parts(tmp_path):
  path = tmp_path / 'pieces.json'
  link = {'name': 'link', 'bytes_per_second': 10.0, 'latency': 0.0}
  pieces.save(path, links=[link])
  pieces.save(path, devices=[_ENTRY])
  found = pieces.load(path)
  assert [p.device for p in found.devices] == ['GPU']
  assert found.links == [pieces.Link(**link)] and not found.checks


def test_load_takes_the_links_of_the_repository(tmp_path):
  path = tmp_path / 'pieces.json'
  path.write_text(json.dumps({'devices': [_ENTRY]}))
  assert pieces.load(path).links == pieces.load(pieces.DEFAULT_FILE).links
  path.write_text('{}')
  with pytest.raises(ValueError, match='must have devices'):
    pieces.load(path)
