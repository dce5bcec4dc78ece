"""MkDocs hooks: what the site needs beside the pages in docs/.

The pages link to files outside docs/ and to notebooks, as GitHub wants it. For
the site, these hooks

*   render the notebooks, with the outputs that they hold, as pages;
*   add pages and data that are linked from docs/ but lie elsewhere;
*   make a page of each source file that is linked, with its code;
*   make a page of reference for each public package, from its docstrings.

Links are rewritten to match. Nothing here imports pda_fed, and MkDocs is
imported only where it calls the hooks.
"""

import json
import pathlib
import posixpath
import re
from typing import Any, Optional

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Packages and modules with a page of reference, by the page's name.
REFERENCE = {
  'privacy': ('pda_fed.privacy',),
  'audit': ('pda_fed.audit',),
  'schedules': ('pda_fed.schedules',),
  'methods': ('pda_fed.methods',),
  'learning': ('pda_fed.tff',),
  'runtime': ('pda_fed.tff.runtime',),
  'models': ('pda_fed.models',),
  'vectorized': ('pda_fed.jax',),
  'linear_regression': ('pda_fed.linear_regression',),
  'experiments': ('pda_fed.runs', 'pda_fed.errors'),
  'analysis': (
    'pda_fed.compare',
    'pda_fed.compare.comparison',
    'pda_fed.compare.statistics',
    'pda_fed.compare.verdicts',
    'pda_fed.compare.choices',
    'pda_fed.compare.grids',
    'pda_fed.compare.result_tables',
    'pda_fed.compare.figures',
    'pda_fed.compare.report',
    'pda_fed.compare.benchmark_tasks',
    'pda_fed.compare.benchmark_results',
  ),
  'data_prep': ('data_prep', 'data_prep.sources', 'data_prep.sample_level'),
}

# Files that are copied as they are. Others than these and pages are source.
_DATA = ('.csv', '.json', '.png', '.svg')
_LANGUAGES = {
  '.py': 'python',
  '.sbatch': 'bash',
  '.sh': 'bash',
  '.yaml': 'yaml',
  '.yml': 'yaml',
}
# A link or a picture, or code, in which nothing is a link.
_LINK = re.compile(
  r'(?P<code>^ *```.*?^ *```$|`[^`\n]+`(?!\]\())'
  r'|(?P<picture>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s:#]+)(?P<anchor>#[^()\s]*)?\)',
  re.DOTALL | re.MULTILINE,
)
_INLINE_CODE = re.compile(r'(?<=<code>)[^<]+(?=</code>)')
_FLAG = re.compile(r'(?<!\S)--\w+')
_FORMULA = re.compile(r'\$\$(.+?)\$\$', re.DOTALL)


def repository_path(page: str) -> str:
  """Returns the file of the repository that a page of the site is made of.

  Args:
    page: The page, as in the navigation.
  """
  notebook = pathlib.PurePosixPath('docs', page).with_suffix('.ipynb')
  if (ROOT / notebook).exists():
    return str(notebook)
  return f'docs/{page}' if (ROOT / 'docs' / page).exists() else page


def site_path(path: str) -> Optional[str]:
  """Returns where the site has a file of the repository; None for a folder.

  Args:
    path: Relative to the repository's root, with slashes.
  """
  if not (ROOT / path).is_file():
    return None
  if path == 'README.md':
    return 'index.md'
  inside = path.removeprefix('docs/')
  suffix = posixpath.splitext(path)[1]
  if suffix == '.ipynb':
    return f'{inside.removesuffix(suffix)}.md'
  if suffix == '.md' or suffix in _DATA:
    return inside
  return f'source/{path}.md'


def linked_files(page: str, text: str) -> set[str]:
  """Returns the files and folders of the repository that a page links to.

  Args:
    page: The page, as in the navigation.
    text: Its Markdown.
  """
  folder = posixpath.dirname(repository_path(page))
  targets = (m['target'] for m in _LINK.finditer(text) if m['target'])
  paths = {posixpath.normpath(posixpath.join(folder, t)) for t in targets}
  return {path for path in paths if (ROOT / path).exists()}


def rewrite_links(page: str, text: str) -> str:
  """Returns a page's Markdown with links as the site needs them.

  A link to a folder becomes its text and the folder's path as code. A link that
  leads nowhere stays, for MkDocs to complain.

  Args:
    page: The page, as in the navigation.
    text: Its Markdown.
  """
  folder = posixpath.dirname(repository_path(page))

  def rewrite(match: re.Match[str]) -> str:
    if match['code']:
      return match[0]
    path = posixpath.normpath(posixpath.join(folder, match['target']))
    if not (ROOT / path).exists():
      return match[0]
    target = site_path(path)
    if target is None:
      shown = match['text'].strip('`')
      return f'`{path}`' if shown == path else f'{shown} (`{path}`)'
    target = posixpath.relpath(target, posixpath.dirname(page) or '.')
    label = f'{match["picture"]}[{match["text"]}]'
    return f'{label}({target}{match["anchor"] or ""})'

  return _LINK.sub(rewrite, text)


