"""Decoding of untrusted image files and bytes to RGB arrays."""

from __future__ import annotations

import io
import os
import threading
import warnings
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hashcade._extras import require_extra
from hashcade._io import open_regular
from hashcade.data.items import reason
from hashcade.errors import DataError

IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
IMAGE_SUFFIXES = {".bmp", ".gif", ".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
MAX_PIXELS = 50_000_000

Size = int | tuple[int, int]

_warning_lock = threading.Lock()


def read_image(
    source: str | os.PathLike[str] | bytes | BinaryIO,
    *,
    size: Size | None = None,
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.uint8]:
    """Decode one image as uint8[height, width, 3]. Needs the extra ``images``.

    It is rotated by its EXIF orientation; grey is converted to RGB, 16 bits are scaled to 8,
    transparency is dropped, and of an animation the first frame is taken.

    The source is a path, bytes or a seekable stream, in one of ``IMAGE_FORMATS``, whatever its file
    name. ``size`` is a side, or height and width: the image is scaled to cover it, and then
    cropped. An image with more than ``max_pixels`` is refused by its header.
    """
    target = checked_size(size)
    where = str(source) if isinstance(source, (str, os.PathLike)) else "the image"
    pillow: Any = require_extra("PIL.Image", "images")
    ops: Any = require_extra("PIL.ImageOps", "images")
    stream: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        if isinstance(stream, str | os.PathLike):
            stream = open_regular(stream)
        # max_pixels replaces Pillow's warning. Warning filters are shared between threads.
        with _warning_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            image_file = pillow.open(stream, formats=IMAGE_FORMATS)
        with image_file:
            n_pixels = image_file.width * image_file.height
            if n_pixels > max_pixels:
                raise DataError(f"{where} has {n_pixels} pixels, must have <= {max_pixels=}")
            if target is not None:  # decode a large JPEG at a fraction of its size: faster
                image_file.draft(None, (2 * max(target),) * 2)
            image = _as_rgb(ops.exif_transpose(image_file), image_file.format, where)
            return _fit(image, target)
    except DataError:
        raise
    except pillow.UnidentifiedImageError:
        raise DataError(f"{where} cannot be read as {', '.join(IMAGE_FORMATS)}") from None
    except pillow.DecompressionBombError:  # twice Pillow's own limit
        limit = min(max_pixels, 2 * pillow.MAX_IMAGE_PIXELS)
        raise DataError(f"{where} has too many pixels, must have <= max_pixels={limit}") from None
    except Exception as error:  # decoders raise all kinds of errors
        raise DataError(f"{where} cannot be read {reason(error)}") from None
    finally:
        if stream is not source:
            stream.close()


def resize_image(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Scale and crop uint8[h, w, 3] to a size, as :func:`read_image` does."""
    pillow: Any = require_extra("PIL.Image", "images")
    return _fit(pillow.fromarray(np.ascontiguousarray(pixels)), checked_size(size))


def image_sides(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Height and width from the header of a file; None if it cannot be read."""
    pillow: Any = require_extra("PIL.Image", "images")
    # What cannot be read is reported when all of it is read.
    with suppress(Exception), _warning_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
        with open_regular(path) as file, pillow.open(file, formats=IMAGE_FORMATS) as opened:
            return opened.height, opened.width
    return None


def checked_size(size: object) -> tuple[int, int] | None:
    """Return a size as (height, width), or None."""
    if size is None:
        return None
    sides: Any = (size, size) if isinstance(size, int) else size
    valid = isinstance(sides, tuple) and len(sides) == 2
    if not valid or not all(type(side) is int and side >= 1 for side in sides):
        raise ValueError(f"size={size!r} must be an integer >= 1, or (height, width)")
    return sides[0], sides[1]


def _fit(image: Any, target: tuple[int, int] | None) -> NDArray[np.uint8]:
    if target is not None and image.size != target[::-1]:
        ops: Any = require_extra("PIL.ImageOps", "images")
        image = ops.fit(image, target[::-1])  # bicubic
    return np.asarray(image, dtype=np.uint8)


def _as_rgb(image: Any, image_format: str, where: str) -> Any:
    """Return an image with three colours of 8 bits."""
    # Pillow has 16-bit grey as "I;16", or as "I" from formats that have at most 16 bits, and
    # would clip it to 255 instead of scaling.
    if image.mode.startswith("I;16") or (image.mode == "I" and image_format in ("PNG", "PPM")):
        pillow: Any = require_extra("PIL.Image", "images")
        grey = np.asarray(image).astype(np.uint16) >> 8
        return pillow.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise DataError(f"{where} has pixels of 32 bits, must have 8 or 16")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
