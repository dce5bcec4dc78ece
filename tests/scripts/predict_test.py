"""Predictions of the program, and inputs that it refuses."""

import re

from absl import flags
from absl.testing import flagsaver
from data_prep import errors
import numpy as np
from pda_fed import runs as runs_lib
from pda_fed.runs import exports
import pytest
from scripts import predict as script

from tests.runs import saved_runs
from tests.scripts import programs


@pytest.fixture(autouse=True)
def parsed_flags():
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['predict'])


@pytest.fixture(name='runs', scope='module')
def fixture_runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs')
  kinds = ('lstm', 'language', 'linear', 'cnn')
  return {k: saved_runs.make_run(k, folder / k) for k in kinds}


def _run(capsys, run, **settings):
  with flagsaver.flagsaver(run=str(run), **settings):
    script.main()
  return capsys.readouterr().out


def _softmax(logits):
  powers = np.exp(logits.astype(np.float64))
  return powers / powers.sum()


@pytest.mark.parametrize('kind', ['lstm', 'language'])
def test_next_words(capsys, runs, kind):
  model = runs_lib.load_model(runs[kind])
  known = [w for w in model.vocabulary[1:-3] if w != '<unk>'][:2]
  with pytest.warns(UserWarning, match='does not know: quux, xyzzy'):
    output = _run(
      capsys, runs[kind], text=f'quux {known[0]} xyzzy quux {known[1]}', top=3
    )
  unknown = '<oov>' if kind == 'lstm' else '<unk>'
  seen = f'{unknown} {known[0]} {unknown} {unknown} {known[1]}'
  first, _, header, _, *rows = output.splitlines()
  assert first == 'After: ' + ('<bos> ' if kind == 'lstm' else '') + seen
  assert header.split('  ') == ['next word', 'probability']
  tokens = [[model.vocabulary.index(w) for w in first.split()[1:]]]
  expected = _softmax(model.logits(np.array(tokens))[0, -1])
  best = np.argsort(-expected)[:3]
  assert [row.split()[0] for row in rows] == [model.vocabulary[i] for i in best]
  assert [float(row.split()[1]) for row in rows] == pytest.approx(
    100 * expected[best], abs=0.006
  )


def test_words_that_the_model_does_not_know(capsys, runs):
  with pytest.raises(ValueError) as error:
    _run(capsys, runs['lstm'], text='quux xyzzy')
  assert "Found 'quux xyzzy'" in str(error.value)
  assert '\n' not in str(error.value)


def test_classes_of_an_npz_file_and_of_an_exported_model(
  capsys, runs, tmp_path
):
  model = runs_lib.load_model(runs['cnn'])
  images = saved_runs.inputs_of('cnn', model.spec)
  np.savez(tmp_path / 'new.npz', x=images[..., 0], user=[1, 1, 2])
  output = _run(capsys, runs['cnn'], input=str(tmp_path / 'new.npz'), top=2)
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
  exports.export_model(model, 'npz', tmp_path / 'model.npz')
  np.savez(tmp_path / 'test.npz', test_images=images)
  again = _run(
    capsys, tmp_path / 'model.npz', input=str(tmp_path / 'test.npz'), top=2
  )
  assert again == output


def test_classes_of_a_table(capsys, runs, tmp_path):
  model = runs_lib.load_model(runs['linear'])
  rows = np.array([[1, 2, 3, 4], [100, 0, 50, -20]], np.float32)
  (tmp_path / 'new.csv').write_text(
    'a,label,b,c,user,d\n1,9,2,3,ann,4\n\n100,9,0,50,bob,-20\n'
  )
  output = _run(capsys, runs['linear'], input=str(tmp_path / 'new.csv'), top=9)
  found = [int(line.split()[1]) for line in output.splitlines()[2:]]
  assert found == model.logits(rows).argmax(axis=1).tolist()
  # Without labels and users as well.
  (tmp_path / 'bare.csv').write_text('a,b,c,d\n1,2,3,4\n100,0,50,-20\n')
  bare = _run(capsys, runs['linear'], input=str(tmp_path / 'bare.csv'), top=9)
  assert bare == output


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
def test_tables_that_do_not_fit(capsys, runs, tmp_path, content, words):
  (tmp_path / 'new.csv').write_text(content)
  with pytest.raises((ValueError, errors.SourceError), match=words):
    _run(capsys, runs['linear'], input=str(tmp_path / 'new.csv'))


def test_images_that_do_not_fit(capsys, runs, tmp_path):
  path = tmp_path / 'new.npz'
  np.savez(path, x=np.zeros((2, 9, 8, 1)))
  with pytest.raises(ValueError, match=r'8, 8, 1\)\. Found \(2, 9, 8, 1\)'):
    _run(capsys, runs['cnn'], input=str(path))
  np.savez(path, y=np.zeros(2))
  with pytest.raises(errors.SourceError, match='must hold the array x'):
    _run(capsys, runs['cnn'], input=str(path))


def test_flags_that_do_not_fit(capsys, runs):
  for settings in ({}, {'text': 'a', 'input': 'b.npz'}):
    with pytest.raises(ValueError, match='one of --text and --input'):
      _run(capsys, runs['lstm'], **settings)
  with pytest.raises(ValueError, match='--text must be given'):
    _run(capsys, runs['lstm'], input='b.npz')
  with pytest.raises(ValueError, match='--input must be given'):
    _run(capsys, runs['cnn'], text='how do i')


@pytest.mark.slow
def test_the_program_ends_with_one_line(runs):
  done = programs.run('predict', f'--run={runs["lstm"]}', '--text=quux')
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr.startswith('error: text must contain a word')
  assert done.stderr.count('\n') == 1
