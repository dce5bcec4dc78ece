"""Predictions of the program, and inputs that it refuses."""

import re

import numpy as np
from pda_fed import runs as runs_lib
from pda_fed.runs import model_files
import pytest

from tests.runs import saved_runs
from tests.scripts import programs


@pytest.fixture(name='runs', scope='module')
def fixture_runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs')
  kinds = ('lstm', 'language', 'linear', 'cnn')
  return {k: saved_runs.make_run(k, folder / k) for k in kinds}


def _predict(run, **settings):
  words = [f'--{name}={value}' for name, value in settings.items()]
  return programs.run('predict', f'--run={run}', *words)


def _softmax(logits):
  powers = np.exp(logits.astype(np.float64))
  return powers / powers.sum()


@pytest.mark.parametrize('kind', ['lstm', 'language'])
def test_next_words(runs, kind):
  model = runs_lib.load_model(runs[kind])
  known = [w for w in model.vocabulary[1:-3] if w != '<unk>'][:2]
  text = f'quux {known[0]} xyzzy quux {known[1]}'
  done = _predict(runs[kind], text=text, top=3)
  assert done.err == 'warning: The model does not know: quux, xyzzy.\n'
  unknown = '<oov>' if kind == 'lstm' else '<unk>'
  seen = f'{unknown} {known[0]} {unknown} {unknown} {known[1]}'
  first, _, header, _, *rows = done.out.splitlines()
  assert first == 'After: ' + ('<bos> ' if kind == 'lstm' else '') + seen
  assert header.split('  ') == ['next word', 'probability']
  tokens = [[model.vocabulary.index(w) for w in first.split()[1:]]]
  expected = _softmax(model.logits(np.array(tokens))[0, -1])
  best = np.argsort(-expected)[:3]
  assert [row.split()[0] for row in rows] == [model.vocabulary[i] for i in best]
  assert [float(row.split()[1]) for row in rows] == pytest.approx(
    100 * expected[best], abs=0.006
  )


def test_words_that_the_model_does_not_know(runs):
  done = _predict(runs['lstm'], text='quux xyzzy')
  assert (done.code, done.out) == (2, '')
  assert "Found 'quux xyzzy'" in done.error


def test_classes_of_an_npz_file_and_of_an_exported_model(runs, tmp_path):
  model = runs_lib.load_model(runs['cnn'])
  images = saved_runs.inputs_of('cnn', model.spec)
  np.savez(tmp_path / 'new.npz', x=images[..., 0], user=[1, 1, 2])
  output = _predict(runs['cnn'], input=tmp_path / 'new.npz', top=2).out
  header, _, *rows = output.splitlines()
  assert header.split() == ['row', 'class', 'probability', 'then']
  assert len(rows) == len(images) == 3
  for i, row in enumerate(rows):
    expected = _softmax(model.logits(images[i : i + 1])[0])
    best = np.argsort(-expected)
    number, first, p, then, q = re.fullmatch(
      r' *(\d) +(\d) +([\d.]+) % +(\d) \(([\d.]+) %\)', row
    ).groups()
    assert [int(number), int(first), int(then)] == [i, *best[:2]]
    assert [float(p), float(q)] == pytest.approx(
      100 * expected[best[:2]], abs=0.006
    )
  model_files.export_model(model, 'npz', tmp_path / 'model.npz')
  np.savez(tmp_path / 'test.npz', test_images=images)
  model = tmp_path / 'model.npz'
  again = _predict(model, input=tmp_path / 'test.npz', top=2)
  assert again.out == output


def test_classes_of_a_table(runs, tmp_path):
  model = runs_lib.load_model(runs['linear'])
  rows = np.array([[1, 2, 3, 4], [100, 0, 50, -20]], np.float32)
  (tmp_path / 'new.csv').write_text(
    'a,label,b,c,user,d\n1,9,2,3,ann,4\n\n100,9,0,50,bob,-20\n'
  )
  output = _predict(runs['linear'], input=tmp_path / 'new.csv', top=9).out
  found = [int(line.split()[1]) for line in output.splitlines()[2:]]
  assert found == model.logits(rows).argmax(axis=1).tolist()
  # Without labels and users as well.
  (tmp_path / 'bare.csv').write_text('a,b,c,d\n1,2,3,4\n100,0,50,-20\n')
  bare = _predict(runs['linear'], input=tmp_path / 'bare.csv', top=9)
  assert bare.out == output


@pytest.mark.parametrize(
  'content, words',
  [
    ('a,b\n1,2\n', r'\(examples, 4\)\. Found \(1, 2\)'),
    ('a,b,c,d\n1,2,3\n', 'line 2, must have 4 cells.*3 cells'),
    ('a,b,c,d\n1,2,3,4\n1,2,x,4\n', "line 3.*'x'"),
    ('', r'\(examples, 4\)\. Found \(0, 0\)'),
    ('a,b,c,d\n1,2,3,nan\n', 'finite'),
  ],
)
def test_tables_that_do_not_fit(runs, tmp_path, content, words):
  (tmp_path / 'new.csv').write_text(content)
  done = _predict(runs['linear'], input=tmp_path / 'new.csv')
  assert done.code == 2
  assert re.search(words, done.error)


def test_images_that_do_not_fit(runs, tmp_path):
  path = tmp_path / 'new.npz'
  for arrays, words in (
    ({'x': np.zeros((2, 9, 8, 1))}, '8, 8, 1). Found (2, 9, 8, 1)'),
    ({'y': np.zeros(2)}, 'must hold the array x'),
  ):
    np.savez(path, **arrays)
    done = _predict(runs['cnn'], input=path)
    assert done.code == 2
    assert words in done.error


@pytest.mark.parametrize(
  'kind, settings, message',
  [
    ('lstm', {}, 'one of --text and --input'),
    ('lstm', {'text': 'a', 'input': 'b.npz'}, 'one of --text and --input'),
    ('lstm', {'input': 'b.npz'}, '--text must be given'),
    ('cnn', {'text': 'how do i'}, '--input must be given'),
  ],
)
def test_flags_that_do_not_fit(runs, kind, settings, message):
  done = _predict(runs[kind], **settings)
  assert done.code == 2
  assert message in done.error


@pytest.mark.slow
def test_a_process_ends_with_one_line(runs):
  done = programs.start('predict', f'--run={runs["lstm"]}', '--text=quux')
  assert (done.code, done.out) == (2, '')
  assert done.err.startswith('error: text must contain a word')
  assert done.err.count('\n') == 1
