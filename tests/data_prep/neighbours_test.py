"""What data have in common with the same data without one private user.

Epsilon compares the two. It holds for what was computed from public users, such
as the vocabulary, the mean of inputs and the warm start, only if these users
and their rows are the same, bit for bit.
"""

import collections
import json

from data_prep import assignment
from data_prep import build
from data_prep import encoding
from data_prep import sources
from data_prep import store
from data_prep import store_writer
from data_prep import vocabulary
import numpy as np
import pytest

_LIMIT = 4
_NUM_PUBLIC = 12
_SHARED = (assignment.PUBLIC, assignment.VALIDATION, assignment.TEST)
_NAMED = ('u007', 'u100', 'u203')


def _config(how, **settings):
  return build.PrepareConfig(
    partition=assignment.PartitionConfig(
      **{
        'seed': 3,
        'max_sentences': _LIMIT,
        'num_public_users': _NUM_PUBLIC if how == 'drawn' else 0,
        **settings,
      }
    ),
    public_user_ids=_NAMED if how == 'named' else (),
    num_processes=1,
  )


def _texts():
  """Sentences of 260 users, half of whom have more than the limit."""
  rng = np.random.default_rng(0)
  return {
    f'u{i:03}': [
      f'word{rng.integers(40)} w{i % 9} .' for _ in range(rng.integers(1, 9))
    ]
    for i in range(260)
  }


def _write_jsonl(folder, texts):
  rows = [
    json.dumps({'user': user, 'text': text}) + '\n'
    for user, sentences in texts.items()
    for text in sentences
  ]
  (folder / 'x.jsonl').write_text(''.join(rows))
  return sources.open_source(f'jsonl:{folder}/x.jsonl')


def _arrays(without=None):
  """Arrays of 260 users: features, classes and the owners."""
  rng = np.random.default_rng(0)
  owners = np.concatenate([np.arange(260), rng.integers(0, 260, 600)])
  rng.shuffle(owners)
  arrays = {
    'x': rng.normal(3, 2, (860, 3)),
    'y': rng.integers(0, 4, 860),
    'user': np.array([f'u{i:03}' for i in owners]),
  }
  kept = arrays['user'] != without
  return {n: a[kept] for n, a in arrays.items()} | {'num_classes': 4}


def _write_npz(folder, without=None):
  np.savez(folder / 'x.npz', **_arrays(without))
  return sources.open_npz(folder / 'x.npz')


def _assign(source, config, whole_users):
  return assignment.assign_users(
    source,
    config.partition,
    config.holdout,
    config.public_user_ids,
    whole_users=whole_users,
  )


def _groups(plan):
  return {
    name: (g.names, g.split, g.ids, g.start.tobytes(), g.stop.tobytes())
    for name in _SHARED
    for g in [plan.groups[name]]
  }


def _private_people(groups):
  """Ids of private users of whom nothing is public."""
  private, public = groups
  return [user for user in private if user not in set(public)]


def _people(plan):
  return _private_people(
    [plan.groups[name].ids for name in (assignment.PRIVATE, assignment.PUBLIC)]
  )


def _of_text(source, config, folder):
  """Returns the plan and all that is computed from public text."""
  plan = _assign(source, config, False)
  group = plan.groups[assignment.PUBLIC]
  sentences = [
    sentence
    for user, start, stop in zip(
      group.ids, group.start.tolist(), group.stop.tolist(), strict=True
    )
    for sentence in source.sentences(user, group.split, start, stop)
  ]
  counter = vocabulary.WordCounter(folder)
  counter.add(collections.Counter(' '.join(sentences).split()))
  words = counter.top(30)
  rows = encoding.Encoder(words).encode(sentences)
  return plan, [_groups(plan), words, rows.tobytes()]


def _of_arrays(source, config, folder):
  """Returns the plan and all that is computed from public examples."""
  plan = _assign(source, config, True)
  written = store_writer.ExampleWriter(folder).write_examples(source, plan)
  first = int(plan.groups[assignment.PRIVATE].num_sentences.sum())
  last = first + int(plan.groups[assignment.PUBLIC].num_sentences.sum())
  stored = [
    np.load(folder / name)[first:last].tobytes() for name in (store.X, store.Y)
  ]
  return plan, [_groups(plan), written, stored]


