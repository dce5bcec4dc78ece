"""Images in less than 2 kB each: for a machine that files must travel to.

CIFAR-10 has 184 MB, and its bytes hardly compress. What does are differences:
of red and blue from green, and of each pixel from the median of its left and
upper neighbours and their gradient, the predictor of LOCO-I ("The LOCO-I
Lossless Image Compression Algorithm", Weinberger et al., 2000). A packed
folder is the same data set in 100 MB, in files of 4 MB; nothing is lost.
`load_cifar10` reads such a folder too, and `scripts/pack_images` writes it.
"""

from concurrent import futures
import lzma
import math
import os
import pathlib
import struct

from data_prep import errors
from data_prep.sample_level import base
from data_prep.sample_level import files
import numpy as np

_NAME = 'images-{:03d}.xz'
_MAGIC = b'pda_fed images 2\n'
# Of the first version, whose files do not say which of how many they are.
_OLD_MAGIC = b'pda_fed images 1\n'
_GREEN = 1
_HEADER_BYTES = 16  # Four numbers: the shape.


def _predict(left, up, corner):
  """The median of left, up and left + up - corner."""
  low, high = np.minimum(left, up), np.maximum(left, up)
  inner = left + up - corner
  return np.where(corner >= high, low, np.where(corner <= low, high, inner))


def _mix_channels(images: np.ndarray, sign: int) -> np.ndarray:
  """Subtracts green from the other channels (sign -1), or adds it."""
  if images.shape[-1] < 3:
    return images
  mixed = images.copy()
  for channel in range(images.shape[-1]):
    if channel != _GREEN:
      mixed[..., channel] += sign * images[..., _GREEN]
  return mixed


def encode_images(images: np.ndarray) -> np.ndarray:
  """Returns differences, modulo 256, of the images' shape.

  Args:
    images: uint8 [images, height, width, channels].
  """
  x = _mix_channels(images.astype(np.int16), -1)
  padded = np.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)))
  left, up, corner = padded[:, 1:, :-1], padded[:, :-1, 1:], padded[:, :-1, :-1]
  return ((x - _predict(left, up, corner)) & 255).astype(np.uint8)


def decode_images(differences: np.ndarray) -> np.ndarray:
  """Returns the images that `encode_images` was given.

  Pixel by pixel, since each needs its neighbours, for all images at once.

  Args:
    differences: uint8 [images, height, width, channels].
  """
  count, height, width, channels = differences.shape
  x = np.zeros((height + 1, width + 1, count, channels), np.int16)
  waiting = differences.transpose(1, 2, 0, 3)
  # Differences of channels are from -255 to 255; the first is from 0 to 255.
  low = np.full(channels, 0 if channels < 3 else -255, np.int16)
  if channels >= 3:
    low[_GREEN] = 0
  for i in range(height):
    for j in range(width):
      guess = _predict(x[i + 1, j], x[i, j + 1], x[i, j])
      x[i + 1, j + 1] = (guess + waiting[i, j]) & 255
      if channels >= 3:
        green = x[i + 1, j + 1, :, _GREEN : _GREEN + 1]
        # The one number of its class modulo 256 that gives a pixel again.
        x[i + 1, j + 1] = np.where(
          low < 0, ((x[i + 1, j + 1] + green) & 255) - green, x[i + 1, j + 1]
        )
  images = _mix_channels(x[1:, 1:].transpose(2, 0, 1, 3), 1)
  return images.astype(np.uint8)


def _pack(part: base.Examples, number: int, num_files: int) -> bytes:
  header = np.array(part.inputs.shape, '<u4').tobytes()
  labels = part.targets.astype('<u2').tobytes()
  # Channel by channel, image by image: neighbours are alike.
  body = encode_images(part.inputs).transpose(3, 0, 1, 2).tobytes()
  content = lzma.compress(header + labels + body, preset=6)
  return _MAGIC + struct.pack('<2I', number, num_files) + content


def _unpack(path: pathlib.Path, number: int, num_files: int) -> base.Examples:
  with files.opened(path, unpack=False) as packed:
    magic = packed.read(len(_MAGIC))
    if magic not in (_MAGIC, _OLD_MAGIC):
      raise errors.SourceError(f'{path} must be a file of packed images.')
    place = struct.pack('<2I', number, num_files)
    if magic == _MAGIC and packed.read(len(place)) != place:
      raise errors.SourceError(
        f'{path} must be file {number} of {num_files}. It is another: is one'
        ' missing?'
      )
    with lzma.open(packed) as f:
      header = f.read(_HEADER_BYTES)
      if len(header) < _HEADER_BYTES:
        raise errors.SourceError(f'{path} is cut off in its header.')
      shape = tuple(np.frombuffer(header, '<u4').tolist())
      count, height, width, channels = shape
      expected = 2 * count + math.prod(shape)
      content = files.read_at_most(f, expected)
  if len(content) != expected or not math.prod(shape):
    found = 'more' if len(content) > expected else f'{len(content):,}'
    raise errors.SourceError(
      f'{path} must have {max(1, expected):,} bytes behind its header, for'
      f' images of the shape {shape}. Found {found}.'
    )
  labels = np.frombuffer(content, '<u2', count).astype(np.int32)
  body = np.frombuffer(content, np.uint8, offset=2 * count)
  planes = body.reshape(channels, count, height, width)
  return base.Examples(decode_images(planes.transpose(1, 2, 3, 0)), labels)


def write_packed(
  examples: base.Examples, folder: os.PathLike, images_per_file: int = 2500
) -> list[pathlib.Path]:
  """Writes examples as numbered files.

  Args:
    examples: Images, uint8.
    folder: Where to; made if it is not there.
    images_per_file: Files are read side by side, by all cores.

  Returns:
    The files.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  paths = []
  starts = range(0, len(examples), images_per_file)
  for i, start in enumerate(starts):
    rows = np.arange(start, min(start + images_per_file, len(examples)))
    paths.append(folder / _NAME.format(i))
    paths[-1].write_bytes(_pack(examples.take(rows), i, len(starts)))
  return paths


def read_packed(folder: os.PathLike) -> base.Examples:
  """Reads what `write_packed` wrote.

  Args:
    folder: Of the numbered files.

  Raises:
    SourceError: If there is none, or one is damaged or missing.
  """
  folder = pathlib.Path(folder)
  paths = sorted(folder.glob(_NAME.format(0).replace('000', '*')))
  if not paths or paths[-1].name != _NAME.format(len(paths) - 1):
    raise errors.SourceError(
      f'{folder} must hold {_NAME.format(0)}, {_NAME.format(1)}, ... without a'
      f' gap. Found {len(paths)} of them.'
    )
  # lzma lets other threads run.
  with futures.ThreadPoolExecutor() as pool:
    numbers = range(len(paths))
    parts = list(pool.map(_unpack, paths, numbers, [len(paths)] * len(paths)))
  for path, part in zip(paths, parts, strict=True):
    if part.inputs.shape[1:] != parts[0].inputs.shape[1:]:
      raise errors.SourceError(
        f'{path} must hold images of the shape {parts[0].inputs.shape[1:]}, as'
        f' {paths[0]}. Found {part.inputs.shape[1:]}.'
      )
  return base.Examples(
    np.concatenate([part.inputs for part in parts]),
    np.concatenate([part.targets for part in parts]),
  )
