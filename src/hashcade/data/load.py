"""``load``: detect the kind of data at a path, and load it."""

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
_ARGUMENTS = {  # the kinds of data that each applies to
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
    """Load labelled items from ``path``, whose kind of data is detected.

    That is a file ``.npz``, ``.npy`` or ``.parquet``, several Parquet files (a list, a pattern, a
    directory, a URL: see :func:`find_shards`), or a folder of images with one sub-folder per
    class: see :func:`load_npz`, :func:`load_npy`, :func:`load_parquet`, :func:`load_image_folder`.
    ``split`` is a part of an ``.npz`` file or a sub-folder, such as ``"train"`` or ``"test"``.
    ``items`` and ``labels`` are keys in an ``.npz`` file or columns in a Parquet file; ``labels``
    may be the file of labels of an ``.npy``; ``ids``, ``payload``, ``sample`` and ``random_state``
    are as for :func:`load_parquet`, and the latter two only used there. An argument that does not
    apply to the kind of data is a ``ValueError``; only ``size`` and those after it, for images, are
    ignored for embeddings. With ``features`` images become features of a
    pre-trained network, see :class:`ImageFeatures`.
    """
    columns: dict[str, Any] = {"ids": ids, "payload": payload}
    source, kind = _detect(path, split=split, items=items, labels=labels, **columns)
    extract: dict[str, Any] = {"features": features, "cache": cache, "verbose": verbose}
    if kind == "npy":
        return arrays.load_npy(source, labels=labels).with_features(**extract)
    if kind == "npz":
        data = arrays.load_npz(source, split=split, items=items, labels=labels)
        return data.with_features(**extract)
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
    """Load items without labels.

    The arguments are those of :func:`load`. The path may also be an image, a folder of images
    without classes, an ``.npy`` file with one vector, or an ``.npz`` file with one array.
    """
    source, kind = _detect(path, split=split, items=items, ids=ids, payload=payload)
    extract: dict[str, Any] = {"features": features, "cache": cache, "verbose": verbose}
    if kind == "npy":
        array = np.atleast_2d(arrays.read_npy(source))
        data = Items(checked_items(array, str(source)), source=str(source))
        return data.with_features(**extract)
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
    """Whether :func:`load` finds labels at ``path`` without further arguments."""
    source, kind = _detect(path, split=split, items=items)
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
    return _detect(path)[1] in ("image", "folder")


def required_extras(path: AnyPath | Sequence[AnyPath]) -> dict[str, str]:
    """Return the packages that loading ``path`` needs, each with the extra that installs it."""
    kind = _detect(path)[1]
    return {"parquet": {"pyarrow": "parquet"}, "npy": {}, "npz": {}}.get(kind, {"PIL": "images"})


def _detect(
    path: AnyPath | Sequence[AnyPath], **arguments: str | Sequence[str] | None
) -> tuple[Any, str]:
    """Return the source, a path or a list of Parquet files, and its kind.

    Raises ``ValueError`` for arguments that do not apply to this kind.
    """
    source: Any = _find_parquet(path)
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


def _find_parquet(path: AnyPath | Sequence[AnyPath]) -> list[str] | None:
    """The Parquet files of a path, or of several; None if it is something else."""
    if not isinstance(path, str | os.PathLike):
        return find_shards([str(part) for part in path])
    # In a Path the two slashes of a URL become one.
    text = re.sub(r"^([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", str(path))
    local = Path(text).expanduser()
    if "://" in text or (has_magic(text) and not local.exists()):
        return find_shards([text])
    if local.is_dir():
        has_parquet = any(name.lower().endswith(PARQUET_SUFFIXES) for name in os.listdir(local))
        return find_shards([text]) if has_parquet else None
    return find_shards([text]) if local.suffix.lower() in PARQUET_SUFFIXES else None
