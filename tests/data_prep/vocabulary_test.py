"""The most frequent words."""

import collections

from data_prep import errors
from data_prep import vocabulary
import hypothesis
from hypothesis import strategies as st
import pytest


def test_ties_are_alphabetical(tmp_path):
  counter = vocabulary.WordCounter(tmp_path)
  counter.add({'ba': 2, 'c': 1, 'ab': 2})
  counter.add({'c': 2})
  assert counter.top(2) == ['c', 'ab']


@hypothesis.settings(
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
  st.lists(st.lists(st.sampled_from('abcdefgh')), max_size=20),
  st.integers(1, 10),
)
def test_little_memory_gives_the_same(tmp_path, texts, size):
  counter = vocabulary.WordCounter(tmp_path, max_in_memory=2)
  plain = collections.Counter()
  for words in texts:
    counter.add(collections.Counter(words))
    plain.update(words)
  expected = sorted(plain, key=lambda w: (-plain[w], w))
  assert counter.top(size) == expected[:size]
  assert not list(tmp_path.iterdir())


def test_each_origin_says_whether_it_is_covered():
  origins = set(vocabulary.Origin) - {vocabulary.Origin.AUTO}
  assert set(vocabulary.COVERAGE) == origins
  covered = {o: c for o, (c, _) in vocabulary.COVERAGE.items()}
  assert covered[vocabulary.Origin.PUBLIC] is True
  assert covered[vocabulary.Origin.TRAIN] is False
  assert covered[vocabulary.Origin.SOURCE] is False
  assert covered[vocabulary.Origin.FILE] is None


def test_files(tmp_path):
  path = tmp_path / 'words.txt'
  path.write_text('the\ncat\n')
  assert vocabulary.read_words(path) == ['the', 'cat']
  path.write_text('the 500\ncat 3\n')  # As TFF's word counts.
  assert vocabulary.read_words(path) == ['the', 'cat']


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    (b'the\n\ncat\n', 'line 2: must be a word'),
    (b'the cat\n', "line 1: .*Found 'the cat'"),
    (b'the 1 2\n', 'line 1: must be a word'),
    (b'the\ncat\nthe\n', "line 3: 'the' is already on line 1"),
    (b'caf\xe9\n', 'not UTF-8'),
  ],
)
def test_bad_files(tmp_path, content, words):
  (tmp_path / 'words.txt').write_bytes(content)
  with pytest.raises(errors.SourceError, match=f'words.txt.*{words}'):
    vocabulary.read_words(tmp_path / 'words.txt')


def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path):
  (tmp_path / 'words.txt').write_bytes(b'\xef\xbb\xbfthe\nof 3\n')
  assert vocabulary.read_words(tmp_path / 'words.txt') == ['the', 'of']


def test_missing_file(tmp_path):
  with pytest.raises(FileNotFoundError):
    vocabulary.read_words(tmp_path / 'words.txt')


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'size': 0}, 'vocabulary_size .* Found 0'),
    ({'size': 65_533}, 'vocabulary_size .* Found 65533'),
    ({'origin': vocabulary.Origin.FILE}, 'a file must be given'),
    ({'path': 'x'}, 'a file must be given'),
    ({'origin': vocabulary.Origin.GENERATOR}, "Found 'generator'"),
  ],
)
def test_bad_config(settings, words):
  with pytest.raises(ValueError, match=words):
    vocabulary.VocabularyConfig(**settings)


def test_without_a_size_all_words_up_to_the_papers():
  config = vocabulary.VocabularyConfig()
  assert config.take(['b', 'a'], 'here') == ['b', 'a']
  many = [str(i) for i in range(12_000)]
  assert config.take(many, 'here') == many[:10_000]
  with pytest.raises(ValueError, match='Found none in here'):
    config.take([], 'here')
  with pytest.raises(ValueError, match='at most 2, .* words of here. Found 3'):
    vocabulary.VocabularyConfig(size=3).take(['b', 'a'], 'here')
