"""Payload: the user's data of an item, as one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, time
from typing import Any

import numpy as np

from hashcade._validate import as_array

_MISSING = ("NAType", "NaTType")


def payload_texts(payload: object, n: int) -> list[str | None]:
    """Payload of ``n`` items as JSON texts; None for an item without payload.

    ``payload`` is a list of dicts or None, a dict of columns, or a pandas or Arrow table. An error
    names the row and the field.
    """
    rows = _as_rows(payload)
    if len(rows) != n:
        raise ValueError(f"payload has {len(rows)} rows, there are {n} items")
    return [None if row is None else _as_text(row, number) for number, row in enumerate(rows)]


def plain_value(value: Any) -> Any:
    """Convert a value of numpy, pandas or datetime to a JSON value; missing ones become None.

    Raises ``TypeError`` for values that JSON does not have.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, np.generic):
        return plain_value(value.item())
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, float):
        if math.isinf(value):
            raise TypeError("is infinite")
        return None if math.isnan(value) else value
    if isinstance(value, date | time):  # datetime is a date
        return value.isoformat()
    if isinstance(value, np.ndarray):
        return plain_value(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"has the key {bad[0]!r}, keys must be strings")
        return {key: plain_value(part) for key, part in value.items()}
    raise TypeError(f"is of type {type(value).__name__}, which JSON does not have")


def _as_rows(payload: Any) -> list[Any]:
    if hasattr(payload, "to_pylist"):  # an Arrow table, or a column of structs
        return list(payload.to_pylist())
    if hasattr(payload, "columns") or isinstance(payload, Mapping):  # pandas, or a dict of columns
        names = list(payload.columns if hasattr(payload, "columns") else payload)
        columns = [_as_list(payload[name]) for name in names]
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            sizes = ", ".join(f"{name} {len(c)}" for name, c in zip(names, columns, strict=True))
            raise ValueError(f"payload has columns of different lengths: {sizes}")
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(payload, str | bytes) or not hasattr(payload, "__iter__"):
        kind = type(payload).__name__
        raise ValueError(f"payload is of type {kind}, must be a list of dicts or a table")
    return list(payload)


def _as_list(column: Any) -> list[Any]:
    if isinstance(column, list | tuple):
        return list(column)
    return list(column.to_pylist() if hasattr(column, "to_pylist") else as_array("payload", column))


def _as_text(row: Any, number: int) -> str:
    if not isinstance(row, Mapping):
        kind = type(row).__name__
        raise ValueError(f"payload has a {kind} in row {number}, must be a dict or None")
    plain: dict[str, Any] = {}
    for field, value in row.items():
        if not isinstance(field, str):
            raise ValueError(f"payload has the field {field!r} in row {number}, must be a string")
        try:
            if type(value) not in (str, int, bool, type(None)):  # fast path
                value = plain_value(value)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"payload: {field!r} in row {number} {error}") from None
        plain[field] = value
    try:
        text = _encode(plain)
        text.encode()
    except ValueError as error:  # half of a surrogate pair, or a value that contains itself
        raise ValueError(f"payload: row {number} is not valid text: {error}") from None
    return text


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
