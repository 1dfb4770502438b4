"""Labels and names of items. An index holds numbers; the catalog says what they stand for.

::

    table/
        model/         the hasher; absent if the table has none
        index/         buckets, vectors, ids, label codes, and the log of changes
        catalog.json   classes (label code c stands for classes[c]), metric, place, source
        names.json     name by item id; absent if no item has a name
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._io import read_file, replace_file
from hashcade._validate import as_array, plain_labels
from hashcade.errors import CorruptIndexError, IncompatibleFormatError, StorageError
from hashcade.index import NO_LABEL

CATALOG_NAME = "catalog.json"
NAMES_NAME = "names.json"
MODEL_DIR, INDEX_DIR = "model", "index"
FORMAT = "hashcade-table"
VERSION = 1

Label = int | str


class Catalog:
    """Classes and names of the items of a table.

    Parameters
    ----------
    classes
        Labels in the order of their codes: code ``c`` in the index stands for ``classes[c]``.
    names
        Names of items by id, file names for instance. Items need not have one.
    metric, place, data
        How candidates are ranked; where items with a label go, by ``"label"`` or by ``"network"``;
        where the items came from, if it is known.
    """

    def __init__(
        self,
        classes: Sequence[Label] = (),
        names: Mapping[int, str] | None = None,
        *,
        metric: str = "euclidean",
        place: str = "label",
        data: Path | None = None,
    ) -> None:
        self.classes: list[Label] = list(classes)
        self.names: dict[int, str] = dict(names or {})
        self.metric, self.place, self.data = metric, place, data
        self._label_of = np.empty(0, dtype=object)  # by code, None last; made when it is needed
        self._code_of = {label: code for code, label in enumerate(self.classes)}

    def copy(self) -> Catalog:
        """A catalog that takes new classes of its own; the names are shared."""
        other = Catalog(self.classes, metric=self.metric, place=self.place, data=self.data)
        other.names = self.names
        return other

    def codes(self, labels: object, n: int, *, name: str = "labels") -> npt.NDArray[np.int64]:
        """Codes of ``n`` labels, int64[n]; labels that are new become classes.

        None, NaN and other marks of a missing value become ``NO_LABEL``; ``labels=None`` means
        that all are missing.
        """
        if labels is None:
            return np.full(n, NO_LABEL, dtype=np.int64)
        array = as_array(name, labels)
        if array.shape != (n,):
            raise ValueError(f"{name} has shape {array.shape}, must be ({n},)")
        array = plain_labels(array)
        plain = array.tolist()
        if array.dtype.kind not in "iuU":
            plain = [_plain_label(label, row, name) for row, label in enumerate(plain)]
        for label in dict.fromkeys(plain):
            if label is not None and label not in self._code_of:
                self._code_of[label] = len(self.classes)
                self.classes.append(label)
        codes = (NO_LABEL if label is None else self._code_of[label] for label in plain)
        return np.fromiter(codes, dtype=np.int64, count=n)

    def labels(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Labels of codes, an array of objects of the same shape; None where there is none."""
        if len(self._label_of) != len(self.classes) + 1:
            label_of = np.empty(len(self.classes) + 1, dtype=object)
            label_of[:-1] = self.classes
            self._label_of = label_of
        return np.asarray(self._label_of[codes])  # NO_LABEL is -1: the last entry, None

    def names_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Names of items, an array of objects of the same shape; None where there is none."""
        names = np.full(ids.shape, None, dtype=object)
        if self.names:
            names.ravel()[:] = [self.names.get(item) for item in ids.ravel().tolist()]
        return names

    def label(self, code: int) -> Label | None:
        """Label of one code."""
        return self.classes[code] if 0 <= code < len(self.classes) else None

    def name_items(self, ids: npt.NDArray[np.int64], names: Sequence[str | None] | None) -> None:
        """Give items names, or take the old names away from items that get none."""
        for item, name in zip(ids.tolist(), names or [None] * len(ids), strict=True):
            if name is not None:
                self.names[item] = name
            elif self.names:
                self.names.pop(item, None)

    @contextmanager
    def change(self, n: int, names: Sequence[str | None] | None) -> Iterator[None]:
        """A change of ``n`` items: classes that it brings are forgotten if it fails."""
        if names is not None and len(names) != n:
            raise ValueError(f"names has {len(names)} entries, there are {n} items")
        n_classes = len(self.classes)
        try:
            yield
        except BaseException:
            for label in self.classes[n_classes:]:
                del self._code_of[label]
            del self.classes[n_classes:]
            self._label_of = np.empty(0, dtype=object)
            raise

    def forget_names(self, ids: Sequence[int]) -> bool:
        """Take the names of earlier items with these ids away; whether there were any."""
        return bool([item for item in ids if self.names.pop(item, None)] if self.names else [])

    def write(self, directory: Path, *, names: bool = True) -> None:
        """Write the catalog into the directory of a table, each file whole.

        With ``names=False`` the names on disk stay as they are.
        """
        if self.names and names:
            by_id = {str(item): name for item, name in self.names.items()}
            replace_file(directory / NAMES_NAME, json.dumps(by_id, ensure_ascii=False))
        content = {
            "format": FORMAT,
            "version": VERSION,
            "metric": self.metric,
            "place": self.place,
            "data": None if self.data is None else str(self.data.absolute()),
            "has_names": bool(self.names),
            "classes": self.classes,
        }
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        replace_file(directory / CATALOG_NAME, text)

    @classmethod
    def read(cls, directory: Path) -> Catalog:
        """Read the catalog of a table, or raise a ``StorageError`` that says why not."""
        require_table(directory)
        path = directory / CATALOG_NAME
        content = _read_json(path)
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise IncompatibleFormatError(
                f"{path} has format {content.get('format')!r} version {content.get('version')!r}, "
                f"this package reads {FORMAT!r} version {VERSION}"
            )
        try:
            names = _read_json(directory / NAMES_NAME) if content["has_names"] else {}
            classes = content["classes"]
            if not all(isinstance(label, int | str) for label in classes):
                raise TypeError("classes must be integers or strings")
            return cls(
                classes,
                {int(item): str(name) for item, name in names.items()},
                metric=str(content["metric"]),
                place=str(content["place"]),
                data=None if content["data"] is None else Path(content["data"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(
                f"{path} is damaged: {error!r}", hint="restore a copy, or build it again"
            ) from None


def require_table(directory: Path) -> None:
    """Raise ``StorageError`` unless there is a table in this directory."""
    if not (directory / CATALOG_NAME).is_file():
        raise StorageError(
            f"{directory} is not a hashcade table: {CATALOG_NAME} is missing",
            hint="make a table with: hashcade fit DATA -o TABLE",
        )


def _plain_label(label: Any, row: int, name: str) -> Label | None:
    """A label as a plain integer or string, or None if it is missing."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, str):
        return label
    is_nan = isinstance(label, float) and math.isnan(label)
    if label is None or is_nan or type(label).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(label, int) or (isinstance(label, float) and label.is_integer()):
        return int(label)
    raise ValueError(f"{name} has {label!r} in row {row}, must be an integer, a string or None")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_file(path))
    except ValueError as error:
        raise CorruptIndexError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise CorruptIndexError(f"{path} is damaged: it must hold an object")
    return content
