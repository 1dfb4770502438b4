"""Ids and labels as users give them: lists, arrays, columns of a table; checked, and plain."""

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
    """Ids as int64[n], or a list of strings; none twice."""
    if isinstance(ids, str):
        raise ValueError(f"ids={ids!r} must be a list of ids")
    listed = list(ids) if isinstance(ids, list | tuple | set | range) else None
    array = np.empty(0) if listed is not None else as_array("ids", ids)
    if listed is None and array.dtype.kind in "OUT":
        if array.ndim != 1:
            raise ValueError(f"ids has shape {array.shape}, must be (n,)")
        listed = array.tolist()
    n_text = 0 if listed is None else sum(isinstance(item, str) for item in listed)
    if listed is None or n_text == 0:
        values = array if listed is None else np.asarray(listed) if listed else np.empty(0, int)
        if values.dtype.kind == "O":
            raise ValueError("ids must be integers or strings")
        return checked_ids("ids", values, n) if unique else values.astype(np.int64)
    if n_text < len(listed):
        row = next(row for row, item in enumerate(listed) if not isinstance(item, str))
        raise ValueError(f"ids mixes text with {listed[row]!r} in row {row}, must be of one kind")
    if n is not None and len(listed) != n:
        raise ValueError(f"ids has {len(listed)} entries, vectors has {n} rows")
    if unique and len(set(listed)) < len(listed):
        again = {item for item in listed if listed.count(item) > 1} if len(listed) < 1000 else set()
        raise ValueError(f"ids has {named_ids(sorted(again)) if again else 'some'} more than once")
    for row, item in enumerate(listed):
        if "\0" in item or not (item.isascii() or _is_text(item)):
            raise ValueError(f"ids has {item!a} in row {row}, which is not valid text")
    return [str(item) for item in listed]  # np.str_ and other kinds of str as plain ones


def _is_text(item: str) -> bool:
    try:
        item.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed_ids(ids: Int64s | list[str]) -> list[Any]:
    """Ids of both kinds as a list."""
    return ids if isinstance(ids, list) else ids.tolist()


def named_ids(ids: list[Any]) -> str:
    """Ids for a message: ``id 7``, or ``ids 'a', 'b'``, ten at most."""
    array = np.empty(len(ids), dtype=object)
    array[:] = [repr(item) if isinstance(item, str) else item for item in ids]
    return name_ids(array)


def label_array(labels: object, n: int) -> npt.NDArray[np.object_]:
    """Labels of ``n`` items as plain integers, strings, or None."""
    array = np.empty(n, dtype=object)
    array[:] = plain_list(labels, n, "labels")
    return array


def plain_list(labels: object, n: int, name: str) -> list[Label | None]:
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
    whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    if whole and -(2**63) <= label < 2**63:
        return int(label)
    raise ValueError(f"{name} has {label!r} in row {row}, must be an integer, a string or None")
