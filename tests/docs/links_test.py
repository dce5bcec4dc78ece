"""Links of all pages and tutorials lead somewhere, anchors included."""

import pathlib

import pytest

from tests.docs import pages

_ALL = pages.MARKDOWN + pages.TUTORIALS


def _is_broken(page: pathlib.Path, link: str) -> bool:
  name, _, anchor = link.partition('#')
  target = (page.parent / name) if name else page
  if not target.exists():
    return True
  return bool(anchor) and anchor not in pages.anchors(target)


@pytest.mark.parametrize('page', _ALL, ids=lambda p: p.name)
def test_relative_links_lead_somewhere(page):
  assert [link for link in pages.links(page) if _is_broken(page, link)] == []


def test_links_are_found():
  assert 'docs/data_flow.svg' in pages.links(pages.ROOT / 'README.md')
  assert any(
    '#' in link for link in pages.links(_ALL[0].parent / 'docs/method.md')
  )


def test_broken_links_are_seen():
  page = pages.ROOT / 'README.md'
  assert _is_broken(page, 'docs/nowhere.md')
  assert _is_broken(page, 'docs/method.md#nowhere')
  assert not _is_broken(page, 'docs/method.md#symbols')


def test_every_page_is_linked_from_the_readme():
  linked = {
    (pages.ROOT / link.partition('#')[0]).resolve()
    for link in pages.links(pages.ROOT / 'README.md')
  }
  every = {*(pages.ROOT / 'docs').glob('*.md'), *pages.TUTORIALS}
  assert sorted(p.name for p in every - linked) == []
