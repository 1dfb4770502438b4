"""ImageNet reduced to 32×32 pixels: ten batches to train on and one to validate with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from experiments.datasets.cifar100 import images_from_planes
from experiments.datasets.files import existing
from experiments.datasets.unpickler import load_plain_pickle
from hashcade.data import LabelledItems
from hashcade.errors import DataError

SIDE = 32
TRAIN_FILES = tuple(f"train_data_batch_{number}" for number in range(1, 11))
VAL_FILE = "val_data"
NAMES_FILE = "map_clsloc.txt"


def load_imagenet32(
    path: str | Path,
    split: Literal["train", "val"] = "train",
    *,
    names: str | Path | None = None,
) -> LabelledItems:
    """Load the downsampled ImageNet, or another set in its format: uint8[n, 32, 32, 3] images.

    ``split="test"`` means ``"val"``, as it does in the literature. ``names`` is the file
    ``map_clsloc.txt``, if it is not in the folder; without one the classes are called by their
    numbers in the files, which begin with 1. Class number ``c`` is the files' label ``c + 1``.
    """
    if split not in ("train", "val", "test"):
        raise ValueError(f"split={split!r} must be 'train' or 'val'")
    folder = existing(path)
    if not folder.is_dir():
        raise DataError(f"{folder}: is not a folder; unpack the archive and give its folder")
    files = [folder / name for name in (TRAIN_FILES if split == "train" else (VAL_FILE,))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{folder}: no {', '.join(missing)}")

    # A row takes more bytes in its file than in memory, so this is room enough for all of them;
    # what stays unused at the end is never touched and costs no memory.
    room = sum(file.stat().st_size for file in files) // (3 * SIDE * SIDE)
    images = np.empty((room, SIDE, SIDE, 3), np.uint8)
    labels = []
    filled = 0
    for file in files:
        batch_images, batch_labels = _read_batch(file)
        images[filled : filled + len(batch_images)] = batch_images
        labels.append(batch_labels)
        filled += len(batch_images)

    numbers = np.concatenate(labels) - 1
    names_file = existing(names) if names is not None else folder / NAMES_FILE
    class_names: list[int | str]
    if names is not None or names_file.is_file():
        class_names = list(read_class_map(names_file))
    else:
        class_names = list(range(1, int(numbers.max(initial=0)) + 2))
    return LabelledItems.from_arrays(
        images[:filled], numbers, class_names=class_names, source=f"{folder} ({split})"
    )


def _read_batch(file: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images and labels (from 1) of one file; its ``mean``, where there is one, is left out."""
    with file.open("rb") as stream:
        content: dict[str, Any] = load_plain_pickle(stream, str(file))
    missing = [key for key in ("data", "labels") if key not in content]
    if missing:
        raise DataError(
            f"{file}: has the keys {', '.join(sorted(content))}; {', '.join(missing)} is missing"
        )
    images = images_from_planes(content["data"], str(file), side=SIDE)
    try:
        labels = np.asarray(content["labels"])
    except ValueError:  # rows of different length
        labels = np.empty(0)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"{file}: labels must be a list of integers")
    if len(labels) != len(images):
        raise DataError(f"{file}: has {len(images)} images and {len(labels)} labels")
    return images, labels.astype(np.int64)


def read_class_map(file: Path) -> tuple[str, ...]:
    """Read class names, in the order of their numbers, from lines ``n01440764 1 tench``.

    Two classes of ImageNet are called crane, and two maillot: names that come up more than once
    get their WordNet number behind them, ``crane (n02012849)``.
    """
    rows: dict[int, tuple[str, str]] = {}
    for line_number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        parts = line.split(maxsplit=2)
        if len(parts) < 3 or not parts[1].isdecimal():
            raise DataError(
                f"{file}: line {line_number} is {line!r}, must be like 'n01440764 1 tench'"
            )
        if int(parts[1]) in rows:
            raise DataError(f"{file}: line {line_number} gives class {parts[1]} a second time")
        rows[int(parts[1])] = (parts[0], parts[2].strip())
    if sorted(rows) != list(range(1, len(rows) + 1)):
        raise DataError(f"{file}: has {len(rows)} classes, not numbered from 1 to {len(rows)}")
    uses = Counter(name for _, name in rows.values())
    return tuple(
        name if uses[name] == 1 else f"{name} ({synset})"
        for synset, name in (rows[number] for number in sorted(rows))
    )
