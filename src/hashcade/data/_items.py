"""What every loader returns: items, their class numbers, and what the classes are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._validate import list_rows
from hashcade.data._labels import Label, encode_labels
from hashcade.errors import DataError


@dataclass(frozen=True, eq=False, repr=False)
class LabelledItems:
    """Items with one class label each.

    Build one from arrays of your own with :meth:`from_arrays`, which checks them; the loaders of
    this package return one.

    Attributes
    ----------
    items : uint8[n, h, w, 3] or float32[n, m]
        Images (height, width, then red, green, blue), or embeddings.
    labels : int64[n]
        Class numbers from 0 to ``n_classes - 1``.
    class_names : tuple of int or str
        What class number ``c`` was called in the source: ``class_names[c]``. A class may be
        without items, as in a part of a larger set.
    source : str
        Where the items came from, for messages and logs.
    skipped : tuple of str
        One line for each item that was left out because it could not be read.
    names : tuple of str
        What each item is called in the source, a file's path within its folder; empty if the
        source has no names.
    """

    items: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    class_names: tuple[Label, ...]
    source: str
    skipped: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        items: object,
        labels: object,
        *,
        class_names: Sequence[Label] | None = None,
        source: str = "arrays",
        skipped: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> LabelledItems:
        """Check items and labels, and put them together.

        Parameters
        ----------
        items : uint8[n, h, w, 3] or real[n, m]
            Images, or embeddings of any real dtype; they become float32.
        labels
            One integer or string per item, see :func:`encode_labels`. With ``class_names`` they
            are class numbers already.
        class_names
            Names of the classes in the order of their numbers.
        source
            Goes in front of every message.
        skipped, names
            Kept as they are.

        Raises
        ------
        DataError
            If the arrays do not fit each other, are empty, or have NaN or infinite values.
        """
        try:
            checked = checked_items(items)
            if class_names is None:
                numbers, called = encode_labels(labels)
            else:
                called = tuple(class_names)
                numbers = _checked_numbers(labels, len(called))
            if len(numbers) != len(checked):
                raise DataError(
                    f"there are {len(checked)} items and {len(numbers)} labels, must be as many"
                )
        except DataError as error:
            raise DataError(f"{source}: {error}") from None
        return cls(checked, numbers, called, source, tuple(skipped), tuple(names))

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.items.shape))
        return (
            f"LabelledItems({self.items.dtype} {shape}, {self.n_classes} classes, "
            f"source={self.source!r})"
        )

    @property
    def n_classes(self) -> int:
        """How many classes have a name."""
        return len(self.class_names)

    @property
    def is_images(self) -> bool:
        """Whether the items are images; otherwise they are embeddings."""
        return self.items.ndim == 4

    def original_labels(self) -> list[Label]:
        """Labels as the source had them, one per item."""
        return [self.class_names[number] for number in self.labels.tolist()]

    def select(self, rows: object) -> LabelledItems:
        """Take some rows (numbers, a mask or a slice); class numbers keep their meaning."""
        where: Any = rows
        names: tuple[str, ...] = ()
        if self.names:
            names = tuple(self.names[row] for row in np.arange(len(self))[where].tolist())
        return replace(self, items=self.items[where], labels=self.labels[where], names=names)


def checked_items(items: object) -> npt.NDArray[Any]:
    """Return images as uint8[n, h, w, 3] or embeddings as finite float32[n, m]."""
    tensor: Any = items
    if hasattr(tensor, "detach"):  # a torch tensor, taken without importing torch
        tensor = tensor.detach().cpu().numpy()
    try:
        array = np.asarray(tensor)
    except ValueError as error:  # rows of different length
        raise DataError(f"items is not a rectangular array: {error}") from None
    if array.dtype.kind not in "fiu":
        raise DataError(f"items has dtype {array.dtype}, must be real numbers")
    if array.ndim == 4:
        if array.dtype != np.uint8 or array.shape[3] != 3:
            raise DataError(
                f"items is {array.dtype} of shape {array.shape}, "
                "images must be uint8 of shape (n, height, width, 3)"
            )
    elif array.ndim != 2:
        raise DataError(
            f"items has shape {array.shape}, must be (n, m) for embeddings "
            "or (n, height, width, 3) for images"
        )
    if array.size == 0:
        raise DataError(f"items has shape {array.shape}, must not be empty")
    return array if array.ndim == 4 else _finite_float32(array)


def _finite_float32(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return embeddings as C-contiguous float32, refusing NaN and infinity by row."""
    with np.errstate(over="ignore"):  # beyond float32: named as infinite below
        vectors = np.ascontiguousarray(array, dtype=np.float32)
    # A sum per row is enough to tell: NaN and infinity survive into it. Finite numbers may
    # overflow there, so a bad sum is only a reason to look closely.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = np.flatnonzero(~np.isfinite(vectors.sum(axis=1)))
    rows = suspects[~np.isfinite(vectors[suspects]).all(axis=1)]
    if len(rows):
        raise DataError(f"items has NaN or infinite values in {list_rows(rows.tolist())}")
    return vectors


def _checked_numbers(labels: object, n_classes: int) -> npt.NDArray[np.int64]:
    """Return class numbers as int64[n], all of them from 0 to ``n_classes - 1``."""
    try:
        numbers = np.asarray(labels)
    except ValueError:  # rows of different length
        raise DataError("labels is not a flat list of class numbers") from None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or len(numbers) == 0:
        raise DataError(
            f"labels is {numbers.dtype} of shape {numbers.shape}, "
            "with class_names it must be class numbers of shape (n,), n >= 1"
        )
    bad = np.flatnonzero((numbers < 0) | (numbers >= n_classes))
    if len(bad):
        raise DataError(
            f"labels has {numbers[bad[0]]} in {list_rows(bad.tolist())}, "
            f"must be from 0 to {n_classes - 1}: there are {n_classes} class names"
        )
    return numbers.astype(np.int64)