def source_page(path: str) -> str:
  """Returns a page that shows a file; the search does not look into it.

  Args:
    path: Relative to the repository's root.
  """
  language = _LANGUAGES.get(posixpath.splitext(path)[1], 'text')
  fence = '`' * 8  # Docstrings have shorter ones.
  return (
    '---\nsearch:\n  exclude: true\n---\n\n'
    f'# {posixpath.basename(path)}\n\n`{path}`\n\n'
    f'{fence}{language}\n{(ROOT / path).read_text()}{fence}\n'
  )


def _output(output: dict[str, Any]) -> str:
  data = output.get('data', {})
  if 'image/png' in data:
    picture = ''.join(data['image/png']).replace('\n', '')
    return f'![Figure](data:image/png;base64,{picture})'
  text = ''.join(output.get('text', data.get('text/plain', '')))
  return f'``` {{ .text .output }}\n{text.rstrip()}\n```'


def render_notebook(notebook: dict[str, Any]) -> str:
  """Returns a notebook as Markdown, with the outputs that it holds.

  Args:
    notebook: As in its file.
  """
  parts = []
  for cell in notebook['cells']:
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      parts.append(source)
      continue
    parts.append(f'```python\n{source}\n```')
    parts += [_output(output) for output in cell['outputs']]
  return '\n\n'.join(parts) + '\n'


def reference_page(packages: tuple[str, ...]) -> str:
  """Returns a page of reference, for mkdocstrings to fill.

  Args:
    packages: Their full names; the first gives the title.
  """
  title, *others = packages
  parts = [f'# {title}\n\n::: {title}\n']
  options = '    options:\n      heading_level: 3\n'
  parts += [f'## {name}\n\n::: {name}\n{options}' for name in others]
  return '\n'.join(parts)


def _formula(match: re.Match[str]) -> str:
  # For the site alone: the project's tests run without this package.
  from latex2mathml import converter

  text = ' '.join(match[1].split()).replace(r'\arg', r'\operatorname{arg}')
  return converter.convert(text, display='block')


def on_files(files: Any, config: Any) -> Any:
  """Adds what the pages link to, the notebooks and the reference.

  Args:
    files: Those that MkDocs found in docs/.
    config: MkDocs' settings.
  """
  from mkdocs.structure import files as mkdocs_files

  def add(name: str, inclusion: Any = None, **content: str) -> None:
    inclusion = inclusion or mkdocs_files.InclusionLevel.UNDEFINED
    file = mkdocs_files.File.generated(
      config, name, inclusion=inclusion, **content
    )
    files.append(file)

  for name, packages in REFERENCE.items():
    add(f'reference/{name}.md', content=reference_page(packages))
  for notebook in sorted((ROOT / 'docs').rglob('*.ipynb')):
    path = notebook.relative_to(ROOT).as_posix()
    add(
      site_path(path), content=render_notebook(json.loads(notebook.read_text()))
    )

  seen = {file.src_uri for file in files}
  to_read = [file for file in files if file.src_uri.endswith('.md')]
  while to_read:
    file = to_read.pop()
    for path in sorted(linked_files(file.src_uri, file.content_string)):
      target = site_path(path)
      if target is None or target in seen:
        continue
      seen.add(target)
      hidden = mkdocs_files.InclusionLevel.NOT_IN_NAV
      if target.startswith('source/'):
        add(target, hidden, content=source_page(path))
      else:
        add(target, abs_src_path=str(ROOT / path))
        if target.endswith('.md'):
          to_read.append(files.get_file_from_path(target))
  return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
  """Rewrites a page's links, and formulas of notebooks as MathML.

  Args:
    markdown: The page's text.
    page: MkDocs' page.
  """
  name = page.file.src_uri
  if name.startswith(('source/', 'reference/')):
    return markdown
  if repository_path(name).endswith('.ipynb'):
    markdown = _FORMULA.sub(_formula, markdown)
  return rewrite_links(name, markdown)


def on_page_content(html: str, **_: Any) -> str:
  """Marks flags, and keeps the code of functions out of the search.

  Args:
    html: What is made of the page's text.
  """
  details = '<details class="mkdocstrings-source"'
  html = html.replace(details, f'{details} data-search-exclude')
  return _INLINE_CODE.sub(
    lambda match: _FLAG.sub(r'<span class="flag">\g<0></span>', match[0]), html
  )
