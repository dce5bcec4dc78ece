"""Rows of token ids: by hand, and as TFF's baseline makes them."""

from data_prep import encoding
import numpy as np
import pytest

_WORDS = ['the', 'a', 'cat']  # Ids 1, 2, 3; oov 4, bos 5, eos 6.


def _pad(*tokens):
  return [*tokens] + [0] * (21 - len(tokens))


@pytest.mark.parametrize(
  ('sentence', 'row'),
  [
    ('the cat', _pad(5, 1, 3, 6)),
    ('a dog', _pad(5, 2, 4, 6)),
    ('cat ' * 19, _pad(5, *[3] * 19, 6)),
    ('cat ' * 20, [5] + [3] * 20),
    ('cat ' * 25 + 'the', [5] + [3] * 20),
    ('  the\t cat ', _pad(5, 1, 3, 6)),
  ],
)
def test_by_hand(sentence, row):
  rows = encoding.Encoder(_WORDS).encode(['a', sentence])
  assert rows.dtype == np.uint16
  assert rows.tolist() == [_pad(5, 2, 6), row]


def test_no_sentences():
  assert encoding.Encoder(_WORDS).encode([]).shape == (0, 21)


@pytest.mark.parametrize('size', [0, 65_533])
def test_sizes_that_do_not_fit(size):
  with pytest.raises(ValueError, match=rf'vocabulary_size .* Found {size}'):
    encoding.Encoder([str(i) for i in range(size)])


def test_the_largest_vocabulary():
  encoder = encoding.Encoder([str(i) for i in range(65_532)])
  assert encoder.encode(['65531 x']).tolist() == [
    _pad(65534, 65532, 65533, 65535)
  ]


def test_agrees_with_tffs_baseline():
  import tensorflow as tf
  from tensorflow_federated.python.simulation.baselines.stackoverflow import (
    word_prediction_preprocessing as tff_preprocessing,
  )

  to_ids = tff_preprocessing.build_to_ids_fn(_WORDS, 20)
  sentences = ['the cat', 'a dog .', 'cat ' * 18 + 'a', 'cat ' * 19 + 'a', 'a']
  rows = encoding.Encoder(_WORDS).encode(sentences)
  for sentence, row in zip(sentences, rows, strict=True):
    theirs = to_ids({'tokens': tf.constant(sentence)}).numpy()
    assert row[: len(theirs)].tolist() == theirs.tolist()
    assert not row[len(theirs) :].any()


def test_unknown_words_are_counted():
  encoder = encoding.Encoder(['a', 'b'])
  assert encoder.count_words(encoder.encode(['a x b', 'b'])) == (4, 1)
  assert encoder.count_words(encoder.encode(['x ' * 30])) == (20, 20)
  assert encoder.count_words(encoder.encode([])) == (0, 0)
