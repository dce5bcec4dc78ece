"""Reads the project's pages: their blocks of code, links and headings."""

import dataclasses
import json
import pathlib
import re
import shlex
from typing import Optional

ROOT = pathlib.Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / 'docs/tutorials').glob('*.ipynb'))
MARKDOWN = [
  ROOT / 'README.md',
  ROOT / 'CHANGELOG.md',
  ROOT / 'CONTRIBUTING.md',
  ROOT / 'SECURITY.md',
  *sorted((ROOT / 'docs').glob('*.md')),
  ROOT / 'bench/README.md',
]

_FENCE = re.compile(
  r'(?:<!-- not run: (?P<reason>[^>]+?) -->\s*\n)?'
  r'^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^ *```$',
  re.DOTALL | re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block.

  Attributes:
    page: Where it stands, relative to the root.
    line: Of its first fence.
    language: 'shell', 'python', ...; '' without.
    code: What is inside.
    reason: Why no test runs it, from a comment just before it; None without.
  """

  page: str
  line: int
  language: str
  code: str
  reason: Optional[str]

  def __str__(self) -> str:
    return f'{self.page}:{self.line}'


def blocks(path: pathlib.Path) -> list[Block]:
  text = path.read_text()
  return [
    Block(
      page=str(path.relative_to(ROOT)),
      line=text[: found.start('language')].count('\n') + 1,
      language=found['language'],
      code=found['code'],
      reason=found['reason'],
    )
    for found in _FENCE.finditer(text)
  ]


def commands(code: str) -> list[list[str]]:
  """The commands of a shell block, as words; comments are not words."""
  joined = code.replace('\\\n', ' ')
  return [
    words
    for line in joined.splitlines()
    if (words := shlex.split(line, comments=True))
  ]


def text_of(path: pathlib.Path) -> str:
  """The text of a page, or of the text cells of a notebook."""
  if path.suffix != '.ipynb':
    return path.read_text()
  cells = json.loads(path.read_text())['cells']
  return '\n\n'.join(
    ''.join(cell['source']) for cell in cells if cell['cell_type'] == 'markdown'
  )


def prose(path: pathlib.Path) -> str:
  """The text without its fenced blocks."""
  return _FENCE.sub('', text_of(path))


def links(path: pathlib.Path) -> list[str]:
  """Targets of links and pictures that do not lead to other sites."""
  targets = re.findall(r'\]\(([^)\s]+)\)', prose(path))
  return [t for t in targets if not re.match(r'[a-z]+:', t)]


def anchors(path: pathlib.Path) -> set[str]:
  """What `#...` may follow the page's name, as GitHub makes them."""
  headings = re.findall(r'^#+ +(.+)$', prose(path), re.MULTILINE)
  plain = (re.sub(r'[^\w\- ]', '', h.lower()) for h in headings)
  return {p.strip().replace(' ', '-') for p in plain}
