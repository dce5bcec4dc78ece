"""The sample's maker, on a small dump."""

import json
import lzma
from xml.sax import saxutils

from data_prep import tokenizer
from data_prep.sources import jsonl
import pytest

from tools import make_stackexchange_sample as maker

_POSTS = {
  1: '<p>One. Two &amp; 3.5!</p><pre>code()</pre><p>See http://a.example/x.</p>',
  2: '<p>Mail me@example.org. How to write &amp;lt;? Four. Five.  Six.</p>',
  3: '<pre>code alone</pre>',
}


def _write_dump(folder):
  site = folder / 'cooking'
  site.mkdir(parents=True)
  rows = [
    f'<row Id="{user}" PostTypeId="1" OwnerUserId="{user}"'
    f' Body={saxutils.quoteattr(body)} />'
    for user, body in _POSTS.items()
  ]
  lines = ['<posts>', *rows, '</posts>', '']
  (site / 'Posts.xml').write_text('\n'.join(lines))
  return folder


def _make(tmp_path, name='out', **settings):
  dumps = tmp_path / 'dumps'
  if not dumps.exists():
    _write_dump(dumps)
  maker.make_sample(dumps, tmp_path / name, maker.SampleConfig(**settings))
  return tmp_path / name


def _rows(folder):
  text = lzma.decompress((folder / maker.USERS).read_bytes()).decode()
  return [json.loads(line) for line in text.splitlines()]


def test_what_is_kept(tmp_path, capsys):
  folder = _make(tmp_path, sentences=2, public_users=1, public_sentences=4)
  assert _rows(folder) == [
    {'user': 'cooking/1', 'text': 'One.\nTwo & 3.5!'},
    {
      'user': 'cooking/2',
      'text': 'How to write &amp;lt;?\nFour.\nFive.\nSix.',
    },
  ]
  assert (folder / maker.PUBLIC_USERS).read_text() == 'cooking/2\n'
  said = capsys.readouterr().out
  assert said.startswith('2 users, 1 of them public.\n')
  assert 'Left out: 1 sentences with an e-mail address.' in said


def test_a_reader_finds_the_sentences_that_were_written(tmp_path):
  folder = _make(tmp_path, sentences=9, public_users=1, public_sentences=3)
  source = jsonl.JsonlSource(str(folder / maker.USERS))
  found = {
    user: tokenizer.split_sentences(text) for user, text, _ in source.records()
  }
  assert found['cooking/1'] == ['one .', 'two & 3 . 5 !', 'see <URL> .']
  assert found['cooking/2'][0] == 'how to write & lt ; ?'


def test_the_same_dumps_give_the_same_bytes(tmp_path):
  settings = {'sentences': 2, 'public_users': 1, 'public_sentences': 3}
  first, second = (_make(tmp_path, name, **settings) for name in 'ab')
  for name in (maker.USERS, maker.PUBLIC_USERS):
    assert (first / name).read_bytes() == (second / name).read_bytes()


def test_too_few_public_users(tmp_path):
  with pytest.raises(
    ValueError, match='public_users must be at most 1, .* 4 s'
  ):
    _make(tmp_path, public_users=2, public_sentences=4)


@pytest.mark.parametrize('name', ['sentences', 'public_users'])
def test_bad_settings(name):
  with pytest.raises(ValueError, match=f'{name} must be at least 1. Found 0'):
    maker.SampleConfig(**{name: 0})
