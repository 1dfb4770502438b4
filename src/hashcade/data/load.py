"""``load``: recognise what is at a path, and load it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashcade.data import arrays, folder, parquet
from hashcade.data.images import IMAGE_SUFFIXES, MAX_PIXELS, Size
from hashcade.data.items import AnyPath, Items, LabelledItems, checked_items, existing_path
from hashcade.data.shards import PARQUET_SUFFIXES, find_shards
from hashcade.errors import DataError

if TYPE_CHECKING:
    from hashcade.data.extractor import ImageFeatures

_KINDS = {".npy": "npy", ".npz": "npz"}
_KINDS |= dict.fromkeys(PARQUET_SUFFIXES, "parquet")
_KINDS |= dict.fromkeys(IMAGE_SUFFIXES, "image")
_ARGUMENTS = {  # the kinds of data that each is for
    "split": ("npz", "folder"),
    "items": ("npz", "parquet"),
    "labels": ("npz", "parquet", "npy"),
    "ids": ("parquet",),
    "payload": ("parquet",),
}


def load(
    path: AnyPath | Sequence[AnyPath],
    *,
    split: str | None = None,
    items: str | None = None,
    labels: str | None = None,
    ids: str | None = None,
    payload: str | Sequence[str] | None = None,
    size: Size | None = None,
    on_error: str = "raise",
    max_pixels: int = MAX_PIXELS,
    verbose: bool | None = None,
    features: ImageFeatures | None = None,
    cache: AnyPath | None = None,
    sample: int | None = None,
    random_state: int = 0,
) -> LabelledItems:
    """Load labelled items from whatever is at ``path``.

    That is a file ``.npz``, ``.npy`` or ``.parquet``, several Parquet files (a list, a pattern, a
    directory, an address: see :func:`find_shards`), or a folder of images with one sub-folder per
    class: see :func:`load_npz`, :func:`load_npy`, :func:`load_parquet`, :func:`load_image_folder`.
    ``split`` is a part of an ``.npz`` file or a sub-folder: ``"train"`` or ``"test"``, say.
    ``items`` and ``labels`` are keys in an ``.npz`` file or columns in a Parquet file; ``labels``
    may be the file that belongs to an ``.npy``; ``ids``, ``payload``, ``sample`` and
    ``random_state`` are as for :func:`load_parquet`, and the latter two for nothing else. An
    argument without meaning for the kind of data is a ``ValueError``; only ``size`` and what
    follows, for images, is ignored for embeddings. With ``features`` images become features of a
    pre-trained network, see :class:`ImageFeatures`.
    """
    columns: dict[str, Any] = {"ids": ids, "payload": payload}
    source, kind = _recognise(path, split=split, items=items, labels=labels, **columns)
    extract: dict[str, Any] = {"features": features, "cache": cache, "verbose": verbose}
    if kind == "npy":
        return arrays.load_npy(source, labels=labels).with_features(**extract)
    if kind == "npz":
        found = arrays.load_npz(source, split=split, items=items, labels=labels)
        return found.with_features(**extract)
    if kind == "parquet":
        read = parquet.Columns(items or "embedding", labels or "label", ids, payload)
        return parquet.load_shards(source, read, sample, random_state, cache, verbose)
    root = folder.split_folder(source, split, one_class_each=True)
    if kind == "image":
        hint = f"give the folder of all images, with one sub-folder per class: {root.parent.parent}"
        raise DataError(f"{root} is one image: there is nothing to tell it from", hint=hint)
    return folder.load_image_folder(
        root, size=size, on_error=on_error, max_pixels=max_pixels, **extract
    )


def load_items(
    path: AnyPath | Sequence[AnyPath],
    *,
    split: str | None = None,
    items: str | None = None,
    ids: str | None = None,
    payload: str | Sequence[str] | None = None,
    size: Size | None = None,
    on_error: str = "raise",
    max_pixels: int = MAX_PIXELS,
    verbose: bool | None = None,
    features: ImageFeatures | None = None,
    cache: AnyPath | None = None,
) -> Items:
    """Load items alone; labels are not looked for.

    The arguments are those of :func:`load`. The path may also be an image, a folder of images
    without classes, an ``.npy`` file with one vector, or an ``.npz`` file with one array.
    """
    source, kind = _recognise(path, split=split, items=items, ids=ids, payload=payload)
    extract: dict[str, Any] = {"features": features, "cache": cache, "verbose": verbose}
    if kind == "npy":
        array = np.atleast_2d(arrays.read_npy(source))
        found = Items(checked_items(array, str(source)), source=str(source))
        return found.with_features(**extract)
    if kind == "npz":
        return arrays.load_npz_items(source, split, items).with_features(**extract)
    if kind == "parquet":
        columns: dict[str, Any] = {"ids": ids, "payload": payload, "verbose": verbose}
        return parquet.load_parquet_items(source, items or "embedding", **columns)
    if kind == "image":
        files, root = [source], source.parent
    else:
        root = folder.split_folder(source, split, one_class_each=False)
        files = folder.find_images(root)
        if not files:
            raise DataError(f"{root} has no images", hint="check the path")
    return folder.read_images(
        files, root, on_error, size=size, max_pixels=max_pixels, **extract
    )[0]  # fmt: skip


def has_labels(
    path: AnyPath | Sequence[AnyPath], *, split: str | None = None, items: str | None = None
) -> bool:
    """Whether :func:`load` would find labels at ``path`` without being told where."""
    source, kind = _recognise(path, split=split, items=items)
    if kind == "npy":
        return arrays.labels_beside(source) is not None
    if kind == "npz":
        return items is None and arrays.npz_has_labels(source, split)
    if kind == "parquet":
        return parquet.parquet_has_labels(source)
    root = folder.split_folder(source, split, one_class_each=False)
    return any(folder.find_images(entry) for entry in folder.class_folders(root))


def holds_images(path: AnyPath | Sequence[AnyPath]) -> bool:
    """Whether there are image files at ``path``: one, or a folder of them."""
    return _recognise(path)[1] in ("image", "folder")


def required_extras(path: AnyPath | Sequence[AnyPath]) -> dict[str, str]:
    """Return the packages that loading ``path`` needs, each with the extra that installs it."""
    kind = _recognise(path)[1]
    return {"parquet": {"pyarrow": "parquet"}, "npy": {}, "npz": {}}.get(kind, {"PIL": "images"})


def _recognise(
    path: AnyPath | Sequence[AnyPath], **arguments: str | Sequence[str] | None
) -> tuple[Any, str]:
    """Return what to load and its kind; refuse arguments that it has no use for.

    What to load is a path, or a list of Parquet files.
    """
    source: Any = _shards(path)
    kind: str | None = "parquet"
    if source is None:
        assert isinstance(path, str | os.PathLike)
        source = existing_path(path)
        kind = "folder" if source.is_dir() else _KINDS.get(source.suffix.lower())
    if kind is None:
        kinds = f"a folder of images, or a file ending in {' '.join(_KINDS)}"
        raise DataError(f"{source} is of no known kind: must be {kinds}")
    for name, value in arguments.items():
        if value is not None and kind not in _ARGUMENTS[name]:
            kinds = ", ".join(_ARGUMENTS[name])
            raise ValueError(f"{name}={value!r} is for {kinds}; {source} is of the kind {kind}")
    return source, kind


def _shards(path: AnyPath | Sequence[AnyPath]) -> list[str] | None:
    """The Parquet files that a path, or several, stand for; None if it is something else."""
    if not isinstance(path, str | os.PathLike):
        return find_shards([str(part) for part in path])
    # A Path has one slash where an address has two.
    text = re.sub(r"^([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", str(path))
    local = Path(text).expanduser()
    if "://" in text or (has_magic(text) and not local.exists()):
        return find_shards([text])
    if local.is_dir():
        inside = any(name.lower().endswith(PARQUET_SUFFIXES) for name in os.listdir(local))
        return find_shards([text]) if inside else None
    return find_shards([text]) if local.suffix.lower() in PARQUET_SUFFIXES else None
