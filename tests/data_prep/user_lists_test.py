"""Files of user ids."""

from data_prep import errors
from data_prep import user_lists
import pytest


def test_reads_ids(tmp_path):
  path = tmp_path / 'ids.txt'
  path.write_bytes('b\r\n\nsite/1\nzoë'.encode())
  assert user_lists.read_user_ids(path) == ('b', 'site/1', 'zoë')


def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path):
  path = tmp_path / 'ids.txt'
  path.write_bytes(b'\xef\xbb\xbfa\nb\n')
  assert user_lists.read_user_ids(path) == ('a', 'b')


def test_white_space_is_part_of_an_id(tmp_path):
  path = tmp_path / 'ids.txt'
  path.write_bytes(b'a \n a\r\na\n \n')
  assert user_lists.read_user_ids(path) == ('a ', ' a', 'a', ' ')


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    (b'a\nb\na\n', "line 3: 'a' is already on line 1"),
    (b'\n\n', 'must hold user ids'),
    (b'caf\xe9', 'not UTF-8'),
  ],
)
def test_bad_files(tmp_path, content, words):
  (tmp_path / 'ids.txt').write_bytes(content)
  with pytest.raises(errors.SourceError, match=f'ids.txt.*{words}'):
    user_lists.read_user_ids(tmp_path / 'ids.txt')
