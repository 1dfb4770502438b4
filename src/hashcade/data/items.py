"""What the loaders return: items, and with labels their class numbers and class names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashcade._validate import as_array, checked_vectors, name_rows
from hashcade.data.labels import Label, encode_labels
from hashcade.errors import DataError


@dataclass(frozen=True, eq=False, repr=False)
class Items:
    """Items without labels: queries, or items to add to an index.

    Images are uint8[n, h, w, 3], embeddings float32[n, m]. ``source`` says where they came from.
    ``skipped`` has one line for each item that could not be read, ``names`` the name of each item,
    a file's path within its folder; it is empty if the source has no names.
    """

    items: NDArray[Any]
    _: KW_ONLY
    source: str = "arrays"
    skipped: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.items.shape))
        return f"{type(self).__name__}({self.items.dtype} {shape}, source={self.source!r})"

    @property
    def is_images(self) -> bool:
        """Whether the items are images; otherwise they are embeddings."""
        return self.items.ndim == 4


@dataclass(frozen=True, eq=False, repr=False)
class LabelledItems(Items):
    """Items with one class label each, made of arrays by :meth:`from_arrays`.

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
        """Check items and labels, and put them together.

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
        if array.ndim == 2:
            array = checked_vectors("items", array)
    except ValueError as error:
        raise DataError(f"{source}: {error}", hint=getattr(error, "hint", None)) from None
    is_images = array.ndim == 4 and array.dtype == np.uint8 and array.shape[3] == 3
    if array.size == 0 or not (array.ndim == 2 or is_images):
        raise DataError(
            f"{source}: items is {array.dtype} of shape {array.shape}, must be embeddings (n, m) "
            "or uint8 images (n, height, width, 3), and not empty"
        )
    return array


def _checked_numbers(labels: object, n_classes: int) -> NDArray[np.int64]:
    """Return class numbers as int64[n], all of them from 0 to ``n_classes - 1``."""
    numbers = as_array("labels", labels)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(
            f"labels is {numbers.dtype} of shape {numbers.shape}, "
            "with class_names it must be class numbers of shape (n,)"
        )
    bad = (numbers < 0) | (numbers >= n_classes)
    if bad.any():
        raise DataError(f"labels must be from 0 to {n_classes - 1}, not so in {name_rows(bad)}")
    return numbers.astype(np.int64)
