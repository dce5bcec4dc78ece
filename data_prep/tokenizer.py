"""Raw text to sentences of tokens, by the rules that TFF documents.

The documentation of `tff.simulation.datasets.stackoverflow.load_data` lists
them: lower case; HTML symbols unescaped; symbols that are not ASCII removed;
punctuation apart, except apostrophes and hyphens; no extraneous white space;
URLs replaced by a special token. Text is split into sentences first, where a
mark that ends one is followed by white space and something that may begin one,
and at line breaks.
"""

import html
from html import parser
import re

URL = '<URL>'

_URL_PATTERN = re.compile(
  r"""<URL>|(?i:(?:https?|ftp)://|www\.)[^\s<>"']*[^\s<>"'.,;:!?()\[\]{}]"""
)
_MAY_HAVE_URL = re.compile(r'<URL>|://|(?i:www\.)')
# A mark, perhaps a closing quote or bracket, white space, and then something
# other than a small letter: "e.g. this" goes on.
_SENTENCE_END = re.compile(r'(?<=[.!?])(["\')\]]*)\s+(?=[^a-z\s])')
_WHITE_SPACE = re.compile(r'\s')
_LINE_BREAK = re.compile(r'[\r\n]+')
_TOKEN = re.compile(r"<URL>|[a-z0-9'-]+|[!-~]")

# Elements that end a line of text, and such as hold code.
_BLOCKS = frozenset(
  'address article blockquote br dd div dl dt h1 h2 h3 h4 h5 h6 hr li ol p'
  ' section table td th tr ul'.split()
)
_DROPPED = frozenset(['pre', 'script', 'style'])


class _TextExtractor(parser.HTMLParser):
  """Collects the text of an HTML fragment, without its code blocks."""

  def __init__(self):
    super().__init__(convert_charrefs=True)
    self.pieces: list[str] = []
    self._dropping = 0

  def handle_starttag(self, tag, attrs):
    if tag in _DROPPED:
      self._dropping += 1
    if tag in _BLOCKS or tag in _DROPPED:
      self.pieces.append('\n')

  def handle_endtag(self, tag):
    if tag in _DROPPED and self._dropping:
      self._dropping -= 1
    if tag in _BLOCKS or tag in _DROPPED:
      self.pieces.append('\n')

  def handle_data(self, data):
    if not self._dropping:
      # A line break in HTML is white space; sentences end with elements.
      self.pieces.append(data.replace('\n', ' ').replace('\r', ' '))


def strip_html(fragment: str) -> str:
  """Returns the text of an HTML fragment.

  Args:
    fragment: HTML, well-formed or not.

  Returns:
    Its text, with a line break where a block begins or ends. Code blocks
    (`<pre>`) are left out; code within a line stays.
  """
  extractor = _TextExtractor()
  extractor.feed(fragment)
  extractor.close()
  return ''.join(extractor.pieces)


def tokenize(sentence: str) -> list[str]:
  """Returns the tokens of a sentence.

  Args:
    sentence: Any text.
  """
  if _MAY_HAVE_URL.search(sentence):
    # Only the URL token has capitals, so that nothing else can pose as it.
    pieces = _URL_PATTERN.split(sentence)
    lowered = f' {URL} '.join(piece.lower() for piece in pieces)
  else:
    lowered = sentence.lower()
  if not lowered.isascii():
    lowered = _WHITE_SPACE.sub(' ', lowered)  # Or NBSP would join two words.
  ascii_only = lowered.encode('ascii', 'ignore').decode()
  return _TOKEN.findall(ascii_only)


def split_sentences(text: str) -> list[str]:
  """Splits text into sentences of tokens.

  Args:
    text: Plain text, in which HTML symbols may be escaped.

  Returns:
    For each sentence with a token its tokens, separated by blanks.
  """
  sentences = []
  for line in _LINE_BREAK.split(html.unescape(text)):
    start = 0
    for end in _SENTENCE_END.finditer(line):
      # The closing quote belongs to the sentence that it closes.
      sentences.append(line[start : end.end(1)])
      start = end.end()
    sentences.append(line[start:])
  return [' '.join(tokens) for s in sentences if (tokens := tokenize(s))]


def split_html(fragment: str) -> list[str]:
  """Splits an HTML fragment into sentences of tokens, without code blocks."""
  return split_sentences(strip_html(fragment))
