"""Folders of images, one folder per class."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra
from hashcade.data._files import existing, reason
from hashcade.data._items import LabelledItems
from hashcade.errors import DataError

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
MAX_PIXELS = 50_000_000
_EXTRA = "images"


def load_image_folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int, int], None] | None = None,
) -> LabelledItems:
    """Load images from a folder that has a folder of images for each class.

    Parameters
    ----------
    path
        For example with ``path/cat/1.jpg`` and ``path/dog/holiday/7.png``: the folder right
        below ``path`` names the class. Hidden files and files of other kinds are passed over.
    size
        Side, or height and width, of the result. An image of another size is scaled until it
        covers this, and what protrudes is cut off evenly. By default all images must have one
        size already.
    on_error
        What to do about an image that cannot be read: ``"raise"``, or ``"skip"`` it and say so
        in the result's ``skipped``.
    max_pixels
        An image with more pixels than this counts as one that cannot be read. It is refused by
        its header, before memory is spent on it.
    progress
        Called for each image with its number, from 1, and the number of all of them.

    Returns
    -------
    LabelledItems
        uint8[n, height, width, 3] images: turned upright as their EXIF orientation says, grey
        repeated for the three colours, transparency dropped, the first frame of an animation.
        Classes and images are in the order of their names, the same on every machine; ``names``
        has the path of each within the folder.

    Raises
    ------
    DataError
        If there are no images, if a class has none, or if an image cannot be read.
    ImportError
        If Pillow, of the extra ``images``, is not installed.
    """
    _check_settings(size, on_error)
    root = existing(path)
    files, labels, class_names = _listed(root)
    images, kept, skipped = read_images(
        files, root, size=size, on_error=on_error, max_pixels=max_pixels, progress=progress
    )
    gone = sorted(set(range(len(class_names))) - {labels[row] for row in kept})
    if gone:
        names = ", ".join(class_names[number] for number in gone)
        raise DataError(f"{root}: no image can be read of the classes {names}")
    return LabelledItems.from_arrays(
        images,
        [labels[row] for row in kept],
        class_names=class_names,
        source=str(root),
        skipped=skipped,
        names=[files[row].relative_to(root).as_posix() for row in kept],
    )


def read_images(
    files: list[Path],
    root: Path,
    *,
    size: int | tuple[int, int] | None,
    on_error: str,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[npt.NDArray[np.uint8], list[int], list[str]]:
    """Read image files into one array; the arguments are those of :func:`load_image_folder`.

    Returns
    -------
    images : uint8[n, height, width, 3]
    kept : list of int
        For each of them the place of its file in ``files``.
    skipped : list of str
        One line for each file that was left out.
    """
    target = _check_settings(size, on_error)
    images: npt.NDArray[np.uint8] | None = None
    kept: list[int] = []
    skipped: list[str] = []
    for row, file in enumerate(files):
        if progress is not None:
            progress(row + 1, len(files))
        try:
            pixels = read_image(file, size=target, max_pixels=max_pixels)
        except DataError as error:
            if on_error == "raise":
                raise
            skipped.append(str(error))
            continue
        if images is None:
            images = np.empty((len(files), *pixels.shape), np.uint8)
            first = file
        if pixels.shape != images.shape[1:]:
            raise DataError(
                f"{file} has {_sides(pixels)} pixels, {first} has {_sides(images[0])}; "
                "give a size to make them equal"
            )
        images[len(kept)] = pixels
        kept.append(row)
    if images is None:
        raise DataError(f"{root}: none of {len(files)} images can be read; first: {skipped[0]}")
    return images[: len(kept)], kept, skipped


def class_folders(root: Path) -> list[Path]:
    """Return the folders of the classes, sorted by name; hidden ones are left out."""
    return sorted(
        (entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != "."),
        key=lambda entry: entry.name,
    )


def images_below(folder: Path) -> list[Path]:
    """Return the image files in a folder and the folders in it, sorted by path."""
    found = (file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    visible = (file for file in found if file.name[0] != "." and file.is_file())
    return sorted(visible, key=lambda file: file.relative_to(folder).as_posix())


def _listed(root: Path) -> tuple[list[Path], list[int], list[str]]:
    """All image files, the class number of each, and the names of the classes."""
    folders = class_folders(root) if root.is_dir() else []
    if not folders:
        raise DataError(f"{root}: must be a folder with one folder of images per class")
    files: list[Path] = []
    labels: list[int] = []
    empty = []
    for number, folder in enumerate(folders):
        images = images_below(folder)
        files += images
        labels += [number] * len(images)
        if not images:
            empty.append(folder.name)
    if empty:
        raise DataError(
            f"{root}: no images in {', '.join(empty[:10])}; "
            f"looked for files ending in {' '.join(sorted(SUFFIXES))}"
        )
    return files, labels, [folder.name for folder in folders]


def read_image(
    file: str | Path | BinaryIO,
    *,
    size: int | tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> npt.NDArray[np.uint8]:
    """Read one image as uint8[height, width, 3]; whatever is wrong with it is a ``DataError``.

    Parameters
    ----------
    file
        Path, or binary stream that can seek.
    size, max_pixels
        As in :func:`load_image_folder`.
    """
    target = _checked_size(size)
    where = str(file) if isinstance(file, (str, Path)) else "the image"
    image_module: Any = require_extra("PIL.Image", _EXTRA)
    image_ops: Any = require_extra("PIL.ImageOps", _EXTRA)
    try:
        with warnings.catch_warnings():
            # Pillow's own limit warns; the one here decides.
            warnings.simplefilter("ignore", image_module.DecompressionBombWarning)
            opened = image_module.open(file)
        with opened:
            width, height = opened.size
            if width * height > max_pixels:
                raise DataError(f"{where}: has {width * height} pixels, max_pixels={max_pixels}")
            image = _as_rgb(image_ops.exif_transpose(opened), image_module, where)
            if target is not None and image.size != (target[1], target[0]):
                image = image_ops.fit(
                    image, (target[1], target[0]), image_module.Resampling.BICUBIC
                )
            return np.asarray(image, dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # decoders fail in many ways of their own
        raise DataError(f"{where}: not an image that can be read {reason(error)}") from None


def _as_rgb(image: Any, image_module: Any, where: str) -> Any:
    """Return the image with three colours of 8 bits."""
    if image.mode.startswith("I;16"):  # 16 bits of grey: Pillow would cut off, not scale
        deep = np.asarray(image).astype(np.uint16)
        image = image_module.fromarray((deep >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(f"{where}: has {image.mode} pixels, must have 8 or 16 bits")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _check_settings(size: object, on_error: str) -> tuple[int, int] | None:
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error={on_error!r} must be 'raise' or 'skip'")
    target = _checked_size(size)
    require_extra("PIL.Image", _EXTRA)
    return target


def _checked_size(size: object) -> tuple[int, int] | None:
    """Return the target as (height, width)."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else size
    good = isinstance(sides, tuple) and len(sides) == 2
    if not good or not all(type(side) is int and side >= 1 for side in sides):  # type: ignore[attr-defined]
        raise ValueError(f"size={size!r} must be an integer >= 1, or (height, width)")
    return sides  # type: ignore[return-value]


def _sides(pixels: npt.NDArray[np.uint8]) -> str:
    return f"{pixels.shape[0]}×{pixels.shape[1]}"
