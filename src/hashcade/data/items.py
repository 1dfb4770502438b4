"""The result of the loaders: items, and with labels their class numbers."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hashcade._progress import progress_bar
from hashcade._validate import as_array, checked_vectors, name_rows
from hashcade.errors import DataError

if TYPE_CHECKING:
    from hashcade.data.extractor import ImageFeatures

AnyPath: TypeAlias = str | os.PathLike[str]
Label: TypeAlias = int | str

MAX_EXPANDED = "HASHCADE_MAX_EXPANDED"  # variable: bytes that a compressed file may expand to
MAPPED_BYTES = 1 << 30  # larger items stay in a file, which is memory-mapped
_EXPANDED, _RATIO = 256 << 20, 100  # defaults: bytes, or this times the size of the file
_ONE_EACH = "must be one integer or one string per item"


@dataclass(frozen=True, eq=False, repr=False)
class Items:
    """Items without labels: queries, or items to add to an index.

    Images are uint8[n, h, w, 3], embeddings float32[n, m], or a memory-mapped array of any real
    dtype. ``source`` describes where they came from. ``skipped`` has one line for each item that
    could not be read. ``names`` has the path of each file within its folder, and is empty if the
    source has no names. For features of images ``features`` is the name of the pre-trained network.
    ``n_small`` counts image files that had to be enlarged. ``ids`` and ``payload``, a dict per
    item, are the requested columns of the source; ``unread`` are the names of its other columns.
    """

    items: NDArray[Any]
    _: KW_ONLY
    source: str = "arrays"
    skipped: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    features: str | None = None
    n_small: int = 0
    ids: tuple[Any, ...] | None = None
    payload: tuple[dict[str, Any], ...] | None = None
    unread: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.items.shape))
        return f"{type(self).__name__}({self.items.dtype} {shape}, source={self.source!r})"

    @property
    def is_images(self) -> bool:
        """Whether the items are images; otherwise they are embeddings."""
        return self.items.ndim == 4

    def with_features(
        self,
        features: ImageFeatures | None,
        *,
        cache: AnyPath | None = None,
        verbose: bool | None = None,
    ) -> Self:
        """Replace images by features of a network; embeddings, or without a network, unchanged."""
        if features is None or not self.is_images:
            return self
        with progress_bar("features of images", quiet=verbose is False) as progress:
            vectors = features.of(self.items, cache=cache, progress=progress)
        n_small = len(self) * smaller(self.items.shape[1:3], features.image_size)
        return replace(self, items=vectors, features=features.name, n_small=n_small)


@dataclass(frozen=True, eq=False, repr=False)
class LabelledItems(Items):
    """Items with one class label each; see :meth:`from_arrays`.

    ``labels`` are class numbers from 0 to ``n_classes - 1``; ``class_names[c]`` is the name of
    class ``c`` in the source. A class may have no items.
    """

    labels: NDArray[np.int64]
    class_names: tuple[Label, ...]

    @classmethod
    def from_arrays(
        cls,
        items: object,
        labels: object,
        *,
        class_names: Sequence[Label] | None = None,
        source: str = "arrays",
    ) -> LabelledItems:
        """Check items and labels, and combine them.

        Items are uint8[n, h, w, 3] images, or embeddings of any real dtype, which become float32
        and must be finite. Labels are integers or strings, see :func:`encode_labels`; with
        ``class_names`` they are class numbers already.
        """
        values = checked_items(items, source)
        try:
            if class_names is None:
                numbers, class_names = encode_labels(labels)
            else:
                numbers = _checked_numbers(labels, len(class_names))
        except (DataError, ValueError) as error:
            raise DataError(f"{source}: {error}") from None
        if len(numbers) != len(values):
            raise DataError(f"{source}: there are {len(values)} items and {len(numbers)} labels")
        return LabelledItems(values, numbers, tuple(class_names), source=source)

    @property
    def n_classes(self) -> int:
        """Number of classes, including those without items."""
        return len(self.class_names)

    def original_labels(self) -> list[Label]:
        """Labels as the source had them, one per item."""
        return [self.class_names[number] for number in self.labels.tolist()]


def checked_items(items: object, source: str) -> NDArray[Any]:
    """Return images as uint8[n, h, w, 3] or embeddings as finite float32[n, m]."""
    try:
        array = as_array("items", items)
        if isinstance(array, np.memmap) and array.ndim == 2 and array.dtype.kind in "fiu":
            return array  # the values are checked when they are read
        if array.ndim == 2:
            array = checked_vectors("items", array)
    except ValueError as error:
        raise DataError(f"{source}: {error}", hint=getattr(error, "hint", None)) from None
    is_images = array.ndim == 4 and array.dtype == np.uint8 and array.shape[3] == 3
    if array.size == 0 or not (array.ndim == 2 or is_images):
        allowed = "embeddings (n, m) or uint8 images (n, height, width, 3), and not empty"
        kind = f"{array.dtype} of shape {array.shape}"
        raise DataError(f"{source}: items is {kind}, must be {allowed}")
    return array


def _checked_numbers(labels: object, n_classes: int) -> NDArray[np.int64]:
    """Return class numbers as int64[n], all of them from 0 to ``n_classes - 1``."""
    numbers = as_array("labels", labels)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        kind = f"{numbers.dtype} of shape {numbers.shape}"
        raise DataError(f"labels is {kind}, with class_names it must be class numbers (n,)")
    bad = (numbers < 0) | (numbers >= n_classes)
    if bad.any():
        raise DataError(f"labels must be from 0 to {n_classes - 1}, not so in {name_rows(bad)}")
    return numbers.astype(np.int64)


def encode_labels(labels: object) -> tuple[NDArray[np.int64], tuple[Label, ...]]:
    """Number the classes: the smallest label becomes class 0, the next one class 1, and so on.

    Labels are integers of any size and sign, or strings; a list, an array, a tensor or a column.
    Not both kinds: it would be unclear whether ``1`` and ``"1"`` are the same class. Returns class
    numbers, int64[n], and class names, the sorted distinct labels.

    >>> class_numbers, class_names = encode_labels(["dog", "cat", "dog"])
    >>> class_numbers.tolist(), class_names
    ([1, 0, 1], ('cat', 'dog'))
    """
    values: Any = labels
    if hasattr(values, "detach"):  # a tensor
        values = as_array("labels", values)
    elif hasattr(values, "to_numpy"):  # a column of a table
        values = values.to_numpy()
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise DataError(f"labels is {type(values).__name__}, {_ONE_EACH}")
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise DataError(f"labels has shape {values.shape}, must be (n,): {_ONE_EACH}")
        if values.dtype.kind == "f":
            raise DataError(f"labels has dtype {values.dtype}, {_ONE_EACH}")
        if values.dtype.kind in "iub" and len(values) > 0:
            names, numbers = np.unique(values, return_inverse=True)
            return numbers.astype(np.int64), tuple(int(name) for name in names.tolist())
    # Strings are compared in Python: numpy drops trailing NULs.
    plain = [_plain_label(row, label) for row, label in enumerate(values)]
    if not plain:
        raise DataError("labels is empty, must have at least one")
    first_rows = {type(label): row for row, label in reversed(list(enumerate(plain)))}
    if len(first_rows) > 1:
        raise DataError(
            f"labels has an integer in row {first_rows[int]} and a string in row "
            f"{first_rows[str]}, must be all integers or all strings"
        )
    class_names: list[Any] = sorted(set(plain))
    number = {name: class_number for class_number, name in enumerate(class_names)}
    return np.array([number[label] for label in plain], np.int64), tuple(class_names)


def _plain_label(row: int, label: object) -> Label:
    try:
        if isinstance(label, (str, bytes)):
            return label.decode() if isinstance(label, bytes) else str(label)
        return operator.index(label)  # type: ignore[arg-type]
    except (TypeError, UnicodeDecodeError):
        what = f"{label!r} ({type(label).__name__})"
        raise DataError(f"labels has {what} in row {row}, {_ONE_EACH}") from None


def smaller(sides: tuple[int, ...], target: tuple[int, int]) -> bool:
    """Whether an image has to be enlarged."""
    return sides[0] < target[0] or sides[1] < target[1]


def existing_path(path: AnyPath) -> Path:
    """Return a path with ``~`` expanded; raise ``DataError`` if it does not exist."""
    expanded = Path(path).expanduser()
    if not expanded.exists():
        raise DataError(f"{expanded} does not exist", hint="check the path")
    return expanded


def check_expanded(file: AnyPath, size: int, n_bytes: int) -> None:
    """Raise ``DataError`` for a file that expands to far more memory than its size."""
    setting = os.environ.get(MAX_EXPANDED)
    limit = int(setting) if setting and setting.isdecimal() else max(_EXPANDED, _RATIO * size)
    if n_bytes > limit:
        message = f"{file} has {size:,} bytes and expands to {n_bytes:,}, must be <= {limit:,}"
        raise DataError(message, hint=f"if you trust it, set {MAX_EXPANDED}={n_bytes}")


def reason(error: BaseException) -> str:
    """Format the error of another package in one line: ``(OSError: ...)``."""
    return f"({type(error).__name__}: {' '.join(str(error).split())})"
