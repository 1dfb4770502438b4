"""Pictures of the items, by item id, as small PNG or JPEG files."""

from __future__ import annotations

import io
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade.data._folder import class_folders, images_below
from hashcade.errors import DataError
from hashcade.index._origin import Origin

_SIDE = 192  # of what is handed out
_KEPT = 4096  # small files in memory
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def decode_image(
    source: Path | io.BytesIO, *, max_pixels: int, size: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8]:
    """Decode an image from a file or from bytes that anyone may have sent.

    Parameters
    ----------
    source
        A file, or its bytes.
    max_pixels
        An image with more is refused by its header, before memory is spent on it.
    size
        Height and width: the image is scaled until it covers this, and cut.

    Returns
    -------
    uint8[height, width, 3]

    Raises
    ------
    DataError
        If it is no image of a kind that is known, is damaged, or is too large.
    """
    image_module: Any = require_extra("PIL.Image", "images")
    image_ops: Any = require_extra("PIL.ImageOps", "images")
    try:
        with image_module.open(source, formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > max_pixels:
                raise DataError(
                    f"the image has {width * height} pixels, must have <= max_pixels={max_pixels}"
                )
            image = image_ops.exif_transpose(opened).convert("RGB")
            if size is not None and image.size != (size[1], size[0]):
                image = image_ops.fit(image, (size[1], size[0]), image_module.Resampling.BICUBIC)
            return np.asarray(image, dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # decoders fail in many ways of their own
        if type(error).__name__ in ("DecompressionBombError", "DecompressionBombWarning"):
            reason = f"has more pixels than max_pixels={max_pixels}"
        else:
            reason = "cannot be read as " + ", ".join(FORMATS)
        raise DataError(f"the image {reason}") from None


class Pictures:
    """Pictures of items from a folder, an array or a list; see ``ServeSettings.pictures``."""

    def __init__(self, path: Path, *, max_pixels: int) -> None:
        require_extra("PIL.Image", "images")
        self.class_names: list[str] | None = None
        self._max_pixels = max_pixels
        self._cache: OrderedDict[int, tuple[bytes, str]] = OrderedDict()
        self._lock = threading.Lock()
        self._find = self._source(path)

    def _source(self, path: Path) -> Callable[[int], npt.NDArray[np.uint8] | Path | None]:
        if path.is_dir():
            folders = class_folders(path)
            files = [file for folder in folders for file in images_below(folder)]
            if not files:
                raise DataError(f"{path}: must be a folder with one folder of images per class")
            self.class_names = [folder.name for folder in folders]
            return lambda item: files[item] if item < len(files) else None
        if not path.is_file():
            raise DataError(f"{path}: there are no pictures, no such file or folder")
        if path.suffix == ".json":
            return _listed(path)
        if path.suffix in (".npy", ".npz"):
            return _stored(path)
        raise DataError(f"{path}: pictures must be a folder, .npz, .npy or .json")

    def __contains__(self, item: int) -> bool:
        return self._find(item) is not None

    def pixels(self, item: int, size: tuple[int, int]) -> npt.NDArray[np.uint8] | None:
        """The picture of an item in a given height and width, or None if there is none."""
        found = self._find(item)
        if found is None:
            return None
        if isinstance(found, Path):
            return decode_image(found, max_pixels=self._max_pixels, size=size)
        if found.shape[:2] == size:
            return found
        file = io.BytesIO()
        _image(found).save(file, "PNG")
        return decode_image(file, max_pixels=self._max_pixels, size=size)

    def get(self, item: int) -> tuple[bytes, str] | None:
        """A small file and its media type, or None if there is no picture of the item."""
        with self._lock:
            if item in self._cache:
                self._cache.move_to_end(item)
                return self._cache[item]
        found = self._find(item)
        if found is None:
            return None
        if isinstance(found, Path):
            found = decode_image(found, max_pixels=self._max_pixels)
        made = _small_file(found)
        with self._lock:
            self._cache[item] = made
            while len(self._cache) > _KEPT:
                self._cache.popitem(last=False)
        return made


def _image(pixels: npt.NDArray[np.uint8]) -> Any:
    image_module: Any = require_extra("PIL.Image", "images")
    return image_module.fromarray(np.ascontiguousarray(pixels))


def _small_file(pixels: npt.NDArray[np.uint8]) -> tuple[bytes, str]:
    """Tiny pictures keep every pixel; others are reduced."""
    image = _image(pixels)
    kind = "PNG" if max(image.size) <= 64 else "JPEG"
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, kind, quality=85)
    return file.getvalue(), f"image/{kind.lower()}"


def _stored(path: Path) -> Callable[[int], npt.NDArray[np.uint8] | None]:
    """Pictures in an array; an ``.npz`` may have ``ids`` beside them."""
    ids: npt.NDArray[Any] | None = None
    try:
        stored = np.load(path, allow_pickle=False, mmap_mode="r" if path.suffix == ".npy" else None)
        images: Any = stored
        if path.suffix == ".npz":
            with stored:
                fitting = [key for key in stored.files if stored[key].ndim in (3, 4)]
                if not fitting:
                    raise DataError(f"{path}: has no pictures, uint8[n, h, w, 3]")
                images = stored[fitting[0]]
                ids = stored["ids"] if "ids" in stored.files else None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as arrays: {error}") from None
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(f"{path}: is {images.dtype}{list(images.shape)}, must be uint8[n, h, w, 3]")
    if images.ndim == 4 and images.shape[3] != 3:
        raise DataError(f"{path}: has {images.shape[3]} colours, must have 3")
    if ids is None:
        return lambda item: np.asarray(images[item]) if item < len(images) else None
    if ids.shape != (len(images),):
        raise DataError(f"{path}: has {len(images)} pictures and ids of shape {ids.shape}")
    row_of = {int(name): row for row, name in enumerate(ids.tolist())}
    return lambda item: np.asarray(images[row_of[item]]) if item in row_of else None


def _listed(path: Path) -> Callable[[int], Path | None]:
    """Paths for ids; all of them must stay below the folder of the list."""
    try:
        entries = json.loads(path.read_text("utf-8"))
        wanted = {int(item): str(file) for item, file in entries.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: must be a JSON object with a path for each id: {error}") from None
    root = path.parent.resolve()
    files: dict[int, Path] = {}
    for item, name in wanted.items():
        file = (root / name).resolve()
        if not file.is_relative_to(root):
            raise DataError(f"{path}: {name} of id {item} lies outside of {root}")
        files[item] = file
    return files.get


def folder_of_origin(origin: Origin) -> Path | None:
    """The folder that an index was built from, if its images are still the items in their order."""
    root = origin.data
    if root is None or not origin.names or not root.is_dir():
        return None
    files = [file for folder in class_folders(root) for file in images_below(folder)]
    names = tuple(file.relative_to(root).as_posix() for file in files)
    return root if names == origin.names else None


def read_names(path: Path) -> list[str]:
    """Names of classes from a file: a JSON list, or one a line."""
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".json":
            names = json.loads(text)
            if not isinstance(names, list):
                raise DataError(f"{path}: must be a JSON list of names")
            return [str(name) for name in names]
        return text.splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as names of classes: {error}") from None
