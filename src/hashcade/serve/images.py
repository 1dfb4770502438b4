"""Pictures of the items, by item id, as small PNG or JPEG files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade.data import list_image_folder, read_image, read_npy, read_npz, resize_image
from hashcade.errors import DataError
from hashcade.store import Catalog

_SIDE = 192  # of what is handed out
_CACHED = 4096  # small files in memory

Pixels = npt.NDArray[np.uint8]
Source = Callable[[int | str], "Pixels | Path | None"]


class Pictures:
    """Pictures of items; ``source`` gives that of an item as a file or an array, or None."""

    def __init__(self, source: Source, *, max_pixels: int) -> None:
        require_extra("PIL.Image", "images")
        self._source, self._max_pixels = source, max_pixels
        self._small_file = lru_cache(_CACHED)(self._make_small_file)

    def __contains__(self, item: int | str) -> bool:
        return self._source(item) is not None

    def pixels(self, item: int | str, size: tuple[int, int]) -> Pixels | None:
        """The picture of an item in a given height and width, or None if there is none."""
        source = self._source(item)
        if isinstance(source, Path):
            return read_image(source, size=size, max_pixels=self._max_pixels)
        if source is None or source.shape[:2] == size:
            return source
        return resize_image(source, size)

    def get(self, item: int | str) -> tuple[bytes, str] | None:
        """A small file and its media type, or None if there is no picture of the item."""
        return self._small_file(item) if item in self else None

    def _make_small_file(self, item: int | str) -> tuple[bytes, str]:
        """Tiny pictures stay as they are; others are reduced."""
        source = self._source(item)
        if source is None:  # it was there a moment ago
            raise DataError(f"there is no picture of item {item!r}")
        if isinstance(source, Path):
            source = read_image(source, max_pixels=self._max_pixels)
        image_module: Any = require_extra("PIL.Image", "images")
        image = image_module.fromarray(np.ascontiguousarray(source))
        kind = "PNG" if max(image.size) <= 64 else "JPEG"
        image.thumbnail((_SIDE, _SIDE))
        file = io.BytesIO()
        image.save(file, kind, quality=85)
        return file.getvalue(), f"image/{kind.lower()}"


def from_path(path: Path) -> Source:
    """See ``ServeSettings.pictures``."""
    if path.is_dir():
        files, _, _ = list_image_folder(path)
        return _by_number(files)
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder of pictures")
    if path.suffix == ".json":
        try:
            entries = json.loads(path.read_text("utf-8"))
            names = {item: str(file) for item, file in entries.items()}
        except (OSError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: must be an object with a path for each id: {error}") from None
        return _below(path.parent, names)
    if path.suffix in (".npy", ".npz"):
        return _from_arrays(path)
    raise DataError(f"{path}: pictures must be a folder, .npz, .npy or .json")


def from_catalog(catalog: Catalog, current: Callable[[], Catalog]) -> Source | None:
    """The images that a table was filled with, if they are where they were.

    ``current`` gives the catalog of the moment: ids may be used again.
    """
    data = catalog.data
    if data is None or not data.is_dir() or not catalog.has_names:
        return None
    root = data.resolve()

    def source(item: int | str) -> Path | None:
        name = current().name_of(item)
        file = None if name is None else (root / name).resolve()
        return file if file is not None and file.is_relative_to(root) else None

    return source


def _by_number(pictures: Any) -> Source:
    """The picture at the place that an id gives, if it is a number."""

    def source(item: int | str) -> Pixels | Path | None:
        is_here = isinstance(item, int) and item < len(pictures)
        return pictures[item] if is_here else None

    return source


def _below(folder: Path, names: Mapping[str, str]) -> Source:
    """Files by id; all of them must stay below the folder."""
    root = folder.resolve()
    files = {item: (root / name).resolve() for item, name in names.items()}
    for item, file in files.items():
        if not file.is_relative_to(root):
            raise DataError(f"{folder}: {names[item]} of id {item} lies outside of {root}")
    return lambda item: files.get(str(item))


def _from_arrays(path: Path) -> Source:
    """Pictures in an array; an ``.npz`` may have ``ids`` beside them."""
    arrays = {"images": read_npy(path, mmap=True)} if path.suffix == ".npy" else read_npz(path)
    images = next((array for array in arrays.values() if array.ndim in (3, 4)), None)
    if images is None:
        raise DataError(f"{path}: has no pictures, uint8[n, h, w, 3]")
    if images.dtype != np.uint8 or images.shape[3:] not in ((), (3,)):
        raise DataError(f"{path}: is {images.dtype}{list(images.shape)}, must be uint8[n, h, w, 3]")
    ids = arrays.get("ids")
    if ids is None:
        return _by_number(images)
    if ids.shape != (len(images),):
        raise DataError(f"{path}: has {len(images)} pictures and ids of shape {ids.shape}")
    return dict(zip(ids.tolist(), images, strict=True)).get
