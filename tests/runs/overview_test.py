import dataclasses
import io
import re
import warnings

from pda_fed import runs as runs_lib
from pda_fed.runs import overview
from pda_fed.runs.callbacks import progress
import pytest

from tests import fake_engine
from tests.runs import runs

_CONFIG = fake_engine.make_run()


def test_what_a_run_is_about_to_do():
  lines = overview.describe(_CONFIG, 3.21051, 2500)
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


def _shown(folder, config, **options):
  stream = io.StringIO()
  shown = runs_lib.Progress(stream=stream, **options)
  runs.train(folder, config, callbacks=[shown])
  return stream.getvalue()


def test_it_comes_before_the_first_round(tmp_path):
  said = _shown(tmp_path / 'run', _CONFIG).splitlines()
  assert said[0] == 'PDA-DPMD on fake, engine jax'
  assert said[5:8] == [
    'pre-training, epoch 1: held-out loss 1.0000',
    'pre-training, epoch 2: held-out loss 0.5000',
    'pre-training, epoch 3: held-out loss 0.3333',
  ]
  assert [n.split(',')[0] for n in said[8:]] == [
    f'round {t}/10' for t in (0, 3, 6, 9, 10)
  ]
  assert re.search(r'round 10/10, .*, alpha .*s/round, ETA 00:00$', said[-1])


def test_lines_between_evaluations_show_no_older_validation(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(progress, '_SECONDS_PER_LINE', 0.0)
  *_, before, evaluated = _shown(tmp_path / 'run', _CONFIG).splitlines()
  for text in (before, evaluated):
    assert 'round 10/10, train loss' in text
    assert 'epsilon so far at most' in text
  assert 'accuracy' in evaluated
  assert 'accuracy' not in before


def test_a_terminal_has_a_bar(tmp_path):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  stream = Terminal()
  shown = runs_lib.Progress(stream=stream)
  runs.train(tmp_path / 'run', callbacks=[shown])
  assert '10/10' in stream.getvalue() and '\r' in stream.getvalue()


def test_a_run_without_noise_warns(tmp_path):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    config = fake_engine.make_run(noise_multiplier=0.0)
    _shown(tmp_path / 'run', config, cautions=['Of the caller.'])
  said = [str(w.message) for w in caught]
  assert 'Of the caller.' in said
  assert any('no differential privacy' in text for text in said)


def test_bars_know_a_width_where_the_terminal_does_not(monkeypatch):
  monkeypatch.setenv('COLUMNS', '0')
  assert progress.terminal_columns() >= 20
