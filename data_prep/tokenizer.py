"""Splits text into sentences of tokens, by TFF's documented rules.

They are listed in the documentation of
`tff.simulation.datasets.stackoverflow.load_data`: lower case; HTML symbols
unescaped; non-ASCII symbols removed; punctuation separated, except apostrophes
and hyphens; no extra white space; URLs replaced by a special token. Text is
first split into sentences: at line breaks, and where a closing mark is followed
by white space and a character that may start a sentence.
"""

import html
import re

URL = '<URL>'

_URL_PATTERN = re.compile(
  r"""<URL>|(?i:(?:https?|ftp)://|www\.)[^\s<>"']*[^\s<>"'.,;:!?()\[\]{}]"""
)
_MAY_HAVE_URL = re.compile(r'<URL>|://|(?i:www\.)')
# A mark, optional closing quotes or brackets, white space, and then anything
# but a lower-case letter: "e.g. this" is not split.
_SENTENCE_END = re.compile(r'(?<=[.!?])(["\')\]]*)\s+(?=[^a-z\s])')
_WHITE_SPACE = re.compile(r'\s')
_LINE_BREAK = re.compile(r'[\r\n]+')
_TOKEN = re.compile(r"<URL>|[a-z0-9'-]+|[!-~]")

# A tag, or a declaration. No part of the pattern matches beyond the next '<',
# so the time is linear in the text. Python's own parser is quadratic: a post of
# 30,000 characters, the maximum length, can take half a minute.
_TAG = re.compile(
  r"""<(?P<end>/?)(?P<name>[a-zA-Z][a-zA-Z0-9:-]{0,63})(?=[\s/>])
     (?:[^<>"']|"[^"<]*"|'[^'<]*')*>
     |<[!?][^<>]*>""",
  re.VERBOSE,
)

# Elements that end a line of text.
_BLOCKS = frozenset(
  'address article blockquote br dd div dl dt h1 h2 h3 h4 h5 h6 hr li ol p'
  ' section table td th tr ul'.split()
)
# Elements without text: code.
_DROPPED = frozenset(['pre', 'script', 'style'])


def _drop_comments(fragment: str) -> str:
  pieces = []
  start = 0
  while (begin := fragment.find('<!--', start)) >= 0:
    end = fragment.find('-->', begin + 4)
    if end < 0:
      break  # No later comment ends either.
    pieces.append(fragment[start:begin])
    start = end + 3
  return ''.join([*pieces, fragment[start:]])


def strip_html(fragment: str) -> str:
  """Returns the text of an HTML fragment.

  Returns:
    Its text, with HTML symbols unescaped and a line break where a block begins
    or ends. Code blocks (`<pre>`) are dropped; inline code is kept.
  """
  fragment = _drop_comments(fragment)
  pieces = []
  start = dropping = 0

  def add(text: str) -> None:
    if text and not dropping:
      # A line break in HTML is white space; blocks separate lines.
      pieces.append(_LINE_BREAK.sub(' ', html.unescape(text)))

  for tag in _TAG.finditer(fragment):
    add(fragment[start : tag.start()])
    start = tag.end()
    name = (tag['name'] or '').lower()
    if name in _DROPPED:
      dropping = max(0, dropping + (-1 if tag['end'] else 1))
    if name in _BLOCKS or name in _DROPPED:
      pieces.append('\n')
  add(fragment[start:])
  return ''.join(pieces)


def tokenize(sentence: str) -> list[str]:
  """Returns the tokens of a sentence."""
  if _MAY_HAVE_URL.search(sentence):
    # Only the URL token has capitals. Text that was tokenized before already
    # holds it.
    pieces = _URL_PATTERN.split(sentence)
    lowered = f' {URL} '.join(piece.lower() for piece in pieces)
  else:
    lowered = sentence.lower()
  if not lowered.isascii():
    lowered = _WHITE_SPACE.sub(
      ' ', lowered
    )  # Keeps words that a NBSP separates apart.
  ascii_only = lowered.encode('ascii', 'ignore').decode()
  return _TOKEN.findall(ascii_only)


def split_sentences(text: str) -> list[str]:
  """Splits text into sentences of tokens.

  Returns:
    The tokens of each sentence, separated by spaces. Sentences without a token
    are dropped.
  """
  return _split_unescaped(html.unescape(text))


def _split_unescaped(text: str) -> list[str]:
  sentences = []
  for line in _LINE_BREAK.split(text):
    start = 0
    for end in _SENTENCE_END.finditer(line):
      # The closing quote belongs to the sentence that it closes.
      sentences.append(line[start : end.end(1)])
      start = end.end()
    sentences.append(line[start:])
  return [' '.join(tokens) for s in sentences if (tokens := tokenize(s))]


def split_html(fragment: str) -> list[str]:
  """Splits an HTML fragment into sentences of tokens, without code blocks."""
  # `strip_html` has unescaped the text. Doing so twice would change '&amp;lt;'.
  return _split_unescaped(strip_html(fragment))
