"""Arrays and tables of users: from the file to the store."""

import gzip

import data_prep
from data_prep import build
from data_prep import sources
from data_prep import store
from data_prep import summary
import numpy as np
import pytest

_RNG = np.random.default_rng(0)
_USER = np.concatenate([np.arange(40), _RNG.integers(0, 40, 160)])
_Y = np.arange(200) % 3
_IMAGES = _RNG.integers(0, 256, (200, 4, 5, 3)).astype(np.uint8)
# The first feature tells the row.
_TABLE = np.stack(
  [np.arange(200), _RNG.normal(5, 3, 200), np.full(200, 0.1)], 1
)


def _arrays(**changes):
  arrays = {'x': _TABLE, 'y': _Y, 'user': _USER, 'num_classes': 3} | changes
  return {name: value for name, value in arrays.items() if value is not None}


def _prepare(folder, *, public_user_ids=(), fraction=0.2, **settings):
  settings = {'seed': 0, 'num_public_users': 6, 'max_sentences': 99} | settings
  return build.prepare(
    sources.open_npz(folder / 'x.npz'),
    folder / 'out',
    build.PrepareConfig(
      partition=data_prep.PartitionConfig(**settings),
      holdout=data_prep.HoldoutConfig(
        validation_fraction=fraction, test_fraction=fraction
      ),
      public_user_ids=public_user_ids,
    ),
    overwrite=True,
  )


@pytest.fixture
def write(tmp_path):
  """Writes arrays and makes a store of them."""

  def make(changes=(), **settings):
    np.savez(tmp_path / 'x.npz', **_arrays(**dict(changes)))
    return _prepare(tmp_path, **settings)

  return make


def _public_rows(data):
  first, *_, last = data.row_offsets('public').tolist()
  return np.load(data.path / store.X)[first:last]


@pytest.mark.parametrize('kind', [int, str, bytes])
def test_every_row_is_its_users(write, kind):
  names = [kind(u) if kind is not bytes else str(u).encode() for u in _USER]
  data = write({'user': np.array(names)})
  data.verify()
  assert isinstance(data, data_prep.ExampleStore)
  assert (data.input_shape, data.num_classes) == ((3,), 3)
  stored = np.load(data.path / store.X)
  assert stored.dtype == np.float32
  seen = []
  for group in data.groups:
    assert list(data.users(group)) == sorted(data.users(group))
    offsets = data.row_offsets(group)
    assert np.array_equal(data.num_examples(group), np.diff(offsets))
    for i, name in enumerate(data.users(group)):
      seen.append(name)
      rows = np.flatnonzero(_USER == int(name))
      found = stored[offsets[i] : offsets[i + 1]]
      assert np.array_equal(found, _TABLE[rows].astype(np.float32))
      for user in (name, (group, i)):
        assert np.array_equal(data.examples(user)[1], _Y[rows])
  assert sorted(seen, key=int) == [str(i) for i in range(40)]
  assert len(data.users('public')) == 6
  assert data.manifest['max_private_users_per_person'] == 1


@pytest.mark.parametrize(
  ('x', 'dtype'),
  [
    (_IMAGES, 'u1'),
    (_IMAGES[..., 0], 'u1'),
    (_IMAGES > 99, '?'),
    (_IMAGES.astype('>f8') / 7, '<f4'),
  ],
)
def test_images_keep_their_type_and_are_standardised(write, x, dtype):
  data = write({'x': x})
  channels = 1 if x.ndim == 3 else 3
  assert data.input_shape == (4, 5, channels)
  assert np.load(data.path / store.X).dtype == dtype
  assert data.row_shapes == (((4, 5, channels), np.float32), ((), np.int32))
  name = data.users('test')[0]
  found, labels = data.examples(name)
  assert (found.dtype, labels.dtype) == (np.float32, np.int32)
  public = _public_rows(data).astype(float)
  mean, scale = public.mean((0, 1, 2)), public.std((0, 1, 2))
  rows = x[_USER == int(name)].reshape(-1, 4, 5, channels).astype(float)
  np.testing.assert_allclose(found, (rows - mean) / scale, atol=1e-4)
  first, *_, last = data.row_offsets('public').tolist()
  shown = data.read(first, last)[0]
  np.testing.assert_allclose(shown.mean((0, 1, 2)), 0, atol=1e-4)
  np.testing.assert_allclose(shown.std((0, 1, 2)), 1, atol=1e-4)


def test_private_rows_have_no_part_in_the_scale(write):
  before = write()
  public = np.isin(_USER, [int(name) for name in before.users('public')])
  inputs = before.manifest['inputs']
  changed = np.where(public[:, None], _TABLE, 1000 * _TABLE + 7)
  assert write({'x': changed}).manifest['inputs'] == inputs
  changed = np.where(public[:, None], 2 * _TABLE, _TABLE)
  assert write({'x': changed}).manifest['inputs'] != inputs


def test_without_public_users_nothing_is_scaled(write):
  data = write(num_public_users=0)
  inputs = data.manifest['inputs']
  assert (inputs['mean'], inputs['scale']) == ([0] * 3, [1] * 3)
  assert 'not standardised' in summary.format_summary(data.manifest)


