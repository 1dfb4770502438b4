"""What training does to images before a network sees them."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

Pixels = TypeVar("Pixels", np.uint8, np.float32)

_CHUNK = 4096


def per_pixel_mean(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Mean image of a training set, from 0 to 1.

    Parameters
    ----------
    images : uint8[n, h, w, 3]
        Those to train on alone: what is held out must not leak in.

    Returns
    -------
    float32[h, w, 3]
    """
    _check_images(images)
    if images.dtype != np.uint8:
        raise ValueError(f"images has dtype {images.dtype}, must be uint8")
    # Sums of integers: exact, and the same in whatever pieces they are taken.
    total = np.zeros(images.shape[1:], np.uint64)
    for start in range(0, len(images), _CHUNK):
        total += images[start : start + _CHUNK].sum(axis=0, dtype=np.uint32)
    return (total / (255.0 * len(images))).astype(np.float32)


def centre_pixels(
    images: npt.NDArray[np.uint8], mean: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Pixels as a network takes them: divided by 255, minus the mean image.

    Parameters
    ----------
    images : uint8[n, h, w, 3]
    mean : float32[h, w, 3]
        From :func:`per_pixel_mean`.

    Returns
    -------
    float32[n, h, w, 3]
    """
    _check_images(images)
    if mean.shape != images.shape[1:]:
        raise ValueError(f"mean has shape {mean.shape}, images have shape {images.shape[1:]}")
    centred = images.astype(np.float32)
    centred *= np.float32(1 / 255)
    centred -= mean
    return centred


def augment(
    images: npt.NDArray[Pixels], rng: np.random.Generator, *, pad: int = 4, mirror: bool = True
) -> npt.NDArray[Pixels]:
    """Shift every image by up to ``pad`` pixels each way, and mirror every other one.

    As in the paper: the image is surrounded by ``pad`` pixels, a part of the original size is
    cut out at random, and turned left to right by the toss of a coin. The border is zero: black
    in uint8 images, the mean image in those that come from :func:`centre_pixels`.

    Parameters
    ----------
    images : uint8[n, h, w, 3] or float32[n, h, w, 3]
        Not changed.
    rng
        Where the chances come from; the same state gives the same result.
    pad
        Pixels on each side.
    mirror
        Whether to mirror at all: not for letters, digits and whatever is not its mirror image.

    Returns
    -------
    Like ``images``.
    """
    _check_images(images)
    if pad < 0:
        raise ValueError(f"pad={pad} must be >= 0")
    n, height, width, colours = images.shape
    shifts = rng.integers(0, 2 * pad + 1, size=(2, n))
    mirrored = mirror & (rng.random(n) < 0.5)
    padded = np.zeros((n, height + 2 * pad, width + 2 * pad, colours), images.dtype)
    padded[:, pad : pad + height, pad : pad + width] = images
    # Every window of every image, as a view: (n, down, right, height, width * colours). The
    # pixels of a row lie side by side, so that a window is copied row by row.
    by_image, by_row, by_pixel, by_colour = padded.strides
    windows: npt.NDArray[Pixels] = as_strided(
        padded,
        (n, 2 * pad + 1, 2 * pad + 1, height, width * colours),
        (by_image, by_row, by_pixel, by_row, by_colour),
        writeable=False,
    )
    cut: npt.NDArray[Pixels] = windows[np.arange(n), shifts[0], shifts[1]].reshape(images.shape)
    cut[mirrored] = cut[mirrored, :, ::-1]
    return cut


def _check_images(images: npt.NDArray[Any]) -> None:
    if images.ndim != 4 or images.shape[3] != 3 or images.size == 0:
        raise ValueError(f"images has shape {images.shape}, must be (n, height, width, 3), n >= 1")
