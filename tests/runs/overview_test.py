import dataclasses
import io
import warnings

from pda_fed.runs import overview
from pda_fed.runs.callbacks import progress
import pytest

from tests import fake_engine
from tests.runs import runs

_CONFIG = fake_engine.make_run()


def test_what_a_run_is_about_to_do():
  lines = overview.describe(
    _CONFIG, 3.21051, sizes={'private': 1000, 'public': 5}, num_weights=2500
  )
  assert lines == [
    'PDA-DPMD on fake, engine jax',
    '  users     1,000 private, 5 public',
    '  rounds    10, each with about 10 of 1,000 private users',
    '  noise     sigma 1, clip 1; norm of the noise in the mean: 5 times the'
    ' clip',
    '  privacy   epsilon 3.211, delta 0.0001 for the whole run (user-level, add'
    ' or remove one user)',
  ]


@pytest.mark.parametrize(
  'seconds, text',
  [
    (0.01, 'about 1 s of'),
    (0.8, 'about 80 s of'),
    (6, 'about 10 minutes of'),
    (72, 'about 2.0 hours of'),
  ],
)
def test_time(seconds, text):
  assert text in overview.describe_time(seconds, 100)


@pytest.mark.parametrize(
  'noise, epsilon, num_weights, expected',
  [
    (1.0, 10.0, 10_000, []),
    (1.0, 10.1, 10_000, ['epsilon is 10.1, above 10']),
    (1.0, None, 10_201, ['10.1 times the norm of a clipped']),
    (0.0, float('inf'), 100, ['no differential privacy']),
  ],
)
def test_cautions(noise, epsilon, num_weights, expected):
  plan = dataclasses.replace(_CONFIG.plan, noise_multiplier=noise)
  found = overview.cautions(plan, epsilon, num_weights)
  assert len(found) == len(expected)
  for text, part in zip(found, expected, strict=True):
    assert part in text


def test_it_comes_before_the_first_round(tmp_path, capsys):
  shown = progress.PlainProgress(io.StringIO())
  config = fake_engine.make_run(rounds=30)
  _, engine = runs.train(tmp_path / 'run', config, progress=shown)
  said = capsys.readouterr().err
  assert said.index('privacy') < said.index('of training')
  # The rounds that are measured are those of the run.
  assert engine.rounds_run == list(range(30))
  runs.train(tmp_path / 'quiet', config)
  assert runs.rows(tmp_path / 'run') == runs.rows(tmp_path / 'quiet')


def test_a_short_run_is_not_measured(tmp_path):
  shown = progress.PlainProgress(io.StringIO())
  _, engine = runs.train(tmp_path / 'run', progress=shown)
  assert engine.rounds_run == list(range(10))


def test_a_run_without_noise_warns(tmp_path):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    runs.train(tmp_path / 'run', fake_engine.make_run(noise_multiplier=0.0))
  assert any('no differential privacy' in str(w.message) for w in caught)


def test_bars_know_a_width_where_the_terminal_does_not(monkeypatch):
  monkeypatch.setenv('COLUMNS', '0')
  assert progress.terminal_columns() >= 20
