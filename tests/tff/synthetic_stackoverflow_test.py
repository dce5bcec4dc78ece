import numpy as np
from pda_fed import models
from pda_fed import tff as pda_tff
import pytest


def test_sentences_are_framed_and_padded():
  users = pda_tff.load_synthetic_stackoverflow(3, 5, seed=1)
  spec = models.RecurrentSpec(num_words=len(users.vocabulary))
  assert [s.shape for s in users.sentences] == [(5, 21)] * 3
  for row in np.concatenate(users.sentences):
    assert row[0] == spec.bos
    words = row[1:]
    end = np.flatnonzero(words == spec.eos)
    if end.size:  # A sentence of 20 words or more has no room for eos.
      assert (words[end[0] + 1 :] == spec.pad).all()
      assert (
        (words[: end[0]] >= 1) & (words[: end[0]] <= spec.num_words)
      ).all()


def test_known_sentence():
  users = pda_tff.load_synthetic_stackoverflow(20, 16)
  words = dict(enumerate(users.vocabulary, start=1))
  texts = {
    ' '.join(words[i] for i in row if i in words)
    for row in np.concatenate(users.sentences)
  }
  assert 'the spec is available here .' in texts
  assert len(texts) == 7  # Two of the eight sentences are the same.


def test_seed_decides():
  first, again, other = (
    pda_tff.load_synthetic_stackoverflow(4, seed=s) for s in (0, 0, 1)
  )
  np.testing.assert_array_equal(first.sentences, again.sentences)
  assert not np.array_equal(first.sentences, other.sentences)


@pytest.mark.parametrize('arguments', [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_bad_input(arguments):
  with pytest.raises(ValueError):
    pda_tff.load_synthetic_stackoverflow(*arguments)
