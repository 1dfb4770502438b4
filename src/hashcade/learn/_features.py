"""Features of images from a network that somebody else trained, computed once and kept.

A pass over 60,000 images takes minutes, so what is done is kept chunk by chunk: a run that was
broken off goes on, and a finished one is a file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F  # noqa: N812

from hashcade.codes._check import checked_count
from hashcade.errors import StorageError
from hashcade.learn._display import Display
from hashcade.learn._efficientnet import FEATURES, EfficientNetLite0, imagenet_weights
from hashcade.learn._inputs import checked_images

Halves = npt.NDArray[np.float16]

_RECIPE = "bicubic, (pixels - 127) / 128"  # part of the key: another recipe, other features
_CHUNK = 2000  # images between two files
_BATCH = 32  # small enough for the caches of a core


def efficientnet_features(
    images: npt.ArrayLike,
    *,
    image_size: int = 160,
    mirror: bool = False,
    precision: str = "bfloat16",
    cache: str | os.PathLike[str] | None = None,
    verbose: bool | None = None,
) -> Halves:
    """Pooled features of EfficientNet-Lite0 with its ImageNet weights.

    Needs the extra ``transfer``.

    Parameters
    ----------
    images : uint8[n, height, width, 3]
        Images, brought to ``image_size`` squared by bicubic interpolation.
    mirror
        Whether to take the mirror images instead.
    precision
        ``"bfloat16"``, which is more than twice as fast where the processor has it and costs
        nothing in accuracy, or ``"float32"``.
    cache
        Directory to keep the result in, and parts of it meanwhile. It is found again by a
        checksum of images and settings. None: nothing is kept.
    verbose
        Progress on stderr. None: if it is a terminal.

    Returns
    -------
    float16[n, 1280]
    """
    pixels = checked_images(images)
    size = checked_count("image_size", image_size)
    if precision not in ("bfloat16", "float32"):
        raise ValueError(f"precision={precision!r} must be 'bfloat16' or 'float32'")
    key = hashlib.sha256(repr((_RECIPE, pixels.shape, size, mirror, precision)).encode())
    key.update(pixels.tobytes())
    folder = None if cache is None else Path(cache).expanduser()
    whole = None if folder is None else folder / f"efficientnet-lite0-{key.hexdigest()[:16]}.npy"
    if whole is not None and whole.exists():
        return _read(whole, len(pixels))
    network = EfficientNetLite0(imagenet_weights()).eval()
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    network = network.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def features(part: npt.NDArray[np.uint8]) -> Halves:
        batches = []
        for at in range(0, len(part), _BATCH):
            batch = torch.from_numpy(part[at : at + _BATCH]).permute(0, 3, 1, 2).float()
            large = F.interpolate(batch.flip(3) if mirror else batch, (size, size), mode="bicubic")
            large = large.to(dtype=dtype, memory_format=torch.channels_last)
            batches.append(network(large).to(torch.float16).numpy())
        return np.concatenate(batches)

    return _chunk_by_chunk(pixels, features, whole, Display(verbose))


def _chunk_by_chunk(
    pixels: npt.NDArray[np.uint8],
    features: Callable[[npt.NDArray[np.uint8]], Halves],
    whole: Path | None,
    display: Display,
) -> Halves:
    """All features; with a place to keep them, chunks are written there and found again."""
    parts = []
    chunks = None if whole is None else whole.with_suffix(".parts")
    for at in range(0, len(pixels), _CHUNK):
        part = pixels[at : at + _CHUNK]
        place = None if chunks is None else chunks / f"{at:09d}.npy"
        if place is not None and place.exists():
            parts.append(_read(place, len(part)))
            continue
        parts.append(features(part))
        if place is not None:
            _write(place, parts[-1])
        display.say(f"features of {at + len(part):,} of {len(pixels):,} images")
    found = np.concatenate(parts)
    if whole is not None and chunks is not None:
        _write(whole, found)
        shutil.rmtree(chunks, ignore_errors=True)
    return found


def _write(path: Path, values: Halves) -> None:
    """Write an array so that it is there whole or not at all."""
    made = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with made.open("wb") as file:
            np.save(file, values, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        made.unlink(missing_ok=True)


def _read(path: Path, n_items: int) -> Halves:
    try:
        values: Halves = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(f"cannot read {path}: {error}; remove it to compute it anew") from None
    if values.shape != (n_items, FEATURES) or values.dtype != np.float16:
        raise StorageError(
            f"{path} holds {values.dtype} of shape {values.shape}, must be float16 of shape "
            f"({n_items}, {FEATURES}); remove it to compute it anew"
        )
    return values
