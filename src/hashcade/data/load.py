"""``load``: recognise what is at a path, and load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashcade.data import arrays, folder, parquet
from hashcade.data.images import IMAGE_SUFFIXES, MAX_PIXELS, Size
from hashcade.data.items import AnyPath, Items, LabelledItems, checked_items, existing_path
from hashcade.errors import DataError

if TYPE_CHECKING:
    from hashcade.data.extractor import ImageFeatures

_KINDS = {".npy": "npy", ".npz": "npz", ".parquet": "parquet", ".pq": "parquet"}
_KINDS |= dict.fromkeys(IMAGE_SUFFIXES, "image")
_ARGUMENTS = {  # the kinds of data that each is for
    "split": ("npz", "folder"),
    "items": ("npz", "parquet"),
    "labels": ("npz", "parquet", "npy"),
    "ids": ("parquet",),
    "payload": ("parquet",),
}


def load(
    path: AnyPath,
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
) -> LabelledItems:
    """Load labelled items from whatever is at ``path``.

    That is a file ``.npz``, ``.npy`` or ``.parquet``, or a folder of images with one sub-folder per
    class: see :func:`load_npz`, :func:`load_npy`, :func:`load_parquet`, :func:`load_image_folder`.
    ``split`` is a part of an ``.npz`` file or a sub-folder: ``"train"`` or ``"test"``, say.
    ``items`` and ``labels`` are keys in an ``.npz`` file or columns in a Parquet file; ``labels``
    may be the file that belongs to an ``.npy``; ``ids`` and ``payload`` are as for
    :func:`load_parquet`. An argument without meaning for the kind of data
    is a ``ValueError``; only ``size`` and what follows, for images, is ignored for embeddings. With
    ``features`` images become features of a pre-trained network, see :class:`ImageFeatures`.
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
        columns |= {"items": items or "embedding", "labels": labels or "label"}
        return parquet.load_parquet(source, **columns)
    root = folder.split_folder(source, split, one_class_each=True)
    if kind == "image":
        hint = f"give the folder of all images, with one sub-folder per class: {root.parent.parent}"
        raise DataError(f"{root} is one image: there is nothing to tell it from", hint=hint)
    return folder.load_image_folder(
        root, size=size, on_error=on_error, max_pixels=max_pixels, **extract
    )


def load_items(
    path: AnyPath,
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
        return parquet.load_parquet_items(source, items or "embedding", ids=ids, payload=payload)
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


def has_labels(path: AnyPath, *, split: str | None = None, items: str | None = None) -> bool:
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


def holds_images(path: AnyPath) -> bool:
    """Whether there are image files at ``path``: one, or a folder of them."""
    return _recognise(path)[1] in ("image", "folder")


def required_extras(path: AnyPath) -> dict[str, str]:
    """Return the packages that loading ``path`` needs, each with the extra that installs it."""
    kind = _recognise(path)[1]
    return {"parquet": {"pyarrow": "parquet"}, "npy": {}, "npz": {}}.get(kind, {"PIL": "images"})


def _recognise(path: AnyPath, **arguments: str | Sequence[str] | None) -> tuple[Path, str]:
    """Return the path and the kind of data there; refuse arguments that it has no use for."""
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
