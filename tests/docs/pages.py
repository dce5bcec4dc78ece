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
  *(ROOT / f'{name}.md' for name in ('README', 'CHANGELOG')),
  *(ROOT / f'{name}.md' for name in ('CONTRIBUTING', 'SECURITY')),
  *sorted((ROOT / 'docs').glob('*.md')),
  ROOT / 'bench/README.md',
]

_FENCE = re.compile(
  r'(?:`(?P<file>\w+\.(?:py|flags))`[:.]\n\n)?'
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
    file: The file that it shows, whose name ends the text before it.
  """

  page: str
  line: int
  language: str
  code: str
  reason: Optional[str]
  file: Optional[str]

  def __str__(self) -> str:
    return f'{self.page}:{self.line}'


def blocks(path: pathlib.Path) -> list[Block]:
  """The blocks of a page, in order."""
  text = path.read_text()
  return [
    Block(
      page=str(path.relative_to(ROOT)),
      line=text[: found.start('language')].count('\n') + 1,
      **{name: found[name] for name in ('language', 'code', 'reason', 'file')},
    )
    for found in _FENCE.finditer(text)
  ]


def commands(code: str) -> list[list[str]]:
  """The commands of a shell block, as words; comments are not words."""
  lines = code.replace('\\\n', ' ').splitlines()
  return [words for x in lines if (words := shlex.split(x, comments=True))]


def prose(path: pathlib.Path) -> str:
  """The text of a page, or of a notebook, without its fenced blocks."""
  text = path.read_text()
  if path.suffix == '.ipynb':
    cells = json.loads(text)['cells']
    texts = (c['source'] for c in cells if c['cell_type'] == 'markdown')
    text = '\n\n'.join(map(''.join, texts))
  return _FENCE.sub('', text)


def links(path: pathlib.Path) -> list[str]:
  """Targets of links and pictures that do not lead to other sites."""
  targets = re.findall(r'\]\(([^)\s]+)\)', prose(path))
  return [t for t in targets if not re.match(r'[a-z]+:', t)]


def anchors(path: pathlib.Path) -> set[str]:
  """What `#...` may follow the page's name, as GitHub makes them."""
  headings = re.findall(r'^#+ +(.+)$', prose(path), re.MULTILINE)
  plain = (re.sub(r'[^\w\- ]', '', h.lower()) for h in headings)
  return {p.strip().replace(' ', '-') for p in plain}
