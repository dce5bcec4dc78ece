"""Links of all pages and tutorials lead somewhere, anchors included."""

import pytest

from tests.docs import pages

_ALL = pages.MARKDOWN + pages.TUTORIALS
_README = pages.ROOT / 'README.md'


def _is_broken(page, link) -> bool:
  name, _, anchor = link.partition('#')
  target = (page.parent / name) if name else page
  if not target.exists():
    return True
  return bool(anchor) and anchor not in pages.anchors(target)


@pytest.mark.parametrize('page', _ALL, ids=lambda p: p.name)
def test_relative_links_lead_somewhere(page):
  assert [link for link in pages.links(page) if _is_broken(page, link)] == []


def test_broken_links_are_seen():
  assert _is_broken(_README, 'docs/nowhere.md')
  assert _is_broken(_README, 'docs/method.md#nowhere')
  assert not _is_broken(_README, 'docs/method.md#symbols')


def test_every_page_is_linked_from_the_readme():
  links = {link.partition('#')[0] for link in pages.links(_README)}
  linked = {(pages.ROOT / link).resolve() for link in links}
  every = {*(pages.ROOT / 'docs').glob('*.md'), *pages.TUTORIALS}
  assert sorted(p.name for p in every - linked) == []
