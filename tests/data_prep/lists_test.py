"""Files of user ids and of words."""

from data_prep import errors
from data_prep import lists
import pytest


@pytest.mark.parametrize(
  ('read', 'content', 'expected'),
  [
    (
      lists.read_user_ids,
      'b\r\n\nsite/1\nzoë'.encode(),
      ['b', 'site/1', 'zoë'],
    ),
    # A byte order mark is no part of an id, white space is.
    (lists.read_user_ids, b'\xef\xbb\xbfa\nb\n', ['a', 'b']),
    (lists.read_user_ids, b'a \n a\r\na\n \n', ['a ', ' a', 'a', ' ']),
    (lists.read_words, b'the\ncat\n', ['the', 'cat']),
    (lists.read_words, b'the 500\r\n\ncat 3', ['the', 'cat']),  # As TFF's.
    (lists.read_words, b'\xef\xbb\xbfthe\nof 3\n', ['the', 'of']),
  ],
)
def test_exact_lines(tmp_path, read, content, expected):
  (tmp_path / 'list.txt').write_bytes(content)
  assert list(read(tmp_path / 'list.txt')) == expected


@pytest.mark.parametrize(
  ('read', 'content', 'words'),
  [
    (lists.read_user_ids, b'a\nb\na\n', "line 3: 'a' is already on line 1"),
    (lists.read_user_ids, b'\n\n', 'must hold user ids'),
    (lists.read_user_ids, b'caf\xe9', 'not UTF-8'),
    (lists.read_words, b'the cat\n', "line 1: .*Found 'the cat'"),
    (lists.read_words, b'a\nthe 1 2\n', 'line 2: must be a word'),
    (lists.read_words, b'the\ncat\nthe\n', "line 3: 'the' is already on"),
    (lists.read_words, b'caf\xe9\n', 'not UTF-8'),
  ],
)
def test_bad_files(tmp_path, read, content, words):
  (tmp_path / 'list.txt').write_bytes(content)
  with pytest.raises(errors.SourceError, match=f'list.txt.*{words}'):
    read(tmp_path / 'list.txt')


@pytest.mark.parametrize('read', [lists.read_user_ids, lists.read_words])
def test_missing_file(tmp_path, read):
  with pytest.raises(FileNotFoundError):
    read(tmp_path / 'list.txt')
