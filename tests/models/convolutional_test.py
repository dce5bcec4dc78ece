"""Specifications of convolutional nets, linear ones and perceptrons."""

import dataclasses

from pda_fed.models import convolutional
import pytest

_LINEAR = convolutional.linear((7,), 3)
_MLP = dataclasses.replace(_LINEAR, dense_sizes=(5, 4))


def test_images_that_are_too_small_are_refused():
  with pytest.raises(ValueError, match='at least one pixel'):
    convolutional.ConvolutionalSpec(
      image_shape=(2, 2, 1),
      convolutions=(
        convolutional.Convolution(filters=1, size=3, padding='VALID'),
      ),
      dense_sizes=(),
      num_classes=2,
    )


def test_sizes_without_convolutions():
  assert _LINEAR.num_parameters == 7 * 3 + 3
  assert _MLP.num_parameters == (7 + 1) * 5 + (5 + 1) * 4 + (4 + 1) * 3
  assert convolutional.linear((8, 8, 2), 3).num_parameters == 129 * 3


@pytest.mark.parametrize('shape', [(), (8, 8), (1, 2, 3, 4)])
def test_shapes_of_neither_images_nor_tables(shape):
  with pytest.raises(ValueError, match='image_shape must be height.*Found'):
    convolutional.linear(shape, 3)
  layers = convolutional.DIGITS.convolutions
  with pytest.raises(ValueError, match=r'without convolutions.*Found \(7,\)'):
    dataclasses.replace(_LINEAR, convolutions=layers)


@pytest.mark.parametrize(
  'size, filters',
  [
    (2, [32]),
    (8, [32]),
    (16, [32, 64]),
    (28, [32, 64]),
    (64, [32, 64, 128, 128]),
  ],
)
def test_a_model_for_images_of_any_size(size, filters):
  # The shorter side counts.
  for shape in ((size, 3 * size, 2), (3 * size, size, 2)):
    spec = convolutional.for_images(shape, 5)
    # Two of each block.
    assert [c.filters for c in spec.convolutions[::2]] == filters
  assert spec.num_classes == 5
  assert convolutional.for_images((32, 32, 3), 10) == convolutional.CIFAR10


@pytest.mark.parametrize('shape', [(1, 9, 3), (8, 8), (0, 4, 1), ()])
def test_shapes_that_are_no_images(shape):
  with pytest.raises(ValueError, match='image_shape must be height'):
    convolutional.for_images(shape, 10)
