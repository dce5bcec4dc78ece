"""The generator: the same text always, and text that can be learnt."""

import hashlib
import pickle

from data_prep.sources import synthetic
import pytest

_FIRST = 'mido dupu desa vabe vibe pulu koli .'
_SHA256 = '504fb6ee4b20d3f9e5c771abe13ea33cf06849d192a1e4f4e619d623f9c8c233'


def _source(**settings):
  return synthetic.SyntheticSource(synthetic.SyntheticConfig(**settings))


def _text(source, num_users=None):
  users = source.users('train')
  return [
    source.sentences(user, 'train', 0, int(count))
    for user, count in list(zip(users.ids, users.num_sentences, strict=True))[
      :num_users
    ]
  ]


def _digest(text):
  return hashlib.sha256('\n'.join(s for u in text for s in u).encode())


def test_text_is_pinned():
  # Recorded from the first version: other text would silently change results.
  text = _text(_source(num_users=12))
  assert text[0][0] == _FIRST
  assert _digest(text).hexdigest() == _SHA256


def test_a_user_depends_on_the_seed_and_nothing_else():
  few, many = _source(num_users=3), _source(num_users=300)
  assert _text(few) == _text(many, 3)
  assert _text(few) == _text(pickle.loads(pickle.dumps(few)))
  assert _text(few) != _text(_source(num_users=3, seed=1))
  user = few.users('train').ids[2]
  assert few.sentences(user, 'train', 5, 9) == _text(many, 3)[2][5:9]


def test_words_are_unique_and_frequent_ones_short():
  words = [synthetic.make_word(rank) for rank in range(12_000)]
  assert len(set(words)) == 12_000
  assert [len(word) for word in words] == sorted(len(word) for word in words)
  assert _source().ranked_words(3) == ['.', '?', words[0]]


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'num_users': 0}, 'num_users .* Found 0'),
    ({'seed': -1}, 'seed .* Found -1'),
    ({'num_words': 5}, 'num_words .* Found 5'),
  ],
)
def test_bad_config(settings, words):
  with pytest.raises(ValueError, match=words):
    synthetic.SyntheticConfig(**settings)
