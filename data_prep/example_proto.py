"""Parses the `tokens` feature of a tf.train.Example without TensorFlow.

The StackOverflow database holds one such message per sentence, and most of the
reading time goes into parsing them. An Example is

    features { feature { key: "tokens"
                         value { bytes_list { value: "a sentence ." } } } ... }

All of its parts are length-delimited fields: a tag byte, a varint, a body.
"""

_FIELD_1 = 0x0A  # Number 1, length-delimited; field 2 is 0x12.
_FIELD_2 = 0x12
_KEY = b'\x0a\x06tokens\x12'


def _varint(data: bytes, at: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    byte = data[at]
    at += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, at
    shift += 7


def _fields(data: bytes) -> dict[int, list[bytes]]:
  """Returns the length-delimited fields of a message by tag."""
  fields: dict[int, list[bytes]] = {}
  at = 0
  while at < len(data):
    tag = data[at]
    size, start = _varint(data, at + 1)
    at = start + size
    if tag & 7 != 2 or at > len(data):
      raise ValueError('not a message of length-delimited fields')
    fields.setdefault(tag, []).append(data[start:at])
  return fields


def _only(fields: dict[int, list[bytes]], tag: int) -> bytes:
  values = fields.get(tag, [])
  if len(values) != 1:
    raise ValueError('not a single value')
  return values[0]


def _parse_by_the_book(example: bytes) -> bytes:
  for features in _fields(example).get(_FIELD_1, []):
    for entry in _fields(features).get(_FIELD_1, []):
      fields = _fields(entry)
      if _only(fields, _FIELD_1) == b'tokens':
        feature = _fields(_only(fields, _FIELD_2))
        return _only(_fields(_only(feature, _FIELD_1)), _FIELD_1)
  raise ValueError('no feature named tokens')


def parse_tokens(example: bytes) -> bytes:
  """Returns the value of the `tokens` feature.

  Args:
    example: A serialized tf.train.Example.

  Raises:
    ValueError: If it is not an Example with exactly one `tokens` value.
  """
  # Fast path: the key occurs once, followed by three nested lengths of one or
  # two bytes that fit together. This is the innermost loop of reading
  # StackOverflow, so it makes no calls.
  at = example.find(_KEY)
  try:
    if at >= 0 and example.find(_KEY, at + 9) < 0:
      if example[at + 9] < 0x80:
        outer, tag, inner, inner_tag, size = example[at + 9 : at + 14]
        start, width = at + 14, 1
      else:
        low, high, tag, low_2, high_2, inner_tag, size = example[
          at + 9 : at + 16
        ]
        start, width = at + 16, 1
        outer = (low & 0x7F) | high << 7
        inner = (low_2 & 0x7F) | high_2 << 7
        if size >= 0x80:
          size = (size & 0x7F) | example[start] << 7
          start, width = start + 1, 2
      end = start + size
      if (
        tag == inner_tag == _FIELD_1
        and inner == size + width + 1
        and outer == inner + 1 + (1 if inner < 0x80 else 2)
        and end <= len(example)
      ):
        return example[start:end]
    return _parse_by_the_book(example)
  except (IndexError, ValueError) as e:
    raise ValueError(f'not an example with one tokens feature: {e}') from e


def _field(tag: int, body: bytes) -> bytes:
  size = len(body)
  encoded = bytearray([tag])
  while size >= 0x80:
    encoded.append(size & 0x7F | 0x80)
    size >>= 7
  encoded.append(size)
  return bytes(encoded) + body


def _bytes_entry(key: bytes, value: bytes) -> bytes:
  feature = _field(_FIELD_1, _field(_FIELD_1, value))
  return _field(_FIELD_1, _field(_FIELD_1, key) + _field(_FIELD_2, feature))


# The other features that TFF's loader requires. The score is an int64_list
# (field 3) with the packed value 0.
_OTHER_FEATURES = b''.join(
  [
    _bytes_entry(b'creation_date', b'1970-01-01 00:00:00 UTC'),
    _field(
      _FIELD_1,
      _field(_FIELD_1, b'score')
      + _field(_FIELD_2, _field(0x1A, _field(_FIELD_1, b'\x00'))),
    ),
    _bytes_entry(b'tags', b''),
    _bytes_entry(b'title', b''),
    _bytes_entry(b'type', b'question'),
  ]
)


def encode_tokens(tokens: bytes, *, all_features: bool = True) -> bytes:
  """Returns a serialized tf.train.Example with the `tokens` feature.

  Args:
    tokens: The sentence, with tokens separated by spaces.
    all_features: Whether to add the other features of TFF's StackOverflow data,
      with empty values. TFF's loader requires them.
  """
  entry = _bytes_entry(b'tokens', tokens)
  return _field(_FIELD_1, _OTHER_FEATURES + entry if all_features else entry)
