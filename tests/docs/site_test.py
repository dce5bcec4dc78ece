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


class TestNavigation:
  def test_every_page_is_listed_once(self):
    every = [
      site_hooks.site_path(path.relative_to(pages.ROOT).as_posix())
      for path in (*(pages.ROOT / 'docs').glob('*.md'), *pages.TUTORIALS)
    ]
    every += [f'reference/{name}.md' for name in site_hooks.REFERENCE]
    every += ['bench/README.md', 'CHANGELOG.md']
    assert collections.Counter(_navigation()) == collections.Counter(every)

  def test_every_listed_page_exists(self):
    for page in _navigation():
      name = page.removeprefix('reference/').removesuffix('.md')
      if name not in site_hooks.REFERENCE:
        assert (pages.ROOT / site_hooks.repository_path(page)).is_file(), page

  def test_reference_has_every_public_package(self):
    packages = [p for group in site_hooks.REFERENCE.values() for p in group]
    assert set(write_api.PACKAGES) <= set(packages)
    for package in packages:
      importlib.import_module(package)


class TestRequirements:
  def test_lock_has_versions_and_hashes(self):
    text = (pages.ROOT / 'docs/requirements.txt').read_text()
    entries = re.split(r'\n(?=\w)', text.partition('make lock\n')[2])
    assert len(entries) > 20
    for entry in entries:
      assert re.match(r'[\w.-]+==[\w.]+ ', entry) and '--hash=sha256:' in entry

  def test_lock_has_what_is_asked_for(self):
    text = (pages.ROOT / 'docs/requirements.in').read_text()
    lock = (pages.ROOT / 'docs/requirements.txt').read_text()
    for name in re.findall(r'^[\w-]+$', text, re.MULTILINE):
      assert f'\n{name}==' in lock


@pytest.mark.parametrize(
  'path, expected',
  [
    ('docs/method.md', 'method.md'),
    ('docs/data_flow.svg', 'data_flow.svg'),
    ('docs/tutorials/pda_dpmd_in_tff.ipynb', 'tutorials/pda_dpmd_in_tff.md'),
    ('README.md', 'index.md'),
    ('bench/README.md', 'bench/README.md'),
    ('results/benchmark/gains.png', 'results/benchmark/gains.png'),
    ('pda_fed/schedules.py', 'source/pda_fed/schedules.py.md'),
    ('deploy/Dockerfile', 'source/deploy/Dockerfile.md'),
    ('results', None),
    ('no_such_file.py', None),
  ],
)
def test_site_path(path, expected):
  assert site_hooks.site_path(path) == expected


@pytest.mark.parametrize(
  'page, expected',
  [
    ('method.md', 'docs/method.md'),
    ('tutorials/pda_dpmd_in_tff.md', 'docs/tutorials/pda_dpmd_in_tff.ipynb'),
    ('bench/README.md', 'bench/README.md'),
  ],
)
def test_repository_path(page, expected):
  assert site_hooks.repository_path(page) == expected


@pytest.mark.parametrize(
  'page, text, expected',
  [
    # Between pages nothing changes.
    ('method.md', '[a](faq.md#privacy)', '[a](faq.md#privacy)'),
    ('method.md', '[a](https://a.b/c.py)', '[a](https://a.b/c.py)'),
    ('method.md', '[a](#symbols)', '[a](#symbols)'),
    (
      'method.md',
      '[a](../pda_fed/schedules.py)',
      '[a](source/pda_fed/schedules.py.md)',
    ),
    (
      'benchmark.md',
      '![Gains](../results/benchmark/gains.png)',
      '![Gains](results/benchmark/gains.png)',
    ),
    (
      'faq.md',
      '[a](../bench/README.md#memory)',
      '[a](bench/README.md#memory)',
    ),
    (
      'index.md',
      '[a](tutorials/pda_dpmd_in_tff.ipynb)',
      '[a](tutorials/pda_dpmd_in_tff.md)',
    ),
    ('tutorials/pda_dpmd_in_tff.md', '[a](../faq.md)', '[a](../faq.md)'),
    ('bench/README.md', '[a](../docs/faq.md)', '[a](../faq.md)'),
    # Folders.
    ('faq.md', '[Presets](../scripts/presets)', 'Presets (`scripts/presets`)'),
    ('faq.md', '[scripts/lib](../scripts/lib)', '`scripts/lib`'),
    # A label may be code; code holds no links.
    ('faq.md', '[`a`](../LICENSE)', '[`a`](source/LICENSE.md)'),
    ('faq.md', '`[a](../LICENSE)`', '`[a](../LICENSE)`'),
    (
      'faq.md',
      '```text\n[a](../LICENSE)\n```',
      '```text\n[a](../LICENSE)\n```',
    ),
    # For MkDocs to complain.
    ('faq.md', '[a](nowhere.md)', '[a](nowhere.md)'),
  ],
)
def test_rewrite_links(page, text, expected):
  assert site_hooks.rewrite_links(page, text) == expected