@pytest.mark.parametrize('how', ['drawn', 'named'])
def test_text_without_one_of_200_private_users(tmp_path, list_source, how):
  texts = _texts()
  # Some people of the source's test split are train users, too.
  later = {f'u{i:03}': ['later words .'] for i in range(250, 275)}
  config = _config(how)

  def make(without=None):
    splits = {
      split: {u: s for u, s in users.items() if u != without}
      for split, users in (('train', texts), ('test', later))
    }
    return _of_text(list_source(splits), config, tmp_path)

  plan, expected = make()
  assert len(plan.groups['public']) == (12 if how == 'drawn' else 3)
  assert len(plan.groups['validation']) > 5
  assert plan.groups['test'].ids == tuple(f'u{i}' for i in range(260, 275))
  people = _people(plan)[:200]
  assert len(people) == 200
  for user in people:
    other, found = make(user)
    assert found == expected
    assert user not in other.groups['private'].ids


@pytest.mark.parametrize('how', ['drawn', 'named'])
def test_arrays_without_one_of_200_private_users(tmp_path, how):
  config = _config(how)
  arrays = _arrays()

  def make(without=None):
    kept = arrays['user'] != without
    names, owners = np.unique(arrays['user'][kept], return_inverse=True)
    source = sources.ArraySource(
      tmp_path / 'x.npz',
      arrays['x'][kept],
      arrays['y'][kept],
      names.tolist(),
      owners,
      np.array(4),
    )
    return _of_arrays(source, config, tmp_path)

  plan, expected = make()
  people = _people(plan)[:200]
  assert len(people) == 200
  for user in people:
    assert make(user)[1] == expected


def _of_store(data):
  """Returns all that a store has of public, validation and test users."""
  names = {group: list(data.users(group)) for group in _SHARED}
  rows = {
    group: [rows.tobytes() for u in names[group] for rows in data.examples(u)]
    for group in _SHARED
  }
  first, *_, last = data.row_offsets('public').tolist()
  public = [array.tobytes() for array in data.read(first, last)]
  manifest = data.manifest
  own = {
    name: manifest.get(name)
    for name in ('settings', 'inputs', 'classes', 'public_users_sha256')
  }
  words = getattr(data, 'vocabulary', None)
  origin = manifest.get('vocabulary', {}).get('origin')
  return names, rows, public, own, words, origin


@pytest.mark.parametrize(
  ('kind', 'how', 'limit'),
  [
    ('text', 'drawn', _LIMIT),
    ('text', 'named', _LIMIT),
    ('text', 'named', assignment.NO_LIMIT),
    ('arrays', 'drawn', _LIMIT),
    ('arrays', 'named', _LIMIT),
    ('arrays', 'drawn', assignment.NO_LIMIT),
    ('arrays', 'drawn', 859),  # One less than there are examples.
  ],
)
def test_stores_without_a_private_user(tmp_path, kind, how, limit):
  config = _config(how, max_sentences=limit)
  texts = _texts()

  def make(without=None):
    if kind == 'text':
      rest = {u: s for u, s in texts.items() if u != without}
      source = _write_jsonl(tmp_path, rest)
    else:
      source = _write_npz(tmp_path, without)
    return build.prepare(source, tmp_path / 'out', config, overwrite=True)

  data = make()
  expected = _of_store(data)
  people = _private_people(
    [
      [n.partition('#')[0] for n in data.users(g)]
      for g in ('private', 'public')
    ]
  )
  sizes = [len(data.examples(user)[0]) for user in people]
  # The one with the most rows, and some others.
  for user in {people[int(np.argmax(sizes))], *people[:: len(people) // 5]}:
    without = make(user)
    assert _of_store(without) == expected
    assert len(without.users('private')) < len(data.users('private'))


def test_an_overflow_user_leaves_with_their_person(list_source, tmp_path):
  # Epsilon does not protect their later sentences. One other is drawn instead.
  texts = _texts()
  config = _config('drawn')
  plan, _ = _of_text(list_source({'train': texts}), config, tmp_path)
  public = plan.groups['public'].names
  for user in plan.groups['public'].ids:
    rest = {u: s for u, s in texts.items() if u != user}
    other, _ = _of_text(list_source({'train': rest}), config, tmp_path)
    assert set(public) - set(other.groups['public'].names) == {
      f'{user}#overflow'
    }
    assert len(other.groups['public']) == len(public)
