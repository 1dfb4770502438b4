"""Arrays that numpy stored: ``.npy`` and ``.npz``. Pickled objects in them are never read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.data._files import existing, reason
from hashcade.data._items import LabelledItems
from hashcade.errors import DataError

_DAMAGE = (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, SyntaxError)


def load_npy(path: str | Path, *, labels: object = None) -> LabelledItems:
    """Load items from an ``.npy`` file.

    Parameters
    ----------
    path
        Embeddings, real[n, m], or images, uint8[n, h, w, 3].
    labels
        One label per item; or a file of them, ``.npy`` or text with one label per line. By
        default the file beside this one that is called ``<name>_labels.npy`` or
        ``<name>_labels.txt``.

    Raises
    ------
    DataError
        If a file is damaged, holds pickled objects, or if there are no labels.
    """
    file = existing(path)
    if labels is None:
        labels = labels_beside(file)
        if labels is None:
            raise DataError(
                f"{file}: has no labels; looked for {file.stem}_labels.npy and "
                f"{file.stem}_labels.txt beside it; or give labels="
            )
    if isinstance(labels, (str, Path)):
        labels = _read_labels(existing(labels))
    return LabelledItems.from_arrays(read_npy(file), labels, source=str(file))


def labels_beside(file: Path) -> Path | None:
    """Return the file of labels beside an ``.npy`` file, if there is one."""
    beside = (file.with_name(f"{file.stem}_labels{suffix}") for suffix in (".npy", ".txt"))
    return next((place for place in beside if place.is_file()), None)


def load_npz(
    path: str | Path,
    *,
    split: str | None = None,
    items_key: str | None = None,
    labels_key: str | None = None,
    class_names: Sequence[int | str] | None = None,
) -> LabelledItems:
    """Load items and labels from an ``.npz`` file.

    Parameters
    ----------
    path
        A file as ``numpy.savez`` writes it.
    split
        Which part, if the file has several: ``"train"`` stands for the keys ``train`` and
        ``train_labels``, or ``X_train`` and ``y_train``. By default ``X`` and ``y`` if they are
        there, else the part ``"train"``.
    items_key, labels_key
        The two keys, if they are called otherwise.
    class_names
        If the labels are numbers from 0: what they stand for.

    Raises
    ------
    DataError
        If the keys are not there (the message says which ones are), or if the file is damaged
        or holds pickled objects.
    """
    if (items_key is None) != (labels_key is None):
        raise ValueError(f"items_key={items_key!r} and labels_key={labels_key!r} go together")
    file = existing(path)
    keys = chosen_keys(keys_of_npz(file), split, items_key, labels_key, file)
    items, labels = read_npz(file, keys)
    source = f"{file} ({keys[0]})"
    return LabelledItems.from_arrays(items, labels, class_names=class_names, source=source)


def keys_of_npz(file: Path) -> list[str]:
    """Names of the arrays in an ``.npz`` file."""
    return list(_opened_npz(file, lambda archive: archive.files))


def read_npz(file: Path, keys: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Some of the arrays in an ``.npz`` file."""
    return list(_opened_npz(file, lambda archive: [archive[key] for key in keys]))


def _opened_npz(file: Path, take: Callable[[Any], list[Any]]) -> list[Any]:
    try:
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{file}: holds one array, not several under their keys")
            with archive:
                return take(archive)
    except _DAMAGE as error:
        raise _unreadable(file, error) from None


def chosen_keys(
    there: list[str], split: str | None, items_key: str | None, labels_key: str | None, file: Path
) -> tuple[str, str]:
    """Keys of the items and of the labels: the first of the usual pairs that the file has."""
    if items_key is not None and labels_key is not None:
        pairs = [(items_key, labels_key)]
    else:
        part = split or "train"
        pairs = [] if split else [("X", "y")]
        pairs += [(part, f"{part}_labels"), (f"X_{part}", f"y_{part}")]
    for pair in pairs:
        if set(pair) <= set(there):
            return pair
    wanted = "; or ".join(" and ".join(pair) for pair in pairs)
    raise DataError(
        f"{file}: has the keys {', '.join(there) or '(none)'}; looked for {wanted}; "
        "others can be named with items_key= and labels_key="
    )


def read_npy(file: Path) -> npt.NDArray[Any]:
    """Read the array in an ``.npy`` file."""
    try:
        with file.open("rb") as stream:
            array = np.load(stream, allow_pickle=False)
    except _DAMAGE as error:
        raise _unreadable(file, error) from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file}: holds several arrays; load it as .npz")
    return array


def _read_labels(file: Path) -> object:
    """Labels from a file; lines that are all whole numbers are numbers."""
    if file.suffix == ".npy":
        return read_npy(file)
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{file}: must be .npy, or text in UTF-8 with one label a line") from None
    try:
        return [int(line) for line in lines]
    except ValueError:
        return lines


def _unreadable(file: Path, error: BaseException) -> DataError:
    if "allow_pickle" in str(error):
        return DataError(
            f"{file}: holds pickled objects, or is no file of numpy's; "
            "only arrays of numbers or strings are read"
        )
    return DataError(f"{file}: damaged, or no file of numpy's {reason(error)}")
