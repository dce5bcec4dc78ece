"""The site lists every page, and its hooks lead links to the right places.

The site itself is built where `make site` has made its environment.
"""

import collections
import importlib
import json
import re
import subprocess
import sys
import types

import pytest

from tests.docs import pages
from tools import site_hooks
from tools import write_api

_SITE_PYTHON = pages.ROOT / '.venv-docs/bin/python'


def _navigation():
  """Pages of mkdocs.yml, in order. (No YAML parser is installed here.)"""
  text = (pages.ROOT / 'mkdocs.yml').read_text()
  nav = text.partition('\nnav:\n')[2].partition('\n\n')[0]
  return re.findall(r'^ +- .*: (\S+\.md)$', nav, re.MULTILINE)


def _reference():
  """Packages with a page of reference, by the page."""
  text = (pages.ROOT / 'mkdocs.yml').read_text()
  found = re.findall(r'^ +- ([\w.]+): (reference/\S+)$', text, re.MULTILINE)
  return {path: name for name, path in found}


def test_every_page_is_in_the_navigation_once():
  every = [
    site_hooks.site_path(path.relative_to(pages.ROOT).as_posix())
    for path in (*(pages.ROOT / 'docs').glob('*.md'), *pages.TUTORIALS)
  ]
  every += [*_reference(), 'bench/README.md', 'CHANGELOG.md']
  assert collections.Counter(_navigation()) == collections.Counter(every)


def test_reference_has_every_public_package():
  assert set(_reference().values()) == set(write_api.PACKAGES)


@pytest.mark.parametrize(
  'path, expected',
  [
    ('docs/method.md', 'method.md'),
    ('docs/data_flow.svg', 'data_flow.svg'),
    ('docs/tutorials/pda_dpmd_in_tff.ipynb', 'tutorials/pda_dpmd_in_tff.md'),
    ('README.md', 'index.md'),
    ('bench/README.md', 'bench/README.md'),
    ('results/benchmark/gains.png', 'results/benchmark/gains.png'),
    ('pda_fed/schedules.py', None),
    ('results', None),
    ('no_such_file.py', None),
  ],
)
def test_site_path(path, expected):
  assert site_hooks.site_path(path) == expected


@pytest.mark.parametrize(
  'page, text, expected',
  [
    # Between pages nothing changes.
    *(
      ('method.md', f'[a]({to})', f'[a]({to})')
      for to in ('faq.md#privacy', 'https://a.b/c.py', '#symbols')
    ),
    (
      'benchmark.md',
      '![Gains](../results/benchmark/gains.png)',
      '![Gains](results/benchmark/gains.png)',
    ),
    (
      'index.md',
      '[a](tutorials/pda_dpmd_in_tff.ipynb)',
      '[a](tutorials/pda_dpmd_in_tff.md)',
    ),
    ('bench/README.md', '[a](../docs/faq.md)', '[a](../faq.md)'),
    # What the site lacks.
    ('faq.md', '[Presets](../scripts/presets)', 'Presets (`scripts/presets`)'),
    ('faq.md', '[`LICENSE`](../LICENSE)', '`LICENSE`'),
    # Code holds no links.
    ('faq.md', '`[a](../LICENSE)`', '`[a](../LICENSE)`'),
    # For MkDocs to complain.
    ('faq.md', '[a](nowhere.md)', '[a](nowhere.md)'),
  ],
)
def test_rewrite_links(page, text, expected):
  assert site_hooks.rewrite_links(page, text) == expected


def test_a_notebook_has_its_cells_and_outputs():
  outputs = [
    {'output_type': 'stream', 'text': ['1\n', '2\n']},
    {'output_type': 'display_data', 'data': {'image/png': 'iVBO\n'}},
    {'output_type': 'execute_result', 'data': {'text/plain': ['3']}},
  ]
  cells = [
    {'cell_type': 'markdown', 'source': ['# Title\n', 'Text.']},
    {'cell_type': 'code', 'source': ['f()'], 'outputs': outputs},
  ]
  assert site_hooks.render_notebook({'cells': cells}) == (
    '# Title\nText.\n\n'
    '```python\nf()\n```\n\n'
    '``` { .text .output }\n1\n2\n```\n\n'
    '![Figure](data:image/png;base64,iVBO)\n\n'
    '``` { .text .output }\n3\n```\n'
  )


