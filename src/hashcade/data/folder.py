"""Folders of images, one sub-folder per class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hashcade._extras import require_extra
from hashcade._progress import progress_bar
from hashcade._validate import checked_choice
from hashcade.data.images import (
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    Size,
    checked_size,
    image_sides,
    read_image,
)
from hashcade.data.items import AnyPath, Items, LabelledItems, existing_path, smaller
from hashcade.errors import DataError, add_hint

if TYPE_CHECKING:
    from hashcade.data.extractor import ImageFeatures

_SPLITS = {"train", "test", "val", "valid", "validation", "dev"}


def load_image_folder(
    path: AnyPath,
    *,
    size: Size | None = None,
    on_error: str = "raise",
    max_pixels: int = MAX_PIXELS,
    verbose: bool | None = None,
    features: ImageFeatures | None = None,
    cache: AnyPath | None = None,
) -> LabelledItems:
    """Load a folder of images with one sub-folder per class. Needs the extra ``images``.

    In ``path/cat/1.jpg`` and ``path/dog/holiday/7.png`` the classes are cat and dog. Hidden
    files and files other than images are ignored. Classes and images are sorted by name;
    ``names`` of the result is the path of each image within the folder.

    For ``size`` and ``max_pixels`` see :func:`read_image`; without a size, all images must have the
    same size. ``on_error="skip"`` lists an image that cannot be read in ``skipped`` instead of
    raising. ``verbose`` shows progress on stderr; None: if it is a terminal. With ``features`` the
    items are features of the images, with a ``cache`` as for :meth:`ImageFeatures.of`.
    """
    root = existing_path(path)
    files, labels, class_names = list_image_folder(root)
    images, rows = read_images(
        files, root, on_error, verbose, size=size, max_pixels=max_pixels, features=features,
        cache=cache,
    )  # fmt: skip
    unread = sorted(set(labels) - {labels[row] for row in rows})
    if unread:
        names = ", ".join(class_names[number] for number in unread)
        raise DataError(f"{root}: no image of the classes {names} can be read")
    numbers = np.array([labels[row] for row in rows], np.int64)
    return LabelledItems(labels=numbers, class_names=tuple(class_names), **vars(images))


def list_image_folder(path: AnyPath) -> tuple[list[Path], list[int], list[str]]:
    """List the images of a folder with one sub-folder per class.

    Returns files, in the order of :func:`load_image_folder`, class numbers, and class names.
    """
    root = existing_path(path)
    folders = class_folders(root)
    per_class = [find_images(folder) for folder in folders]
    empty = [folder.name for folder, files in zip(folders, per_class, strict=True) if not files]
    if len(empty) == len(folders):
        flat = len(find_images(root)) if root.is_dir() else 0
        if flat:
            hint = f"put the images of each class into a folder of their own: {root}/CLASS/..."
            raise DataError(f"{root} has {flat:,} images but no sub-folders: no labels", hint=hint)
        raise DataError(f"{root} must be a folder of images with one sub-folder per class")
    if empty:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        names = ", ".join(empty[:10])
        raise DataError(f"{root}: no images in {names}; looked for files ending in {suffixes}")
    for folder in folders:
        check_name(folder, folder.name)
    labels = [number for number, files in enumerate(per_class) for _ in files]
    return list(chain(*per_class)), labels, [folder.name for folder in folders]


def check_name(path: Path, name: str) -> None:
    """Raise ``DataError`` for a name that is not UTF-8: it could be neither stored nor shown."""
    try:
        name.encode()
    except UnicodeEncodeError:
        message = f"{str(path)!a} has a name that is not UTF-8"
        raise DataError(message, hint="rename it") from None


def class_folders(root: Path) -> list[Path]:
    """Return the sub-folders, sorted by name; hidden ones are left out."""
    entries = root.iterdir() if root.is_dir() else ()
    return sorted(entry for entry in entries if entry.is_dir() and entry.name[0] != ".")


def find_images(folder: Path) -> list[Path]:
    """Return the image files in a folder and below, sorted by path, without hidden ones."""
    files = (file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    visible = (file for file in files if "/." not in f"/{file.relative_to(folder).as_posix()}")
    return sorted(file for file in visible if file.is_file())


def split_folder(root: Path, split: str | None, *, one_class_each: bool) -> Path:
    """Return the folder of a split; ``train`` and ``test`` are not taken for classes."""
    names = [folder.name for folder in class_folders(root)]
    if split is not None:
        if split not in names:
            raise DataError(f"{root} has no folder {split!r}; it has {', '.join(names[:10])}")
        return root / split
    if one_class_each and names and {name.lower() for name in names} <= _SPLITS:
        hint = "choose one with split= (--split)"
        raise DataError(f"{root} has the splits {', '.join(names)}", hint=hint)
    return root


def read_images(
    files: Sequence[Path], root: Path, on_error: str, verbose: bool | None, *,
    size: Size | None, max_pixels: int, features: ImageFeatures | None = None,
    cache: AnyPath | None = None,
) -> tuple[Items, list[int]]:  # fmt: skip
    """Read image files below ``root``; return items and their positions in ``files``."""
    require_extra("PIL.Image", "images")
    target = checked_size(size) if features is None else features.image_size
    checked_choice("on_error", on_error, ("raise", "skip"))
    rows: list[int] = []
    skipped: list[str] = []

    def failed(row: int, error: DataError) -> None:
        if on_error == "raise":
            hint = "remove it, or skip such files with on_error='skip' (--skip-bad)"
            raise add_hint(error, hint) from None
        skipped.append(str(error))

    valid_rows = []
    for row, file in enumerate(files):
        try:
            check_name(file, file.relative_to(root).as_posix())
            valid_rows.append(row)
        except DataError as error:
            failed(row, error)
    files = [files[row] for row in valid_rows]
    task = "reading images" if features is None else "features of images"
    with progress_bar(task, quiet=verbose is False) as progress:
        if features is None:
            items = _read_pixels(files, target, max_pixels, failed, rows, progress)
        else:
            parts = [np.empty((0, features.record.size), np.float32)]
            batches = features.in_batches(
                list(files), cache, progress, max_pixels=max_pixels, failed=failed
            )
            for vectors, batch_rows in batches:
                parts.append(vectors)
                rows += batch_rows
            items = np.concatenate(parts)
    if not rows:
        first = f"; first: {skipped[0]}" if skipped else ""
        raise DataError(f"{root}: none of {len(files)} images can be read{first}")
    sides = [image_sides(files[row]) for row in rows] if target else []
    names = tuple(files[row].relative_to(root).as_posix() for row in rows)
    loaded = Items(
        items, source=str(root if len(files) > 1 or files[0].parent != root else files[0]),
        skipped=tuple(skipped), names=names, features=None if features is None else features.name,
        n_small=sum(target is not None and side is not None and smaller(side, target)
                    for side in sides),
    )  # fmt: skip
    return loaded, [valid_rows[row] for row in rows]


def _read_pixels(
    files: Sequence[Path], target: tuple[int, int] | None, max_pixels: int,
    failed: Callable[[int, DataError], None], rows: list[int],
    progress: Callable[[int, int], None],
) -> NDArray[np.uint8]:  # fmt: skip
    """Pixels of the files that can be read; their positions are appended to ``rows``."""
    images = np.empty((0, 0, 0, 3), np.uint8)
    for row, file in enumerate(files):
        progress(row, len(files))
        try:
            pixels = read_image(file, size=target, max_pixels=max_pixels)
        except DataError as error:
            failed(row, error)
            continue
        if not rows:
            images = np.empty((len(files), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            raise DataError(
                f"{file} has {pixels.shape[0]}×{pixels.shape[1]} pixels, "
                f"{files[rows[0]]} has {images.shape[1]}×{images.shape[2]}",
                hint="make them equal with size= (--image-size)",
            )
        images[len(rows)] = pixels
        rows.append(row)
    return images[: len(rows)]
