"""Items without labels: to be put into an index, or to ask it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.data._arrays import chosen_keys, keys_of_npz, labels_beside, read_npy, read_npz
from hashcade.data._files import existing
from hashcade.data._folder import SUFFIXES, class_folders, images_below, read_images
from hashcade.data._items import checked_items
from hashcade.data._load import load, recognised
from hashcade.data._parquet import columns_of_parquet, read_parquet
from hashcade.errors import DataError


@dataclass(frozen=True, eq=False)
class PlainItems:
    """Items without labels.

    Attributes
    ----------
    items : uint8[n, h, w, 3] or float32[n, m]
        Images, or embeddings.
    source : str
        Where they came from.
    skipped : tuple of str
        One line for each item that was left out because it could not be read.
    names : tuple of str
        What each item is called in the source; empty if the source has no names.
    """

    items: npt.NDArray[Any]
    source: str
    skipped: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)


def load_items(
    path: str | Path,
    *,
    split: str | None = None,
    size: int | tuple[int, int] | None = None,
    on_error: str = "raise",
    items_key: str | None = None,
    embedding: str = "embedding",
    progress: Callable[[int, int], None] | None = None,
) -> PlainItems:
    """Load items alone from whatever is at ``path``; labels are not looked for.

    Parameters
    ----------
    path
        What :func:`load` takes; and an image, a folder of images without folders for classes, an
        ``.npy`` file with one vector.
    split
        Which part, for what has several.
    size, on_error, progress
        For images, as in :func:`load_image_folder`.
    items_key
        The key in an ``.npz`` file. By default ``X``, ``train``, ``X_train``, or the only one.
    embedding
        The column in a Parquet file.

    Raises
    ------
    DataError
        If nothing is recognised, or something is damaged.
    """
    place = existing(path)
    suffix = place.suffix.lower()
    if place.is_dir() or suffix in SUFFIXES:
        files, root = _image_files(place, split)
        if files:
            images, kept, skipped = read_images(
                files, place, size=size, on_error=on_error, progress=progress
            )
            names = tuple(files[row].relative_to(root).as_posix() for row in kept)
            return PlainItems(images, str(root), tuple(skipped), names)
    if suffix == ".npy" and place.is_file():
        return _checked(np.atleast_2d(read_npy(place)), str(place))
    if suffix == ".npz" and place.is_file():
        key = _items_key(keys_of_npz(place), split, items_key, place)
        return _checked(np.atleast_2d(read_npz(place, [key])[0]), f"{place} ({key})")
    if suffix in (".parquet", ".pq") and place.is_file():
        return _checked(read_parquet(place, embedding, None)[0], str(place))
    labelled = load(place, split=split)
    return PlainItems(labelled.items, labelled.source, labelled.skipped, labelled.names)


def has_labels(
    path: str | Path,
    *,
    split: str | None = None,
    items_key: str | None = None,
    labels_key: str | None = None,
    label: str = "label",
) -> bool:
    """Whether :func:`load` would find labels at ``path``."""
    place = existing(path)
    suffix = place.suffix.lower()
    if place.is_dir():
        files, root = _image_files(place, split)
        return not files or any(images_below(folder) for folder in class_folders(root))
    if suffix == ".npy":
        return labels_beside(place) is not None
    if suffix == ".npz":
        if items_key is not None and labels_key is None:
            return False
        try:
            chosen_keys(keys_of_npz(place), split, items_key, labels_key, place)
        except DataError:
            return False
        return True
    if suffix in (".parquet", ".pq"):
        return label in columns_of_parquet(place)
    return suffix not in SUFFIXES


def _checked(items: npt.NDArray[Any], source: str) -> PlainItems:
    try:
        return PlainItems(checked_items(items), source)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None


def _image_files(place: Path, split: str | None) -> tuple[list[Path], Path]:
    """Image files at a place, and the folder that their names begin in; none for other data."""
    if place.is_file():
        return [place], place.parent
    if split is not None and (place / split).is_dir():
        place = place / split
    try:
        recognised_as = recognised(place).__name__
    except DataError:
        recognised_as = ""
    if recognised_as in ("", "load_image_folder"):
        return images_below(place), place
    return [], place


def _items_key(there: list[str], split: str | None, items_key: str | None, file: Path) -> str:
    wanted = [items_key] if items_key else [split, f"X_{split}"] if split else ["X", "train"]
    wanted += [] if items_key or split else ["X_train"]
    found = [key for key in wanted if key in there]
    if not found and len(there) == 1 and not items_key:
        found = there
    if not found:
        raise DataError(
            f"{file}: has the keys {', '.join(there) or '(none)'}; looked for "
            f"{' or '.join(map(str, wanted))}; another can be named with items_key="
        )
    return str(found[0])
