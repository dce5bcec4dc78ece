"""Words, windows, and public text in private text's words."""

import lzma

import data_prep
from data_prep import sample_level
from data_prep.sample_level import wikitext
import numpy as np
import pytest


def _write(folder, **splits):
  folder.mkdir(parents=True, exist_ok=True)
  for split, text in splits.items():
    (folder / f'wiki.{split}.tokens').write_text(text, encoding='utf-8')


@pytest.fixture(name='folder')
def fixture_folder(tmp_path):
  _write(
    tmp_path / 'wikitext-2',
    train=' \n = a b = \n a b a <unk> c a b \n a a \n',
    valid='a b c d e\n',
    test='b b b b c\n',
  )
  return tmp_path


def test_most_frequent_words_by_hand():
  lines = [['a', 'a', 'b', 'c', '<unk>', '<unk>', '<unk>'], ['c', 'd']]
  assert wikitext.most_frequent_words(lines, 4) == ('<unk>', 'a', 'c', 'b')
  # A text without unknown words has one all the same.
  assert wikitext.most_frequent_words([['a', 'b', 'b']], 3) == (
    'b',
    'a',
    '<unk>',
  )
  with pytest.raises(ValueError, match='at most .*, 5. Found 6'):
    wikitext.most_frequent_words(lines, 6)


def test_windows_by_hand():
  ids = {'<unk>': 0, 'a': 1, 'b': 2}
  lines = [['a', 'b', 'x', 'a', 'b', 'b'], ['a', 'b'], [], ['b', 'a', 'b']]
  np.testing.assert_array_equal(
    wikitext.cut_sequences(lines, ids, length=2),
    [[1, 2, 0], [0, 1, 2], [2, 1, 2]],
  )
  assert wikitext.cut_sequences([['a']], ids, length=2).shape == (0, 3)


def test_load(folder):
  data = sample_level.load_wikitext(
    folder, vocabulary_size=4, sequence_length=2
  )
  assert data.vocabulary == ('a', 'b', '=', '<unk>')
  np.testing.assert_array_equal(
    data.train.inputs, [[2, 0], [0, 1], [0, 3], [3, 0]]
  )
  np.testing.assert_array_equal(
    data.train.targets, [[0, 1], [1, 0], [3, 3], [0, 1]]
  )
  assert len(data.validation) == 2
  assert len(data.test) == 2
  assert data.unit == 'sequence'
  assert 'not cover' in data.caveats[0]


def test_packed_text_is_the_same(folder):
  plain = sample_level.load_wikitext(folder, 4, 2)
  for path in (folder / 'wikitext-2').iterdir():
    content = lzma.compress(path.read_bytes())
    path.with_name(f'{path.name}.xz').write_bytes(content)
    path.unlink()
  assert sample_level.load_wikitext(folder, 4, 2).sha256 == plain.sha256
  path = folder / 'wikitext-2' / 'wiki.test.tokens.xz'
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(data_prep.SourceError, match='tokens.xz is truncated'):
    sample_level.load_wikitext(folder, 4, 2)


def test_bad_text(folder):
  with pytest.raises(ValueError, match='vocabulary_size must be at most'):
    sample_level.load_wikitext(folder)
  with pytest.raises(data_prep.SourceError, match='valid.*more than 5 words'):
    sample_level.load_wikitext(folder, 4, 5)
  (folder / 'wikitext-2' / 'wiki.test.tokens').write_bytes(b'\xff\xfe')
  with pytest.raises(data_prep.SourceError, match='wiki.test.tokens.*UTF-8'):
    sample_level.load_wikitext(folder, 4, 2)
  (folder / 'wikitext-2' / 'wiki.valid.tokens').unlink()
  with pytest.raises(data_prep.SourceError, match='valid.tokens is missing'):
    sample_level.load_wikitext(folder, 4, 2)


def test_public_text_is_in_private_words_without_overlaps(folder, tmp_path):
  data = sample_level.load_wikitext(
    folder, vocabulary_size=4, sequence_length=2
  )
  # Of a line of WikiText-2, of its test, and two of its own.
  other = tmp_path / 'other'
  _write(other, train='a b a <unk> c a b\nb b c\nb a b\nzebra = a\n')
  public = sample_level.load_public_text(other, data, 2, seed=0)
  np.testing.assert_array_equal(public.inputs, [[1, 0], [3, 2]])
  np.testing.assert_array_equal(public.targets, [[0, 1], [2, 0]])
  one = sample_level.load_public_text(
    other / 'wiki.train.tokens', data, 1, seed=3
  )
  assert len(one) == 1
  with pytest.raises(data_prep.SourceError, match='3 sequences.*Found 2'):
    sample_level.load_public_text(other, data, 3, seed=0)


def test_public_text_needs_private_text(tmp_path):
  images = sample_level.load_digits()
  with pytest.raises(ValueError, match="'digits', which has no words"):
    sample_level.load_public_text(tmp_path, images, 3, seed=0)
