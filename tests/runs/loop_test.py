"""The loop, with an engine of a few lines."""

import json

from pda_fed.runs import checkpoints
from pda_fed.runs import loop
from pda_fed.runs import overview
import pytest

from tests import fake_engine
from tests.runs import runs


def test_what_a_run_leaves(tmp_path):
  folder, engine = runs.train(tmp_path / 'run')
  assert {p.name for p in folder.path.iterdir()} == {
    '.lock',
    'checkpoints',
    'config.json',
    'metrics.csv',
    'result.json',
    'tensorboard',
  }
  rows = runs.rows(folder.path)
  assert [row['round'] for row in rows] == [0, 3, 6, 9, 10]
  assert rows[0]['epsilon'] == 0 < rows[1]['epsilon'] < rows[4]['epsilon']
  # alpha is that of the last round before the row, the loss a mean of three.
  method = fake_engine.make_run().method
  assert rows[1]['alpha'] == pytest.approx(method.alpha(2))
  assert rows[1]['clients'] == 2
  assert engine.rounds_run == list(range(10))
  result = folder.read_result()
  assert result['method'] == 'pda'
  assert result['epsilon'] == pytest.approx(rows[4]['epsilon'], rel=1e-5)
  assert result['epsilon'] <= rows[4]['epsilon']
  assert result['test']['loss'] == pytest.approx(rows[4]['loss'] + 1)
  # The fake warm start is 0.5 in three weights.
  assert result['warm_start']['epochs'] == 3
  assert result['warm_start']['test']['loss'] == pytest.approx(1 + 1 / 1.75)
  config = json.loads((folder.path / 'config.json').read_text())
  assert config['settings']['plan']['population'] == 1000
  assert config['settings']['method'] == {
    'name': 'pda',
    'alpha': {'K': 8, 'kind': 'cosine'},
  }
  assert 'can remove the noise' in config['noise']
  assert config['libraries']['numpy']


def test_a_row_is_the_mean_since_the_row_before(tmp_path):
  class Counting(fake_engine.FakeEngine):
    def run_rounds(self, state, first_round, num_rounds):
      state, metrics = super().run_rounds(state, first_round, num_rounds)
      for i, found in enumerate(metrics):
        found['train_loss'] = float(first_round + i)
      return state, metrics

  config = fake_engine.make_run(rounds=5, rounds_per_dispatch=2)
  folder, _ = runs.train(tmp_path / 'run', config, Counting)
  losses = [row['train_loss'] for row in runs.rows(folder.path)]
  assert losses == [None, 1.0, 3.5]


def test_same_seed_same_rows_and_another_one_others(tmp_path):
  first, _ = runs.train(tmp_path / 'a')
  again, _ = runs.train(tmp_path / 'b')
  other, _ = runs.train(tmp_path / 'c', fake_engine.make_run(seed=1))
  assert runs.rows(first.path) == runs.rows(again.path)
  assert runs.rows(first.path) != runs.rows(other.path)


def test_rounds_may_be_dispatched_together(tmp_path):
  one, _ = runs.train(tmp_path / 'a')
  many, _ = runs.train(
    tmp_path / 'b', fake_engine.make_run(rounds_per_dispatch=100)
  )
  assert runs.rows(one.path) == runs.rows(many.path)


def test_methods_are_data(tmp_path):
  cold, engine = runs.train(tmp_path / 'cold', fake_engine.make_run('cold'))
  assert engine.num_pretrainings == 0
  _, engine = runs.train(tmp_path / 'warm', fake_engine.make_run('warm'))
  assert engine.num_pretrainings == 1
  pda, engine = runs.train(tmp_path / 'pda', fake_engine.make_run('pda'))
  assert engine.num_pretrainings == 0  # It has found that of `warm`.
  of_pda = runs.rows(pda.path)[0]['loss']
  assert of_pda == pytest.approx(1 / 1.75)
  assert runs.rows(cold.path)[0]['loss'] != of_pda
  others = fake_engine.make_run('warm', **{'pretraining.patience': 7})
  _, engine = runs.train(tmp_path / 'other', others)
  assert engine.num_pretrainings == 1


@pytest.mark.parametrize('left', [None, b'damaged'])
def test_a_warm_start_that_is_gone_has_no_test(tmp_path, left):
  config = fake_engine.make_run(final_test=False)
  folder, _ = runs.train(tmp_path / 'run', config)
  assert folder.read_result()['warm_start'] == {'epochs': 3}
  (path,) = (tmp_path / 'warm_start').glob('*.ckpt')
  path.unlink()
  if left is not None:
    path.write_bytes(left)
  with pytest.warns(UserWarning, match=f'no test of .* {path} cannot be used'):
    folder, engine = runs.train(tmp_path / 'run')
  assert folder.read_result()['test'] is not None
  assert folder.read_result()['warm_start'] == {'epochs': 3}
  assert engine.num_pretrainings == 0


def test_a_warm_start_that_was_trained_again_has_no_test(tmp_path):
  config = fake_engine.make_run(final_test=False)
  runs.train(tmp_path / 'run', config)
  (path,) = (tmp_path / 'warm_start').glob('*.ckpt')
  arrays, record = checkpoints.read_arrays(path)
  record['figures']['epochs'] = 4
  checkpoints.write_arrays(path, arrays, record)
  with pytest.warns(UserWarning, match=f'{path} was trained again since'):
    folder, _ = runs.train(tmp_path / 'run')
  assert folder.read_result()['warm_start'] == {'epochs': 3}


def test_a_damaged_warm_start_is_trained_again(tmp_path):
  runs.train(tmp_path / 'a')
  (path,) = (tmp_path / 'warm_start').glob('*.ckpt')
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.warns(UserWarning, match='Training it again'):
    _, engine = runs.train(tmp_path / 'b')
  assert engine.num_pretrainings == 1
  checkpoints.read_arrays(path)


def test_a_finished_run_is_not_run_again(tmp_path):
  runs.train(tmp_path / 'run')
  folder, engine = runs.train(tmp_path / 'run')
  assert engine is None
  assert folder.read_result()['test']


def test_the_test_may_be_asked_for_later(tmp_path):
  config = fake_engine.make_run(final_test=False)
  folder, _ = runs.train(tmp_path / 'run', config)
  assert folder.read_result()['test'] is None
  assert folder.read_result()['validation']['loss']
  folder, engine = runs.train(tmp_path / 'run')
  assert engine.rounds_run == []
  assert folder.read_result()['test']['loss']


def test_epsilon_that_is_shown_is_never_less_than_spent(tmp_path):
  class Shown(loop.Callback):
    epsilons = {}

    def rounds(self, loop, metrics):
      self.epsilons[loop.done] = loop.epsilon_at(loop.done)

  runs.train(tmp_path / 'run', callbacks=[Shown()])
  spent = overview.spent(fake_engine.make_run().plan, range(11))
  assert all(Shown.epsilons[t] >= spent[t] > 0 for t in range(1, 11))
  assert Shown.epsilons[3] == pytest.approx(spent[3])


def test_without_dp_accounting_epsilon_is_left_empty(tmp_path, monkeypatch):
  monkeypatch.setattr(loop.overview, 'spent', lambda plan, rounds: None)
  folder, _ = runs.train(tmp_path / 'run')
  assert {row['epsilon'] for row in runs.rows(folder.path)} == {None}
  assert folder.read_result()['epsilon'] is None
