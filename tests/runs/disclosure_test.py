"""The table of what is shown, and what is written from it."""

import dataclasses
import json

import numpy as np
from pda_fed import methods
from pda_fed.runs import disclosure
import pytest

from tests import fake_engine
from tests.runs import runs
from tests.runs import shown_fields


def _with_field(path, name):
  content = json.loads(path.read_text())
  path.write_text(json.dumps(content | {name: [{'inner': 1}]}))


def test_a_field_that_is_not_declared_is_noticed(tmp_path):
  folder, _ = runs.train(tmp_path / 'run')
  assert shown_fields.undeclared(shown_fields.of_run(folder.path)) == []
  (folder.path / 'notes.txt').touch()
  (folder.path / 'users.json').write_text('{"private": 3}')
  for name in ('config.json', 'result.json'):
    _with_field(folder.path / name, 'invented')
  result = json.loads((folder.path / 'result.json').read_text())
  result['audit'] = {'median_norm': 1}
  (folder.path / 'result.json').write_text(json.dumps(result))
  metrics = folder.path / 'metrics.csv'
  metrics.write_text(metrics.read_text().replace('alpha', 'median_norm', 1))
  assert shown_fields.undeclared(shown_fields.of_run(folder.path)) == [
    (disclosure.CONFIG, 'invented.inner'),
    (disclosure.METRICS, 'median_norm'),
    (disclosure.FILES, 'notes.txt'),
    (disclosure.FILES, 'users.json: private'),
    (disclosure.RESULT, 'audit.median_norm'),
    (disclosure.RESULT, 'invented.inner'),
  ]


def test_a_field_of_a_store_or_an_export_is_noticed(tmp_path):
  (tmp_path / 'manifest.json').write_text('{"invented": {"inner": 1}}')
  (tmp_path / 'ages.npy').touch()
  assert shown_fields.undeclared(shown_fields.of_store(tmp_path)) == [
    (disclosure.MANIFEST, 'invented.inner'),
    (disclosure.STORE, 'ages.npy'),
  ]
  np.savez(tmp_path / 'x.npz', about='{"invented": 1}', ages=1)
  found = shown_fields.of_export(tmp_path / 'x.npz')
  assert shown_fields.undeclared(found) == [
    (disclosure.EXPORT, 'about.invented'),
    (disclosure.EXPORT, 'ages'),
  ]


def test_a_row_that_fits_nothing_is_noticed(monkeypatch):
  row = dataclasses.replace(disclosure.TABLE[0], fields='round, invented')
  monkeypatch.setattr(disclosure, 'TABLE', (row,))
  found = {(disclosure.METRICS, 'round')}
  assert shown_fields.unmatched(found) == [(disclosure.METRICS, 'invented')]


def test_no_place_declares_a_name_twice():
  names = [(row.place, n) for row in disclosure.TABLE for n in row.names]
  assert len(set(names)) == len(names)


class TestMetricsOfRounds:
  """They are declared by name; those of evaluations may have any name."""

  class _Measuring(fake_engine.FakeEngine):
    def run_rounds(self, state, first_round, num_rounds):
      state, found = super().run_rounds(state, first_round, num_rounds)
      return state, [row | {'median_norm': 1.0} for row in found]

    def evaluate(self, weights, group, max_users=None):
      return super().evaluate(weights, group) | {'bleu': 0.5}

  def test_an_engine_must_declare_them(self, tmp_path):
    with pytest.raises(
      ValueError, match=r'must be declared: .*disclosure.* Found median_norm\.'
    ):
      runs.train(tmp_path / 'run', None, self._Measuring)
    # Nothing was written of it.
    assert 'median_norm' not in (tmp_path / 'run/metrics.csv').read_text()

  def test_a_method_names_its_own(self, tmp_path, monkeypatch):
    monkeypatch.setattr(methods.PdaDpmd, 'measured', ('median_norm',))
    config = fake_engine.make_run(final_test=False)
    folder, _ = runs.train(tmp_path / 'run', config, self._Measuring)
    assert runs.rows(folder.path)[-1]['median_norm'] == 1.0
    # Of a run without a test, nothing of rounds counts as validation.
    assert {*folder.read_result()['validation']} <= {
      *('loss', 'accuracy', 'perplexity', 'bleu', 'median_norm')
    }


def test_statements_are_of_the_table():
  run, page = disclosure.of_run(), disclosure.of_page()
  for name in ('train_loss', 'seconds', 'settings.data_hash', 'audit.views.*'):
    assert name in run
  assert 'audited' in page
  for text in (run, page):
    assert 'N, counts as public' in text
  assert 'perplexity' not in run
