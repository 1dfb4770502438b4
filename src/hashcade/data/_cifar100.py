"""Cifar-100: 50,000 + 10,000 images of 32×32 pixels in 100 fine and 20 coarse classes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from hashcade.data._files import existing, read_checked, read_members
from hashcade.data._items import LabelledItems
from hashcade.data._pickle import load_plain_pickle
from hashcade.errors import DataError

# The sums of the official files, by layout.
MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
    "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "test.bin": "4499cfba6c016c1be1438163640a0898",
}
FOLDERS = ("cifar-100-python", "cifar-100-binary")
SIDE = 32
_PIXELS = 3 * SIDE * SIDE


def load_cifar100(
    path: str | Path,
    split: Literal["train", "test"] = "train",
    *,
    labels: Literal["fine", "coarse"] = "fine",
    verify: bool = True,
) -> LabelledItems:
    """Load one part of Cifar-100, in either of the two layouts of the official site.

    Parameters
    ----------
    path
        A folder with the files of the python layout (``train``, ``test``, ``meta``) or of the
        binary layout (``train.bin``, ``test.bin``, ``fine_label_names.txt``,
        ``coarse_label_names.txt``); or the folder above it, in which it is called
        ``cifar-100-python`` or ``cifar-100-binary``; or the archive of either, not unpacked.
    split
        ``"train"`` (50,000 images) or ``"test"`` (10,000).
    labels
        ``"fine"`` (100 classes) or ``"coarse"`` (20).
    verify
        Compare the files with the checksums of the official ones.

    Returns
    -------
    LabelledItems
        uint8[n, 32, 32, 3] images. Class numbers are the official ones.

    Raises
    ------
    DataError
        If the files are not there, are damaged, or are not what they should be. The python
        layout is a pickle; it is read without executing anything in it.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r} must be 'train' or 'test'")
    if labels not in ("fine", "coarse"):
        raise ValueError(f"labels={labels!r} must be 'fine' or 'coarse'")
    home = cifar100_home(existing(path))
    md5 = MD5 if verify else {}
    names_file = f"{labels}_label_names.txt"
    pickled = (split, "meta")
    binary = (f"{split}.bin", names_file)
    found = read_members(
        home,
        {
            split: partial(_read_pickle, md5=md5.get(split)),
            "meta": partial(_read_pickle, md5=md5.get("meta")),
            f"{split}.bin": partial(_read_binary, md5=md5.get(f"{split}.bin")),
            names_file: _read_names,
        },
        enough=(pickled, binary),
    )
    source = f"{home} ({split})"
    if found.keys() >= set(pickled):
        batch, meta = found[split], found["meta"]
        pixels, numbers = _entry(batch, "data", source), _entry(batch, f"{labels}_labels", source)
        names = _names(_entry(meta, f"{labels}_label_names", f"{home} (meta)"), source)
    elif found.keys() >= set(binary):
        records, names = found[f"{split}.bin"], found[names_file]
        pixels, numbers = records[:, 2:], records[:, 1 if labels == "fine" else 0]
    else:
        raise DataError(
            f"{home}: not Cifar-100, or not all of it; looked for the files {split} and meta "
            f"(python layout), or {split}.bin and {names_file} (binary layout)"
        )
    images = np.ascontiguousarray(images_from_planes(pixels, source, side=SIDE))
    return LabelledItems.from_arrays(images, numbers, class_names=names, source=source)


def cifar100_home(path: Path) -> Path:
    """Folder that has the files: ``path``, or the one in it with the official name."""
    inside = (path / name for name in FOLDERS)
    return next((folder for folder in inside if folder.is_dir()), path)


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


def _entry(content: dict[str, Any], key: str, source: str) -> Any:
    if key not in content:
        raise DataError(f"{source}: has the keys {', '.join(sorted(content))}; {key} is missing")
    return content[key]


def _names(names: object, source: str) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, (str, bytes)) for name in names):
        raise DataError(f"{source}: the class names must be a list of strings")
    return [name.decode("latin1") if isinstance(name, bytes) else name for name in names]


def _read_pickle(stream: BinaryIO, name: str, *, md5: str | None) -> dict[str, Any]:
    return read_checked(stream, lambda file: load_plain_pickle(file, name), name=name, md5=md5)


def _read_binary(stream: BinaryIO, name: str, *, md5: str | None) -> npt.NDArray[np.uint8]:
    """Records of 3074 bytes: coarse class, fine class, pixels."""

    def read(file: BinaryIO) -> npt.NDArray[np.uint8]:
        content = file.read()
        if len(content) == 0 or len(content) % (2 + _PIXELS):
            raise DataError(
                f"{name}: has {len(content)} bytes, must be a multiple of {2 + _PIXELS}"
            )
        return np.frombuffer(content, np.uint8).reshape(-1, 2 + _PIXELS)

    return read_checked(stream, read, name=name, md5=md5)


def _read_names(stream: BinaryIO, name: str) -> list[str]:
    """Class names, one per line."""
    return stream.read().decode("latin1").split()
