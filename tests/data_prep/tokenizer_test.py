"""The rules that TFF documents, and what holds for any text."""

import re

from data_prep import tokenizer
import hypothesis
from hypothesis import strategies as st
import pytest


@pytest.mark.parametrize(
  ('text', 'tokens'),
  [
    ('Hello World', 'hello world'),
    ('a,b;c', 'a , b ; c'),
    ("don't re-use it!", "don't re-use it !"),
    ('  a \t b  ', 'a b'),
    ('café costs 5€', 'caf costs 5'),
    ('see http://a.example/x?y=1.', 'see <URL> .'),
    ('(https://a.example/x), ok', '( <URL> ) , ok'),
    ('at WWW.Example.org now', 'at <URL> now'),
    ('a <URL> of mine', 'a <URL> of mine'),
    ('<url>', '< url >'),
    ('snake_case = x+1', 'snake _ case = x + 1'),
    ('null\x00byte\x7f', 'null byte'),
    ('öäü', ''),
    ('a\xa0b\u2028c\u3000d\x85e', 'a b c d e'),
    ('', ''),
  ],
)
def test_tokens_by_hand(text, tokens):
  assert ' '.join(tokenizer.tokenize(text)) == tokens


@pytest.mark.parametrize(
  ('text', 'sentences'),
  [
    ('One. Two? Three!', ['one .', 'two ?', 'three !']),
    ('Use e.g. this one. Fine', ['use e . g . this one .', 'fine']),
    ('He said "Stop." Then he left.', ['he said " stop . "', 'then he left .']),
    ('Version 1.5 is out', ['version 1 . 5 is out']),
    ('first line\nsecond line', ['first line', 'second line']),
    ('a &lt; b &amp;&amp; c', ['a < b & & c']),
    ('...\n\n\u2603', ['. . .']),
    ('See http://a.example. Then go.', ['see <URL> .', 'then go .']),
    ('', []),
  ],
)
def test_sentences_by_hand(text, sentences):
  assert tokenizer.split_sentences(text) == sentences


@pytest.mark.parametrize(
  ('fragment', 'sentences'),
  [
    (
      '<p>Try <code>ls -l</code> first.</p>\n<pre><code>x = 1\n</code></pre>'
      '<p>It\nworks.</p>',
      ['try ls -l first .', 'it works .'],
    ),
    ('<ul><li>one</li><li>two</li></ul>', ['one', 'two']),
    ('a<br>b', ['a', 'b']),
    ('<a href="http://a.example">here</a> &gt; there', ['here > there']),
    ('<p>unclosed <b>bold', ['unclosed bold']),
    ('<pre>all code', []),
    ('a < b', ['a < b']),
    ('</pre> stray end', ['stray end']),
    ('<script>f()</script><p>Text</p>', ['text']),
    ('write &amp;lt; for &lt;', ['write & lt ; for <']),
    ('&lt;p&gt;a&lt;br&gt;b', ['< p > a < br > b']),
    ('a&#10;b', ['a b']),
    ('<img alt="a > b" src=\'x>\'/>c', ['c']),
    ('a <!-- b <p> --> c <!-- d', ['a c < ! -- d']),
    ('<!DOCTYPE html><?xml?><P CLASS=x>a</P >b', ['a', 'b']),
    ('<blink/>a</blink>', ['a']),
    ('x<5 and 6>z, < y', ['x < 5 and 6 > z , < y']),
    ('<pre>a<pre>b</pre>c</pre>d', ['d']),
  ],
)
def test_html_by_hand(fragment, sentences):
  assert tokenizer.split_html(fragment) == sentences


_FEW = hypothesis.settings(max_examples=50)
_PIECES = [*'aZ9.!?"\' \n<>-/:&;_é', 'http://', 'www.', '&lt;', '<URL>', 'Ab. ']
_TEXT = st.text(max_size=200) | st.lists(
  st.sampled_from(_PIECES), max_size=40
).map(''.join)


@_FEW
@hypothesis.given(_TEXT)
def test_any_text(text):
  tokenizer.split_html(text)
  for sentence in tokenizer.split_sentences(text):
    assert sentence
    assert sentence.isascii()
    tokens = sentence.split(' ')
    for token in tokens:
      assert re.fullmatch(r"<URL>|[a-z0-9'-]+|[!-/:-@\[-`{-~]", token), token
    # What is tokenized stays as it is.
    assert tokenizer.tokenize(sentence) == tokens


@_FEW
@hypothesis.given(_TEXT)
def test_splitting_loses_no_token(text):
  # A URL may end with a sentence's mark, so only without URLs.
  hypothesis.assume('://' not in text and 'www.' not in text.lower())
  hypothesis.assume('&' not in text)
  pieces = [t for s in tokenizer.split_sentences(text) for t in s.split()]
  whole = tokenizer.tokenize(text)
  assert ''.join(pieces) == ''.join(whole)


@pytest.mark.parametrize(
  'piece',
  ['<a ', '<a "', "<a '<b ", '<!--', '<!', '</a', '<a "" ', '<a b=">" ', '<?'],
)
def test_malformed_html_takes_linear_time(piece):
  # Python's parser would need hours for these.
  for text in (piece * 100_000, '<a' + piece[1:] * 100_000):
    tokenizer.strip_html(text)


@pytest.mark.parametrize('piece', [' ', '\n', '.', '"', '&', '<', 'a', 'www.'])
def test_long_runs_of_a_character_do_not_take_for_ever(piece):
  # A pattern that backtracks would need hours for these.
  for text in (piece * 200_000, '.' + piece * 200_000 + 'a'):
    tokenizer.split_sentences(text)
  tokenizer.split_html(piece * 20_000)
