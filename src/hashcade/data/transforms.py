"""Transforms of training images: the mean image, random crops and mirror images."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hashcade._validate import checked_count

Pixels = TypeVar("Pixels", np.uint8, np.float32)

_CHUNK = 4096


def per_pixel_mean(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the mean, float32[h, w, 3] from 0 to 1, of the images of a training set.

    ``images`` is uint8[n, h, w, 3], without the validation set.
    """
    check_images(images, np.uint8)
    # Sums of integers are exact, and the same for every chunk size.
    total = np.zeros(images.shape[1:], np.uint64)
    for start in range(0, len(images), _CHUNK):
        total += images[start : start + _CHUNK].sum(axis=0, dtype=np.uint32)
    return (total / (255.0 * len(images))).astype(np.float32)


def augment(
    images: NDArray[Pixels], rng: np.random.Generator, *, pad: int = 4, mirror: bool = True
) -> NDArray[Pixels]:
    """Shift images by up to ``pad`` pixels each way, and mirror each with probability 1/2.

    As in the paper: pad, crop randomly to the original size, flip left to right. The padding is
    zero: black in uint8 images, the mean image in centred float32 images. Use ``mirror=False`` for
    letters, digits and whatever differs from its mirror image.
    """
    check_images(images)
    checked_count("pad", pad, at_least=0)
    n, height, width, colours = images.shape
    shifts = rng.integers(0, 2 * pad + 1, size=(2, n))
    mirrored = mirror & (rng.random(n) < 0.5)
    padded = np.zeros((n, height + 2 * pad, width + 2 * pad, colours), images.dtype)
    padded[:, pad : pad + height, pad : pad + width] = images
    # Every window of every image, as a view: (n, down, right, height, width * colours). The
    # pixels of a row are contiguous, so that a window is copied row by row.
    image_stride, row_stride, pixel_stride, colour_stride = padded.strides
    windows: NDArray[Pixels] = as_strided(
        padded,
        (n, 2 * pad + 1, 2 * pad + 1, height, width * colours),
        (image_stride, row_stride, pixel_stride, row_stride, colour_stride),
        writeable=False,
    )
    cropped: NDArray[Pixels] = windows[np.arange(n), shifts[0], shifts[1]].reshape(images.shape)
    cropped[mirrored] = cropped[mirrored, :, ::-1]
    return cropped


def check_images(images: NDArray[Any], dtype: type[np.generic] | None = None) -> None:
    """Check that an array holds images, [n, height, width, 3]."""
    if images.ndim != 4 or images.shape[3] != 3 or images.size == 0:
        raise ValueError(f"images has shape {images.shape}, must be (n, height, width, 3), n >= 1")
    if dtype is not None and images.dtype != dtype:
        raise ValueError(f"images has dtype {images.dtype}, must be {np.dtype(dtype)}")
