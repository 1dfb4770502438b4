"""Validation and conversion of ids and labels: lists, arrays, or columns of a data frame."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._validate import as_array, name_ids, plain_labels
from hashcade.index import checked_ids

Label = int | str
Int64s = npt.NDArray[np.int64]


def plain_ids(ids: Any, n: int | None = None, *, unique: bool = True) -> Int64s | list[str]:
    """Ids as int64[n], or a list of strings; duplicates are an error if ``unique``."""
    if isinstance(ids, str):
        raise ValueError(f"ids={ids!r} must be a list of ids")
    items = list(ids) if isinstance(ids, list | tuple | set | range) else None
    array = np.empty(0) if items is not None else as_array("ids", ids)
    if items is None and array.dtype.kind in "OUT":
        if array.ndim != 1:
            raise ValueError(f"ids has shape {array.shape}, must be (n,)")
        items = array.tolist()
    n_text = 0 if items is None else sum(isinstance(item, str) for item in items)
    if items is None or n_text == 0:
        values = array if items is None else np.asarray(items) if items else np.empty(0, int)
        if values.dtype.kind == "O":
            raise ValueError("ids must be integers or strings")
        return checked_ids("ids", values, n) if unique else values.astype(np.int64)
    if n_text < len(items):
        row = next(row for row, item in enumerate(items) if not isinstance(item, str))
        raise ValueError(f"ids mixes text with {items[row]!r} in row {row}, must be of one kind")
    if n is not None and len(items) != n:
        raise ValueError(f"ids has {len(items)} entries, vectors has {n} rows")
    if unique and len(set(items)) < len(items):
        repeated = {item for item in items if items.count(item) > 1} if len(items) < 1000 else None
        raise ValueError(
            f"ids has {format_ids(sorted(repeated)) if repeated else 'some'} more than once"
        )
    for row, item in enumerate(items):
        if "\0" in item or not (item.isascii() or is_text(item)):
            raise ValueError(f"ids has {item!a} in row {row}, which is not valid text")
    return [str(item) for item in items]  # subclasses such as np.str_ become str


def is_text(item: str) -> bool:
    """Whether a string can be stored as UTF-8: not if it has half of a surrogate pair."""
    try:
        item.encode()
    except UnicodeEncodeError:
        return False
    return True


def id_list(ids: Int64s | list[str]) -> list[Any]:
    """Integer or text ids as a list."""
    return ids if isinstance(ids, list) else ids.tolist()


def format_ids(ids: list[Any]) -> str:
    """Format ids for a message: ``id 7``, or ``ids 'a', 'b'``, ten at most."""
    array = np.empty(len(ids), dtype=object)
    array[:] = [repr(item) if isinstance(item, str) else item for item in ids]
    return name_ids(array)


def label_array(labels: object, n: int) -> npt.NDArray[np.object_]:
    """Labels of ``n`` items as plain integers, strings, or None."""
    array = np.empty(n, dtype=object)
    array[:] = label_list(labels, n, "labels")
    return array


def label_list(labels: object, n: int, name: str) -> list[Label | None]:
    """Labels of ``n`` items as a list of plain integers, strings, or None."""
    array = as_array(name, labels)
    if array.shape != (n,):
        raise ValueError(f"{name} has shape {array.shape}, must be ({n},)")
    array = plain_labels(array)
    plain: list[Any] = array.tolist()
    if array.dtype.kind in "iU":
        return plain
    return [_plain_label(label, row, name) for row, label in enumerate(plain)]


def _plain_label(label: Any, row: int, name: str) -> Label | None:
    """A label as a plain integer or string, or None if it is missing."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, str):
        return label
    is_nan = isinstance(label, float) and math.isnan(label)
    if label is None or is_nan or type(label).__name__ in ("NAType", "NaTType"):
        return None
    is_whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    if is_whole and -(2**63) <= label < 2**63:
        return int(label)
    raise ValueError(f"{name} has {label!r} in row {row}, must be an integer, a string or None")