def test_linked_files():
  text = 'See [a](../LICENSE), `[b](../Makefile)` and [c](../nowhere.py).'
  assert site_hooks.linked_files('faq.md', text) == {'LICENSE'}


def test_a_page_of_source_holds_the_file_whole():
  text = site_hooks.source_page('pda_fed/schedules.py')
  assert (pages.ROOT / 'pda_fed/schedules.py').read_text() in text
  assert 'exclude: true' in text
  assert '\n````````python\n' in text


class TestNotebook:
  def test_cells_and_outputs(self):
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

  @pytest.mark.parametrize('path', pages.TUTORIALS, ids=lambda p: p.name)
  def test_tutorials_are_rendered_with_figures(self, path):
    text = site_hooks.render_notebook(json.loads(path.read_text()))
    assert text.startswith('# ')
    assert text.count('](data:image/png;base64,') >= 2
    assert '.output' in text


def test_flags_do_not_break():
  html = '<p>a --b <code>c --dd=1 -- --e</code></p>'
  assert site_hooks.on_page_content(html) == (
    '<p>a --b <code>c <span class="flag">--dd</span>=1 -- '
    '<span class="flag">--e</span></code></p>'
  )


def test_a_page_of_reference():
  assert site_hooks.reference_page(('a.b', 'a.c')) == (
    '# a.b\n\n::: a.b\n\n'
    '## a.c\n\n::: a.c\n    options:\n      heading_level: 3\n'
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
      loaded = re.findall(
        r'<(?:script|img|iframe)[^>]* src="([^"]+)"'
        r'|<link[^>]* rel="(?:stylesheet|icon|preconnect)"[^>]* href="([^"]+)"'
        r'|<link[^>]* href="([^"]+)"[^>]* rel="(?:stylesheet|icon|preconnect)"',
        path.read_text(),
      )
      assert loaded
      assert not [
        u for us in loaded for u in us if u.startswith(('http', '//'))
      ]

  def test_figures_are_there(self, site):
    for path in site.rglob('*.html'):
      for name in re.findall(r'<img[^>]* src="([^"]+)"', path.read_text()):
        assert name.startswith('data:') or (path.parent / name).is_file(), name

  def test_reference_shows_docstrings(self, site):
    text = (site / 'reference/privacy.html').read_text()
    assert 'id="pda_fed.privacy.PrivacyPlan"' in text
    assert 'id="pda_fed.privacy.algorithm_1_noise_stddev"' in text
    assert 'Examples:' in text and '<blockquote>' not in text
    for name in site_hooks.REFERENCE:
      text = (site / f'reference/{name}.html').read_text()
      assert text.count('class="doc doc-heading"') > 2, name

  def test_search_finds_words_and_no_code(self, site):
    entries = json.loads((site / 'search/search_index.json').read_text())
    texts = {e['location']: e['text'] for e in entries['docs']}
    found = texts['reference/privacy.html#pda_fed.privacy.round_up']
    assert 'rounded up' in found
    assert 'validate.positive' not in found
    assert not [name for name in texts if name.startswith('source/')]

  def test_formulas_are_rendered(self, site):
    text = (site / 'tutorials/exact_mirror_descent.html').read_text()
    formulas = re.findall(r'<math.*?</math>', text, re.DOTALL)
    assert len(formulas) == 2
    assert not [f for f in formulas if '\\' in f] and '$$' not in text
