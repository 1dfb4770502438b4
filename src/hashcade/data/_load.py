"""One front door: recognise what the user has, and load it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hashcade.data._arrays import load_npy, load_npz
from hashcade.data._cifar100 import cifar100_home, load_cifar100
from hashcade.data._files import ARCHIVES, existing, is_archive
from hashcade.data._folder import class_folders, images_below, load_image_folder
from hashcade.data._imagenet32 import TRAIN_FILES, VAL_FILE, load_imagenet32
from hashcade.data._items import LabelledItems
from hashcade.data._parquet import load_parquet
from hashcade.errors import DataError

_BY_SUFFIX: dict[str, Callable[..., LabelledItems]] = {
    ".npy": load_npy,
    ".npz": load_npz,
    ".parquet": load_parquet,
    ".pq": load_parquet,
}
_SPLITS = {"train", "test", "val", "valid", "validation", "dev"}


def load(path: str | Path, *, split: str | None = None, **options: Any) -> LabelledItems:
    """Load labelled items from whatever is at ``path``.

    Parameters
    ----------
    path
        What it is, is told by its name and by what it has inside:

        - a file ``.npz``, ``.npy``, ``.parquet``: see :func:`load_npz`, :func:`load_npy`,
          :func:`load_parquet`;
        - Cifar-100, its folder or its archive: see :func:`load_cifar100`;
        - a folder with ``train_data_batch_1`` or ``val_data``: see :func:`load_imagenet32`;
        - a folder with a folder of images per class: see :func:`load_image_folder`; with
          ``split``, the folder of that name in it, if there is one.
    split
        Which part, for what has several: ``"train"`` or ``"test"``, say.
    options
        Passed on to the loader.

    Raises
    ------
    DataError
        If nothing is recognised; the message says what was looked for.
    ValueError
        If the loader does not have one of the options; the message says which it has.
    """
    place = existing(path)
    loader = recognised(place)
    if loader is load_image_folder:
        place = part(place, split)
    elif split is not None:
        options["split"] = split
    accepted = [name for name in inspect.signature(loader).parameters if name != "path"]
    unknown = [name for name in options if name not in accepted]
    if unknown:
        raise ValueError(
            f"{place} is read by {loader.__name__}, which has no option {', '.join(unknown)}; "
            f"its options are {', '.join(accepted)}"
        )
    return loader(place, **options)


def recognised(place: Path) -> Callable[..., LabelledItems]:
    """Return the loader for what is at ``place``."""
    if place.is_file():
        if place.suffix.lower() in _BY_SUFFIX:
            return _BY_SUFFIX[place.suffix.lower()]
        if is_archive(place):
            return load_cifar100
        raise DataError(
            f"{place}: of no known kind; looked for a name ending in "
            f"{' '.join(_BY_SUFFIX)} (arrays), or {' '.join(ARCHIVES)} (Cifar-100)"
        )
    home = cifar100_home(place)
    if (home / "meta").is_file() or (home / "fine_label_names.txt").is_file():
        return load_cifar100
    if (place / TRAIN_FILES[0]).is_file() or (place / VAL_FILE).is_file():
        return load_imagenet32
    if any(images_below(folder) for folder in class_folders(place)):
        return load_image_folder
    raise DataError(
        f"{place}: of no known kind; looked for Cifar-100 (meta, fine_label_names.txt, or the "
        f"folder cifar-100-python or cifar-100-binary), for {TRAIN_FILES[0]} or {VAL_FILE} "
        "(ImageNet 32×32), and for one folder of images per class"
    )


def part(place: Path, split: str | None) -> Path:
    """Return the folder of a split: ``train`` and ``test`` side by side are not two classes."""
    names = [folder.name for folder in class_folders(place)]
    if split is None:
        if {name.lower() for name in names} <= _SPLITS:
            raise DataError(f"{place}: has the parts {', '.join(names)}; say which with split=")
        return place
    if split not in names:
        raise DataError(f"{place}: has the folders {', '.join(names[:10])}; no split {split!r}")
    return place / split
