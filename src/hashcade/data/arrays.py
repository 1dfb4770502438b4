"""Numpy files: ``.npy`` and ``.npz``. Pickled objects in them are never loaded."""

from __future__ import annotations

import lzma
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hashcade._io import open_regular
from hashcade.data.items import (
    MAPPED_BYTES,
    AnyPath,
    Items,
    LabelledItems,
    check_expanded,
    checked_items,
    existing_path,
    reason,
)
from hashcade.errors import DataError, add_hint

_ZIP = b"PK"
_NUMPY_ERRORS = (
    ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    SyntaxError, TypeError, KeyError, OverflowError, RuntimeError, tokenize.TokenError,
)  # fmt: skip


def load_npy(path: AnyPath, *, labels: object = None) -> LabelledItems:
    """Load embeddings, real[n, m], or images, uint8[n, h, w, 3], from an ``.npy`` file.

    ``labels`` has one label per item, or names a file of them: ``.npy``, or text with one per
    line. The default is ``<name>_labels.npy`` or ``<name>_labels.txt`` beside this file. Items of
    more than a gibibyte stay in the file, which is memory-mapped.
    """
    file = existing_path(path)
    labels = labels_beside(file) if labels is None else labels
    if labels is None:
        missing = f"there is no {file.stem}_labels.npy or {file.stem}_labels.txt beside it"
        hint = "name a file of labels with labels= (--labels)"
        raise DataError(f"{file} has no labels: {missing}", hint=hint)
    if isinstance(labels, (str, os.PathLike)):
        labels = _read_labels(existing_path(labels))
    items = read_npy(file, mmap=file.stat().st_size > MAPPED_BYTES)
    return LabelledItems.from_arrays(items, labels, source=str(file))


def labels_beside(file: Path) -> Path | None:
    """Return the file of labels beside an ``.npy`` file, if there is one."""
    beside = (file.with_name(f"{file.stem}_labels{suffix}") for suffix in (".npy", ".txt"))
    return next(filter(Path.is_file, beside), None)


def read_npy(path: AnyPath, *, mmap: bool = False) -> NDArray[Any]:
    """Read the array in an ``.npy`` file; with ``mmap`` as a read-only ``np.memmap``."""
    file = existing_path(path)
    with _numpy_errors(file), open_regular(file) as stream:
        if stream.read(len(_ZIP)) != _ZIP:
            stream.seek(0)
            _check_header(stream, os.fstat(stream.fileno()).st_size)
        stream.seek(0)
        if mmap:
            return np.lib.format.open_memmap(file, mode="r")
        array = np.load(stream, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file} holds several arrays under their keys", hint="rename it to .npz")
    return array


def _read_labels(file: Path) -> object:
    """Read labels from a file; they are integers if all lines of a text are."""
    if file.suffix == ".npy":
        return read_npy(file)
    try:
        with _numpy_errors(file), open_regular(file) as stream:
            lines = stream.read().decode().splitlines()
    except (DataError, UnicodeDecodeError):
        raise DataError(f"{file} must be .npy, or UTF-8 text with one label per line") from None
    try:
        return [int(line) for line in lines]
    except ValueError:
        return lines


def load_npz(
    path: AnyPath, *, split: str | None = None, items: str | None = None, labels: str | None = None
) -> LabelledItems:
    """Load items and labels from an ``.npz`` file, as ``numpy.savez`` writes it.

    ``items`` and ``labels`` are their keys. Without them, ``split="test"`` means ``test`` and
    ``test_labels``, or ``X_test`` and ``y_test``; the default is ``X`` and ``y`` if the file has
    them, else the split ``train``.
    """
    file = existing_path(path)
    if (items is None) != (labels is None):
        name = items or labels
        with _open_npz(file) as archive:
            if name not in archive.files:  # the more helpful error: the key does not exist
                hint = f"it has the keys {', '.join(archive.files)}"
                raise DataError(f"{file} has no key {name!r}", hint=hint)
        error = ValueError(f"items={items!r} and labels={labels!r} must be given together")
        raise add_hint(error, "name both, items= and labels= (--items, --labels)")
    pairs = _default_keys(split) if items is None or labels is None else [(items, labels)]
    with _open_npz(file) as archive:
        pair = _first_match(pairs, archive.files, file, "items= and labels= (--items, --labels)")
        vectors, classes = archive[pair[0]], archive[pair[1]]
    return LabelledItems.from_arrays(vectors, classes, source=f"{file} ({pair[0]})")


def load_npz_items(file: Path, split: str | None, items: str | None) -> Items:
    """Load items without labels: from the key ``items``, a default one, or the only one."""
    names = [items] if items else [pair[0] for pair in _default_keys(split)]
    with _open_npz(file) as archive:
        if len(archive.files) == 1 and not items:
            names = archive.files
        (name,) = _first_match([(name,) for name in names], archive.files, file, "items= (--items)")
        source = f"{file} ({name})"
        return Items(checked_items(np.atleast_2d(archive[name]), source), source=source)


def npz_has_labels(file: Path, split: str | None) -> bool:
    """Whether an ``.npz`` file has items and labels under the default keys."""
    with _open_npz(file) as archive:
        return any(set(pair) <= set(archive.files) for pair in _default_keys(split))


def read_npz(path: AnyPath) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file."""
    with _open_npz(existing_path(path)) as archive:
        return dict(archive)


def _default_keys(split: str | None) -> list[tuple[str, str]]:
    part = split or "train"
    pairs = [(part, f"{part}_labels"), (f"X_{part}", f"y_{part}")]
    return pairs if split else [("X", "y"), *pairs]


def _first_match(
    groups: Sequence[tuple[str, ...]], keys: Sequence[str], file: Path, arguments: str
) -> tuple[str, ...]:
    """Return the first group of keys that a file has."""
    for group in groups:
        if set(group) <= set(keys):
            return group
    expected = "; or ".join(" and ".join(group) for group in groups)
    message = f"{file} has the keys {', '.join(keys)}; looked for {expected}"
    raise DataError(message, hint=f"name others with {arguments}")


@contextmanager
def _open_npz(file: Path) -> Iterator[Any]:
    with _numpy_errors(file), open_regular(file) as stream:
        if stream.read(len(_ZIP)) != _ZIP:
            stream.seek(0)
            _check_header(stream, os.fstat(stream.fileno()).st_size)
            raise DataError(f"{file} holds one array without a key", hint="rename it to .npy")
        stream.seek(0)
        archive = np.load(stream, allow_pickle=False)
        with archive:
            members = archive.zip.infolist()
            size = os.fstat(stream.fileno()).st_size
            check_expanded(file, size, sum(member.file_size for member in members))
            for member in members:
                if member.filename.endswith(".npy"):
                    with archive.zip.open(member) as content:
                        _check_header(content, member.file_size)
            yield archive


def _check_header(stream: IO[bytes], size: int) -> None:
    """Refuse an array that claims more bytes than its file has: numpy would allocate them."""
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0
    }  # fmt: skip
    if version not in readers:
        raise ValueError(f"version {version} of the format")
    shape, _, dtype = readers[version](stream)
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes > size and not dtype.hasobject:
        raise ValueError(f"{dtype}{list(shape)} takes {n_bytes} bytes, there are {size}")


@contextmanager
def _numpy_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except _NUMPY_ERRORS as error:
        if "allow_pickle" in str(error):
            raise DataError(f"{file} holds pickled objects, or is not a numpy file") from None
        raise DataError(f"{file} is damaged, or not a numpy file {reason(error)}") from None
