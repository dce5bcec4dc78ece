"""The most frequent words."""

import collections

from data_prep import errors
from data_prep import vocabulary
import hypothesis
from hypothesis import strategies as st
import pytest


@hypothesis.settings(
  max_examples=30,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  st.lists(st.lists(st.sampled_from(['a', 'ba', 'é', 'z', '\0z', '\0']))),
  st.integers(1, 10),
  st.sampled_from([2, 1000]),
)
def test_most_frequent_words(tmp_path, texts, size, max_in_memory):
  counter = vocabulary.WordCounter(tmp_path, max_in_memory)
  plain = collections.Counter()
  for words in texts:
    counter.add(collections.Counter(words))
    plain.update(words)
  # Ties are alphabetical.
  expected = sorted(plain, key=lambda w: (-plain[w], w))
  assert counter.top(size) == expected[:size]
  assert not list(tmp_path.iterdir())


def test_a_full_disk(tmp_path):
  counter = vocabulary.WordCounter(tmp_path)
  counter._database.execute('PRAGMA max_page_count = 2')
  counter.add({f'word{i}': 1 for i in range(10_000)})
  with pytest.raises(errors.SourceError, match='full'):
    counter.top(3)


def test_each_origin_says_whether_it_is_covered():
  covered = {origin: of for origin, (of, _) in vocabulary.COVERAGE.items()}
  assert covered == {
    'source': False,
    'generator': True,
    'public': True,
    'train': False,
    'file': None,
  }


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'size': 0}, 'vocabulary_size .* Found 0'),
    ({'size': 65_533}, 'vocabulary_size .* Found 65533'),
    *(
      (
        {'origin': origin},
        f'vocabulary must have the origin auto, .* {origin!r}',
      )
      for origin in ('file', 'file:', 'generator', 'source:x', None)
    ),
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
