"""The programs of docs/extending.md run as they stand there."""

import re

import pytest

from tests.docs import pages

_BLOCKS = pages.blocks(pages.ROOT / 'docs/extending.md')


def _run(block, capsys):
  exec(compile(block.code, str(block), 'exec'), {'__name__': 'program'})
  return capsys.readouterr().out


def test_there_is_a_program_for_each_thing():
  assert [block.language for block in _BLOCKS] == ['python'] * 4
  assert [block.reason for block in _BLOCKS] == [None] * 4


@pytest.mark.parametrize('block', _BLOCKS, ids=str)
def test_programs_are_short(block):
  assert len(block.code.splitlines()) < 60
  assert max(map(len, block.code.splitlines())) <= 80


def test_task(capsys):
  output = _run(_BLOCKS[0], capsys)
  accuracies = [float(a) for a in re.findall(r'([\d.]+)% of test', output)]
  assert len(accuracies) == 2
  assert min(accuracies) > 50  # Far above chance, whatever the noise.


def test_schedule(capsys):
  assert _run(_BLOCKS[1], capsys).startswith('[1.   1.   1.   0.79')


def test_aggregator(capsys):
  assert '8.5' in _run(_BLOCKS[2], capsys)


def test_public_data_method(capsys):
  assert '% of the coordinates agree' in _run(_BLOCKS[3], capsys)