def test_flags_do_not_break():
  html = '<p>a --b <code>c --dd=1 -- --e</code></p>'
  assert site_hooks.on_page_content(html) == (
    '<p>a --b <code>c <span class="flag">--dd</span>=1 -- '
    '<span class="flag">--e</span></code></p>'
  )


def test_docstrings_are_mended(monkeypatch):
  stub = types.SimpleNamespace(Extension=object, Object=object)
  monkeypatch.setitem(sys.modules, 'griffe', stub)
  monkeypatch.delitem(sys.modules, 'tools.site_docstrings', raising=False)
  module = importlib.import_module('tools.site_docstrings')
  monkeypatch.delitem(sys.modules, 'tools.site_docstrings')
  text = 'A.\n\nExample:\n\n  >>> f()\n  1\n\nArgs:\n  a: b.'
  expected = 'A.\n\nExamples:\n  >>> f()\n  1\n\nArgs:\n  a: b.'
  assert module.mend(text) == expected
  text = 'A.\n\nExample: see `b`.\n\n```\nf()\n```\n\n```\ng()\n```'
  assert module.mend(text) == text.replace('```\nf', '```python\nf').replace(
    '```\ng', '```python\ng'
  )


@pytest.mark.skipif(
  not _SITE_PYTHON.exists(), reason='`make site` makes what this needs'
)
class TestSite:
  @pytest.fixture(scope='class')
  def site(self, tmp_path_factory):
    folder = tmp_path_factory.mktemp('site')
    # Settings are strict: a warning, of a broken link for example, is an error.
    done = subprocess.run(
      [_SITE_PYTHON, '-m', 'mkdocs', 'build', f'--site-dir={folder}'],
      cwd=pages.ROOT,
      capture_output=True,
      text=True,
      timeout=600,
      check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder

  def test_has_every_page(self, site):
    for page in _navigation():
      name = page.replace('README.md', 'index.md').replace('.md', '.html')
      assert (site / name).is_file(), name

  def test_needs_no_other_host(self, site):
    for path in site.rglob('*.html'):
      tags = re.findall(r'<(?:script|img|iframe|link)[^>]*>', path.read_text())
      loaded = [tag for tag in tags if 'rel="canonical"' not in tag]
      assert loaded
      assert not [t for t in loaded if re.search('(src|href)="(http|//)', t)]

  def test_figures_are_there(self, site):
    for path in site.rglob('*.html'):
      for name in re.findall(r'<img[^>]* src="([^"]+)"', path.read_text()):
        assert name.startswith('data:') or (path.parent / name).is_file(), name

  def test_reference_shows_docstrings(self, site):
    text = (site / 'reference/pda_fed.privacy.html').read_text()
    assert 'id="pda_fed.privacy.PrivacyPlan"' in text
    assert 'Examples:' in text and '<blockquote>' not in text

  def test_search_finds_words_and_no_code(self, site):
    entries = json.loads((site / 'search/search_index.json').read_text())
    texts = {e['location']: e['text'] for e in entries['docs']}
    found = texts['reference/pda_fed.privacy.html#pda_fed.privacy.round_up']
    assert 'rounded up' in found
    assert 'validate.positive' not in found

  def test_formulas_are_rendered(self, site):
    text = (site / 'tutorials/exact_mirror_descent.html').read_text()
    formulas = re.findall(r'<math.*?</math>', text, re.DOTALL)
    assert len(formulas) == 2
    assert not [f for f in formulas if '\\' in f] and '$$' not in text
