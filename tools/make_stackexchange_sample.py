"""Makes the sample of Stack Exchange users that ships with the repository.

    python tools/make_stackexchange_sample.py DUMPS

DUMPS is a folder of sites, as `prepare_users --source=stackexchange:DUMPS`
reads it. The sample has the first sentences of every user of every site, and
more sentences of a few users, its public users. Nothing is random: the same
dumps give the same files:

    users.jsonl.xz      JSON lines with `user` and `text`, one per user
    public_users.txt    ids for `prepare_users --public_user_ids`
"""

import argparse
import collections
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import html
import json
import lzma
import os
import pathlib
import re
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from data_prep import tokenizer  # noqa: E402
from data_prep.sources import stackexchange  # noqa: E402

FOLDER = _ROOT / 'data_prep/samples/stackexchange'
USERS = 'users.jsonl.xz'
PUBLIC_USERS = 'public_users.txt'

_EMAIL = re.compile(r'[\w.+-]@[\w-]+\.\w')
# Compression settings for text. One thread, so that the bytes do not depend on
# the machine.
_FILTERS = [
  {
    'id': lzma.FILTER_LZMA2,
    'preset': 9 | lzma.PRESET_EXTREME,
    'lc': 4,
    'lp': 0,
    'pb': 0,
  }
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
  """Settings of the sample.

  Attributes:
    sentences: Maximum number of sentences of a user.
    public_users: Number of public users.
    public_sentences: Number of sentences of each public user. Users with fewer
      sentences are not public.
  """

  sentences: int = 5
  public_users: int = 100
  public_sentences: int = 64

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value < 1:
        raise ValueError(f'{field.name} must be at least 1. Found {value}.')


def _is_read_alike(sentence: str) -> bool:
  """Returns whether the sentence is read back unchanged."""
  expected = ' '.join(tokenizer.tokenize(html.unescape(sentence)))
  return tokenizer.split_sentences(sentence) == [expected]


def _clean(text: str) -> Iterator[tuple[str, str]]:
  """Yields (sentence, reason to leave it out or '') with a token."""
  for raw in tokenizer.cut_sentences(text):
    if not tokenizer.tokenize(raw):
      continue
    sentence = ' '.join(tokenizer.mask_urls(raw).split())
    if html.unescape(sentence) != sentence:
      # Keep text that shows how to write '&lt;'.
      sentence = sentence.replace('&', '&amp;')
    if _EMAIL.search(raw):
      yield sentence, 'sentences with an e-mail address'
    elif not _is_read_alike(sentence):
      yield sentence, 'sentences that would be read as several'
    else:
      yield sentence, ''


def read_users(
  folder: os.PathLike, most: int
) -> tuple[dict[str, list[str]], collections.Counter]:
  """Reads the first sentences of all users.

  Args:
    folder: Folder of the dumps.
    most: Maximum number of sentences of a user.

  Returns:
    The sentences of each user that has any, and the number of sentences left
    out by reason.

  Raises:
    OSError: If there are no dumps.
    SourceError: If a dump is damaged.
  """
  source = stackexchange.StackExchangeSource(folder)
  users = collections.defaultdict(list)
  left_out = collections.Counter()
  for user, text, is_html in source.records():
    if len(users[user]) >= most:
      continue
    plain = tokenizer.strip_html(text) if is_html else html.unescape(text)
    for sentence, reason in _clean(plain):
      if reason:
        left_out[reason] += 1
      elif len(users[user]) < most:
        users[user].append(sentence)
  source.tally.check(source.name)
  return {user: found for user, found in users.items() if found}, left_out


def _by_hash(user: str) -> str:
  return hashlib.sha256(f'public {user}'.encode()).hexdigest()


def choose_public(
  users: Mapping[str, Sequence[str]], config: SampleConfig
) -> list[str]:
  """Returns public users: those with enough text, chosen by a hash.

  Args:
    users: Sentences of each user.
    config: Settings of the sample.

  Raises:
    ValueError: If there are too few such users.
  """
  rich = [u for u, s in users.items() if len(s) >= config.public_sentences]
  if len(rich) < config.public_users:
    raise ValueError(
      f'public_users must be at most {len(rich)}, the number of users with'
      f' {config.public_sentences} sentences. Found {config.public_users}.'
    )
  return sorted(sorted(rich, key=_by_hash)[: config.public_users])


def make_sample(
  dumps: os.PathLike, folder: os.PathLike, config: SampleConfig
) -> None:
  """Writes the sample, and prints a summary.

  Args:
    dumps: Folder of the dumps.
    folder: Folder of the sample.
    config: Settings of the sample.

  Raises:
    OSError: If there are no dumps, or a file cannot be written.
    SourceError: If a dump is damaged.
    ValueError: If there are too few public users.
  """
  most = max(config.sentences, config.public_sentences)
  users, left_out = read_users(dumps, most)
  public = choose_public(users, config)
  lines = []
  for user in sorted(users):
    limit = config.sentences
    if user in public:
      limit = config.public_sentences
    row = {'user': user, 'text': '\n'.join(users[user][:limit])}
    lines.append(json.dumps(row, ensure_ascii=False) + '\n')
  content = ''.join(lines).encode()
  packed = lzma.compress(content, filters=_FILTERS)
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / USERS).write_bytes(packed)
  names = ''.join(f'{user}\n' for user in public)
  (folder / PUBLIC_USERS).write_text(names, encoding='utf-8')
  print(f'{len(users):,} users, {len(public):,} of them public.')
  for reason, number in sorted(left_out.items()):
    print(f'Left out: {number:,} {reason}.')
  print(f'{USERS}: {len(packed):,} bytes, {len(content):,} unpacked.')
  print(f'sha256, packed:   {hashlib.sha256(packed).hexdigest()}')
  print(f'sha256, unpacked: {hashlib.sha256(content).hexdigest()}')


def main() -> None:
  """Reads the arguments and makes the sample."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('dumps', help='Folder of sites.')
  parser.add_argument(
    '--output_dir', default=FOLDER, help='Default: %(default)s'
  )
  for field in dataclasses.fields(SampleConfig):
    parser.add_argument(f'--{field.name}', type=int, default=field.default)
  arguments = vars(parser.parse_args())
  dumps, folder = arguments.pop('dumps'), arguments.pop('output_dir')
  make_sample(dumps, folder, SampleConfig(**arguments))


if __name__ == '__main__':
  main()
