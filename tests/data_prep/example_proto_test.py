"""The hand-written parser against hand-written bytes and TensorFlow's."""

from data_prep import example_proto
import hypothesis
from hypothesis import strategies as st
import pytest


def test_parses_by_hand():
  example = b'\x0a\x13\x0a\x11\x0a\x06tokens\x12\x07\x0a\x05\x0a\x03a b'
  assert example_proto.parse_tokens(example) == b'a b'
  assert example_proto.encode_tokens(b'a b') == example


@pytest.mark.parametrize('size', [0, 1, 121, 122, 123, 124, 127, 128, 20_000])
def test_round_trip_where_lengths_grow(size):
  encoded = example_proto.encode_tokens(b'x' * size)
  assert example_proto.parse_tokens(encoded) == b'x' * size


def test_the_key_within_a_text_does_not_mislead():
  tricky = b'say \x0a\x06tokens\x12\x07\x0a\x05\x0a\x03no!'
  with pytest.raises(ValueError, match='not an example with one tokens'):
    example_proto.parse_tokens(example_proto.encode_tokens(tricky))


@hypothesis.given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(data):
  try:
    assert isinstance(example_proto.parse_tokens(data), bytes)
  except ValueError:
    pass


@pytest.mark.parametrize('size', [3, 200])
@pytest.mark.parametrize('cut', range(1, 18))
def test_truncated_is_refused(cut, size):
  example = example_proto.encode_tokens(b'a' * size)
  with pytest.raises(ValueError, match='tokens feature'):
    example_proto.parse_tokens(example[:-cut])


def test_agrees_with_tensorflow():
  import tensorflow as tf

  def feature(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

  for tokens in (b'', b'short .', b'long ' * 100):
    example = tf.train.Example()
    example.features.feature['title'].CopyFrom(feature(b'tokens'))
    example.features.feature['tokens'].CopyFrom(feature(tokens))
    example.features.feature['score'].int64_list.value.append(-3)
    serialized = example.SerializeToString()
    assert example_proto.parse_tokens(serialized) == tokens
    ours = tf.train.Example.FromString(example_proto.encode_tokens(tokens))
    (feature_of_ours,) = ours.features.feature.items()
    assert feature_of_ours == ('tokens', feature(tokens))
  two = tf.train.Example()
  two.features.feature['tokens'].bytes_list.value.extend([b'a', b'b'])
  with pytest.raises(ValueError, match='not an example'):
    example_proto.parse_tokens(two.SerializeToString())
