"""Ids, names and payload of items by their numbers, and the numbers of ids."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._io import storage_errors
from hashcade.errors import CorruptIndexError
from hashcade.store import database
from hashcade.store.ids import Int64s, id_list, plain_ids
from hashcade.store.payload_file import PayloadFile, file_path, remove_stale_files, write_payload
from hashcade.store.rows import is_row, payload_crc, row_crc
from hashcade.store.transactions import Transactions

_ROWS_PER_QUERY = 50  # SQLite is slower with longer lists
IN_LIST = "IN (SELECT value FROM json_each(?))"

Ids = npt.NDArray[np.int64] | npt.NDArray[np.object_]


class Descriptions(Transactions):
    """Lookups of ids, names and payload. Payload is read from the payload file, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.id_kind: str | None = None  # "int" or "str", once there are items
        self._payload_name: str | None = None  # generation of the payload file
        self._payload_file: PayloadFile | None = None
        # Which of "names" and "payload" any item has, or had; others are not queried.
        self._used_columns: frozenset[str] = frozenset()

    def number_of(self, item_id: object) -> int | None:
        """Number of the item with this id, or None."""
        if isinstance(item_id, np.generic):
            item_id = item_id.item()
        kind = str if self.id_kind == "str" else int
        if not isinstance(item_id, kind) or isinstance(item_id, bool):
            return None
        if isinstance(item_id, int):
            return item_id if 0 <= item_id < 2**63 else None
        try:
            rows = self._query("SELECT number FROM items WHERE id = ?", item_id)
        except UnicodeEncodeError:
            return None
        return rows[0][0] if rows else None

    def numbers_of(self, ids: Any) -> Any:
        """Item numbers for the index, -1 for unknown ids; masks are returned unchanged."""
        if self.id_kind != "str":
            return ids
        item_ids = plain_ids(list(ids), unique=False)
        if not isinstance(item_ids, list):
            self._require_kind(item_ids)
            return item_ids
        existing = self._existing(item_ids)
        return np.fromiter((existing.get(item, -1) for item in item_ids), np.int64, len(item_ids))

    def _require_kind(self, ids: Int64s | list[str]) -> None:
        kind = "str" if isinstance(ids, list) else "int"
        if len(ids) and self.id_kind not in (None, kind):
            words = {"str": "text", "int": "integers"}
            raise ValueError(f"ids are {words[kind]}, those of the table are {words[self.id_kind]}")

    def _existing(self, ids: Int64s | list[str]) -> dict[Any, int]:
        """Numbers of the ids that are in the table, by id, in the given order."""
        values = id_list(ids)
        column = "id" if isinstance(ids, list) else "number"
        query = f"SELECT {column}, number FROM items WHERE {column} {IN_LIST}"
        numbers = dict(self._query(query, json.dumps(values, ensure_ascii=False)))
        return {item: numbers[item] for item in values if item in numbers}

    def _select_rows(self, columns: str, numbers: list[int]) -> list[Any]:
        """Columns of items, one tuple for each number; nulls where there is no item."""
        rows: list[Any] = []
        for start in range(0, len(numbers), _ROWS_PER_QUERY):
            chunk = numbers[start : start + _ROWS_PER_QUERY]
            rows += self._query(_select(columns, len(chunk)), *chunk)
        return rows

    def _checked_column(self, numbers: Int64s, column: str) -> npt.NDArray[np.object_]:
        """A column of items, whose checksums are verified."""
        flat = numbers.ravel().tolist()
        rows = self._select_rows(f"{column}, number, id, label, name, crc", flat)
        for number, (_, stored, *values, crc) in zip(flat, rows, strict=True):
            if stored is not None and (crc != row_crc(number, *values) or not is_row(*values)):
                raise self._damaged(number)
        return _objects([row[0] for row in rows], numbers)

    def _damaged(self, number: object) -> CorruptIndexError:
        return CorruptIndexError(
            f"{self.path} is damaged: the checksum of item {number!r} is wrong"
        )

    @property
    def is_in_memory(self) -> bool:
        """Whether ids, names and payload are found without SQLite: no item has any of its own."""
        return self.id_kind != "str" and not self._used_columns

    def ids_of(self, numbers: Int64s) -> Ids:
        """Ids of items, of the same shape; -1 (None for text ids) where there is no item."""
        if self.id_kind != "str":
            return numbers
        return self._checked_column(numbers, "id")

    def names_of(self, numbers: Int64s) -> npt.NDArray[np.object_]:
        """Names of items, an object array of the same shape; None where there is none."""
        if "names" not in self._used_columns:
            return np.full(numbers.shape, None, dtype=object)
        return self._checked_column(numbers, "name")

    def name_of(self, item_id: object) -> str | None:
        """Name of the item with this id, or None."""
        number = self.number_of(item_id)
        name: str | None = None if number is None else self.names_of(np.array([number]))[0]
        return name

    @property
    def has_names(self) -> bool:
        """Whether an item has a name."""
        return "names" in self._used_columns and bool(
            self._query("SELECT 1 FROM items WHERE name IS NOT NULL LIMIT 1")
        )

    def payload_of(self, numbers: Int64s) -> npt.NDArray[np.object_]:
        """Payload of items, an object array of the same shape; None where there is none."""
        if "payload" not in self._used_columns:
            return np.full(numbers.shape, None, dtype=object)
        flat = numbers.ravel()
        if self._payload_file is None:
            return _objects(self._query_payload(flat.tolist()), numbers)
        values, missing = self._payload_file.read(flat)
        if len(missing):
            payload = self._query_payload(flat[missing].tolist())
            for position, value in zip(missing.tolist(), payload, strict=True):
                values[position] = value
        return _objects(values, numbers)

    def _query_payload(self, numbers: list[int]) -> list[Any]:
        rows = self._select_rows("payload, payload_crc", numbers)
        for number, (text, crc) in zip(numbers, rows, strict=True):
            if crc != payload_crc(number, text):
                raise self._damaged(number)
        try:  # one call is faster than one per item
            texts = ["null" if text is None else text for text, _ in rows]
            values: list[Any] = json.loads(f"[{','.join(texts)}]")
            if len(values) != len(rows) or not all(isinstance(v, dict | None) for v in values):
                raise ValueError("it is not an object")
        except (ValueError, RecursionError) as error:
            raise CorruptIndexError(f"{self.path}: a payload is damaged: {error}") from None
        return values

    # -- the payload file --------------------------------------------------------------------------

    def write_payload(self, generation: str) -> None:
        """Write the payload file, if :meth:`announce` asked for one of this generation.

        The catalog must show the commit of ``announce``: later changes are tracked as stale.
        """
        if self.path is not None and self._payload_name == generation:
            directory = self.path.parent
            with database.database_errors(self.path):
                write_payload(directory, generation, self._payload_rows(self._db))
            remove_stale_files(directory, generation)

    def _write_payload(self, db: sqlite3.Connection, directory: Path, generation: str) -> None:
        if write_payload(directory, generation, self._payload_rows(db)):
            db.execute("UPDATE meta SET value = ? WHERE key = 'payload'", (generation,))

    def _payload_rows(self, db: sqlite3.Connection) -> Iterator[tuple[int, str]]:
        """Payload of all items; checked, so that damaged text does not get a valid checksum."""
        query = "SELECT number, payload, payload_crc FROM items WHERE payload IS NOT NULL"
        for number, text, crc in db.execute(f"{query} ORDER BY number"):
            if crc != payload_crc(number, text):
                raise self._damaged(number)
            yield number, text

    def open_payload(self) -> None:
        """Open the payload file of the current commit, if it exists."""
        self._payload_file = None
        if self.path is None or self._payload_name is None:
            return
        changed = self._query("SELECT number, crc FROM unfiled")
        for number, crc in changed:
            if crc != row_crc(number, None, None, None):
                raise self._damaged(number)
        stale = {number for number, _ in changed}
        path = file_path(self.path.parent, self._payload_name)
        with storage_errors(f"cannot read {path}"), suppress(FileNotFoundError):
            self._payload_file = PayloadFile(path, stale)

    def _track_columns(self, rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """Pass rows on to the database, and record whether they have names and payload."""
        columns = set(self._used_columns)
        for row in rows:
            if row[3] is not None:
                columns.add("names")
            if row[5] is not None:
                columns.add("payload")
            yield row
        self._used_columns = frozenset(columns)

    def _mark_stale(self, numbers: list[int]) -> None:
        """Have items read from the database instead of the payload file; within a change."""
        if self._payload_file is not None:
            self._payload_file.mark_stale(numbers)
        if self._payload_name is not None:
            rows = ((number, row_crc(number, None, None, None)) for number in numbers)
            with database.database_errors(self.path):
                self._db.executemany("INSERT OR IGNORE INTO unfiled VALUES(?, ?)", rows)


@lru_cache
def _select(columns: str, n: int) -> str:
    """A query for ``n`` items, in the order of the given numbers."""
    placeholders = ", ".join(["(?)"] * n)
    return f"SELECT {columns} FROM (VALUES {placeholders}) LEFT JOIN items ON number = column1"


def _objects(values: list[Any], numbers: Int64s) -> npt.NDArray[np.object_]:
    return np.fromiter(values, object, numbers.size).reshape(numbers.shape)
