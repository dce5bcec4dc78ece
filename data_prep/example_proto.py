"""Parses the `tokens` feature of a tf.train.Example without TensorFlow.

The StackOverflow database holds one such message per sentence, and most of the
reading time goes into parsing them. An Example is

    features { feature { key: "tokens"
                         value { bytes_list { value: "a sentence ." } } } ... }

All of its parts are length-delimited fields: a tag byte, a varint, a body.
"""

import re

_FIELD_1 = 0x0A  # Number 1, length-delimited; field 2 is 0x12.
_FIELD_2 = 0x12
_KEY = b'\x0a\x06tokens\x12'
# The key, and the tags and lengths of feature, bytes_list and value.
_START = re.compile(
  _KEY + rb'([\x80-\xff]*.)\x0a([\x80-\xff]*.)\x0a([\x80-\xff]*.)', re.DOTALL
)


def _varint(data: bytes) -> int:
  if len(data) == 1:  # Most lengths; this is an inner loop.
    return data[0]
  return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(data))


def parse_tokens(example: bytes) -> bytes:
  """Returns the value of the `tokens` feature.

  Raises:
    ValueError: If it is not an Example with exactly one `tokens` value.
  """
  start = _START.search(example)
  if start and example.count(_KEY) == 1:
    outer, inner, size = map(_varint, start.groups())
    begin, end = start.end(), start.end() + size
    fits = inner == end - start.end(2) and outer == end - start.end(1)
    if fits and end <= len(example):
      return example[begin:end]
  raise ValueError('not an example with one tokens feature')


def _field(tag: int, body: bytes) -> bytes:
  size = len(body)
  encoded = bytearray([tag])
  while size >= 0x80:
    encoded.append(size & 0x7F | 0x80)
    size >>= 7
  encoded.append(size)
  return bytes(encoded) + body


def encode_tokens(tokens: bytes) -> bytes:
  """Returns a serialized tf.train.Example with the `tokens` feature alone."""
  feature = _field(_FIELD_1, _field(_FIELD_1, tokens))
  entry = _field(_FIELD_1, b'tokens') + _field(_FIELD_2, feature)
  return _field(_FIELD_1, _field(_FIELD_1, entry))
