"""Rows of the table ``items`` in the database, and their checksums."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from hashcade.store.ids import Int64s

ItemRow = tuple[int, str | None, int | None, str | None, int, str | None, float | None]


def item_rows(
    numbers: Int64s, keys: Iterable[str | None], codes: Int64s, names: Iterable[str | None],
    payload: Iterable[str | None],
) -> Iterator[ItemRow]:  # fmt: skip
    """Rows of the table ``items``: numbers, text ids or None, label codes, names, payload."""
    label_codes = (None if code < 0 else code for code in codes.tolist())
    for number, key, code, name, text in zip(
        numbers.tolist(), keys, label_codes, names, payload, strict=False
    ):
        crc = row_crc(number, key, code, name)
        yield number, key, code, name, crc, text, payload_crc(number, text)


def is_row(key: object, label: object, name: object) -> bool:
    """Whether id, label and name of an item have valid types: SQLite accepts any."""
    return (
        isinstance(key, str | None)
        and isinstance(name, str | None)
        and (label is None or (isinstance(label, int) and label >= 0))
    )


def row_crc(number: int, key: Any, label: Any, name: Any) -> int:
    """Checksum of a row without its payload."""
    return zlib.crc32(f"{number}|{key}|{label}|{name}".encode())


def payload_crc(number: int, text: object) -> float | None:
    """Checksum of the payload of an item."""
    if not isinstance(text, str):
        return None if text is None else math.nan  # damaged: equals no stored checksum
    return zlib.crc32(text.encode(), number & 0xFFFFFFFF)  # seeded with the number