def test_users_who_opted_in_and_a_cut(write):
  data = write(public_user_ids=('3', '5'), num_public_users=1, max_sentences=2)
  assert {'3', '5'} < set(data.users('public'))
  assert len(data.users('public')) == 3
  assert max(data.num_examples(g).max() for g in data.groups) == 2
  beyond = 200 - np.minimum(np.bincount(_USER), 2).sum()
  assert data.manifest['left_out'] == {'examples beyond the cut': beyond}
  assert len({n for g in data.groups for n in data.users(g)}) == 40


def test_classes_that_were_counted_are_told(write):
  assert write().manifest['classes']['caveats'] == []
  data = write({'num_classes': None})
  assert data.num_classes == 3
  text = summary.format_summary(data.manifest)
  assert 'Classes: 3.\nThe number of classes was read off all labels' in text
  assert 'Inputs: 3 of float32, standardised with the public users' in text


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'user': None}, 'must hold the array user. Found x, y, num_classes'),
    ({'z': _Y}, 'only the arrays x, y, user, num_classes.* Found x, .*, z'),
    ({'user': _USER[:-1]}, 'user must .* 200. Found 199'),
    ({'user': _USER + 0.5}, 'integers or strings. Found float64'),
    ({'user': np.array([b'\xff'] * 200)}, 'UTF-8'),
    ({'user': np.array(['\ud800'] * 200)}, 'UTF-8'),
    ({'y': _Y + 1}, 'integer from 4, .* Found 3'),
  ],
)
def test_bad_arrays(write, tmp_path, changes, words):
  with pytest.raises(data_prep.SourceError, match=f'x.npz.*{words}'):
    write(changes)
  assert [path.name for path in tmp_path.iterdir()] == ['x.npz']


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'num_public_users': 40}, r'num_public_users must be at most \d+.* 40'),
    (
      {'fraction': 1e-9},
      'validation_fraction must be larger.* 40 users.*1e-09',
    ),
    ({'public_user_ids': ('x',)}, "public_user_ids .* 'x'"),
    (
      {'public_user_ids': tuple(map(str, range(40))), 'num_public_users': 0},
      'there must be a private user',
    ),
  ],
)
def test_too_few_users(write, tmp_path, settings, words):
  if len(settings.get('public_user_ids', ())) == 40:
    settings = settings | {'fraction': 0}
  with pytest.raises(ValueError, match=words):
    write(**settings)
  assert [path.name for path in tmp_path.iterdir()] == ['x.npz']


_CSV = 'a,user,label,b\n1,ann,0,2.5\n-3,"b, c",1,1e3\n\n4,ann,2,0\n'


def test_tables(tmp_path):
  path = tmp_path / 'x.csv'
  path.write_text(_CSV, encoding='utf-8-sig')
  with gzip.open(tmp_path / 'x.csv.gz', 'wt') as f:
    f.write(_CSV)
  for name in ('x.csv', 'x.csv.gz'):
    source = sources.open_source(f'csv:{tmp_path / name}')
    assert source.name == name
    assert source.x.tolist() == [[1, 2.5], [-3, 1000], [4, 0]]
    assert source.y.tolist() == [0, 1, 2]
    assert source.users('train').ids == ('ann', 'b, c')
    assert source.users('train').num_sentences.tolist() == [2, 1]
    assert source.rows('ann', 0, 9).tolist() == [0, 2]
    assert 'read off all labels' in source.caveats[0]


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('', 'one column user .* Found an empty file'),
    ('a,user,label\n', 'non-empty array .* Found .* \\(0, 1\\)'),
    ('user,label\nann,1\n', r'Found .* \(1, 0\)'),
    ('a,label\n1,1\n', 'one column user .* Found a, label'),
    ('a,user\n1,1\n', 'one column label'),
    ('user,user,label\n1,1,1\n', 'one column user'),
    (_CSV + '1,ann,0\n', 'line 6, must have 4 cells.* Found: 3 cells'),
    (_CSV + '1,ann,0,,\n', 'Found: 5 cells'),
    (_CSV + '1,ann,0,x\n', "line 6.*float: 'x'"),
    (_CSV + '1,ann,0,\n', "line 6.*float: ''"),
    (_CSV + '1,ann,0.5,1\n', "line 6.*'0.5'"),
    (_CSV + f'1,ann,{10**30},1\n', 'line 6'),
    (_CSV + '1,ann,-1,1\n', 'Found -1 to 2'),
    (_CSV + '1,ann,1,nan\n', 'finite.* row 3'),
    (_CSV + '1,ann,1,1e99\n', 'finite.* row 3'),
    (_CSV + '"', 'must be a CSV file in UTF-8'),
    (b'\xff\xfe', 'must be a CSV file in UTF-8'),
  ],
)
def test_bad_tables(tmp_path, text, words):
  path = tmp_path / 'x.csv'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  with pytest.raises(data_prep.SourceError, match=f'x.csv.*{words}'):
    sources.open_csv(path)
