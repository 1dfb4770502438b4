"""Cifar-100: 50,000 + 10,000 images of 32×32 pixels in 100 fine and 20 coarse classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from experiments.datasets.files import existing, read_checked
from experiments.datasets.unpickler import load_plain_pickle
from hashcade.data import LabelledItems, load_npz
from hashcade.errors import DataError

MD5 = {  # of the official files
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
FOLDER = "cifar-100-python"
SIDE = 32
EMBEDDINGS = "cifar100_effnetlite0_pca128.npz"


def load_cifar100(
    path: str | Path,
    split: Literal["train", "test"] = "train",
    *,
    labels: Literal["fine", "coarse"] = "fine",
    verify: bool = True,
) -> LabelledItems:
    """Load one part of Cifar-100: uint8[n, 32, 32, 3] images with the official class numbers.

    Parameters
    ----------
    path
        The folder with the files ``train``, ``test`` and ``meta`` of the official python archive,
        or the folder above it.
    labels
        ``"fine"`` (100 classes) or ``"coarse"`` (20).
    verify
        Compare the files with the checksums of the official ones.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r} must be 'train' or 'test'")
    if labels not in ("fine", "coarse"):
        raise ValueError(f"labels={labels!r} must be 'fine' or 'coarse'")
    folder = existing(path)
    folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    missing = [name for name in (split, "meta") if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder}: not Cifar-100, {' and '.join(missing)} is missing")
    batch, meta = (_read(folder / name, verify=verify) for name in (split, "meta"))
    source = f"{folder} ({split})"
    names = _entry(meta, f"{labels}_label_names", f"{folder} (meta)")
    if not isinstance(names, list) or not all(isinstance(name, (str, bytes)) for name in names):
        raise DataError(f"{source}: the class names must be a list of strings")
    images = images_from_planes(_entry(batch, "data", source), source, side=SIDE)
    return LabelledItems.from_arrays(
        np.ascontiguousarray(images),
        _entry(batch, f"{labels}_labels", source),
        class_names=[n.decode("latin1") if isinstance(n, bytes) else n for n in names],
        source=source,
    )


def load_cifar100_embeddings(folder: str | Path, split: str = "train") -> LabelledItems:
    """Load features of EfficientNet-Lite0, reduced to 128 numbers; see :data:`EMBEDDINGS`."""
    return load_npz(existing(Path(folder) / EMBEDDINGS), split=split)


def images_from_planes(pixels: object, source: str, *, side: int) -> npt.NDArray[np.uint8]:
    """See rows of a red, a green and a blue plane as uint8[n, side, side, 3]; not a copy."""
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        kind = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else ""
        raise DataError(
            f"{source}: data is {kind or type(pixels).__name__}, "
            f"must be uint8 of shape (n, {3 * side * side})"
        )
    if pixels.shape[1] != 3 * side * side:
        raise DataError(
            f"{source}: data has {pixels.shape[1]} numbers per image, must be {3 * side * side}"
        )
    planes = pixels.reshape(-1, 3, side, side)  # (n, colour, row, column)
    return planes.transpose(0, 2, 3, 1)


def _read(file: Path, *, verify: bool) -> dict[str, Any]:
    name = str(file)
    with file.open("rb") as stream:
        return read_checked(
            stream,
            lambda content: load_plain_pickle(content, name),
            name=name,
            md5=MD5[file.name] if verify else None,
        )


def _entry(content: dict[str, Any], key: str, source: str) -> Any:
    if key not in content:
        raise DataError(f"{source}: has the keys {', '.join(sorted(content))}; {key} is missing")
    return content[key]
