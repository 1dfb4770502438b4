"""Features of images from a pre-trained network, computed once and cached on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hashcade._extras import require_extra
from hashcade._io import new_file
from hashcade._progress import Progress
from hashcade._validate import as_array, checked_choice, checked_count
from hashcade.data.extractor import EFFICIENTNET_SIZE
from hashcade.data.transforms import check_images
from hashcade.errors import StorageError

Features = NDArray[np.float16]

_RECIPE = "bicubic, (pixels - 127) / 128"  # part of the cache key
_CHUNK = 2000  # images per file of an unfinished run


def efficientnet_features(
    images: ArrayLike,
    *,
    image_size: int = 160,
    mirror: bool = False,
    precision: str = "bfloat16",
    cache: str | os.PathLike[str] | None = None,
    verbose: bool | None = None,
) -> Features:
    """Compute pooled features, float16[n, 1280], of EfficientNet-Lite0 with its ImageNet weights.

    Images, uint8[n, height, width, 3], are resized to ``image_size`` squared by bicubic
    interpolation, and mirrored with ``mirror``. Needs the extra ``transfer``.
    ``precision="bfloat16"`` is more than twice as fast as ``"float32"`` on processors that support
    it, at no cost in accuracy. ``cache`` is a directory for the result, and for parts from which an
    interrupted run resumes; files are named by a checksum of images and settings. ``verbose`` shows
    progress on stderr; None: if it is a terminal.
    """
    pixels = np.require(as_array("images", images), requirements=["C", "W"])
    check_images(pixels, np.uint8)
    size = checked_count("image_size", image_size)
    checked_choice("precision", precision, ("bfloat16", "float32"))
    key = hashlib.sha256(repr((_RECIPE, pixels.shape, size, mirror, precision)).encode())
    key.update(pixels.data)
    name = f"efficientnet-lite0-{key.hexdigest()[:16]}"
    directory = None if cache is None else Path(cache).expanduser()
    parts = None if directory is None else directory / f"{name}.parts"

    def compute() -> Features:
        require_extra("torch", "transfer")
        from hashcade.data.efficientnet import feature_extractor

        extract = feature_extractor(size, mirror=mirror, precision=precision)
        progress = Progress(verbose)
        chunks = []
        for start in range(0, len(pixels), _CHUNK):
            chunk = pixels[start : start + _CHUNK]
            chunks.append(_cached(parts, f"{start:09d}.npy", len(chunk), lambda: extract(chunk)))  # noqa: B023
            progress.say(f"features of {start + len(chunk):,} of {len(pixels):,} images")
        return np.concatenate(chunks)

    features = _cached(directory, f"{name}.npy", len(pixels), compute)
    if parts is not None:
        shutil.rmtree(parts, ignore_errors=True)
    return features


def _cached(
    directory: Path | None, name: str, n_items: int, compute: Callable[[], Features]
) -> Features:
    """Read features from a file; if it does not exist, compute them and write it."""
    if directory is None:
        return compute()
    path = directory / name
    if not path.exists():
        computed = compute()
        with new_file(path) as temporary:
            np.save(temporary, computed, allow_pickle=False)
        return computed
    try:
        values: Features = np.load(path, allow_pickle=False)
        shape = (n_items, EFFICIENTNET_SIZE)
        if values.shape != shape or values.dtype != np.float16:
            raise ValueError(f"{values.dtype}{values.shape} is not float16{shape}")
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(f"cannot read {path}: {error}", hint="remove it") from None
    return values
