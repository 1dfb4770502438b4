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
from hashcade.store.ids import Int64s, listed_ids, plain_ids
from hashcade.store.payload_file import PayloadFile, file_path, remove_others, write_payload
from hashcade.store.rows import is_row, payload_crc, row_crc
from hashcade.store.transactions import Transactions

_ASKED = 50  # items that are read at a time: SQLite is slower with a list of more
AMONG = "IN (SELECT value FROM json_each(?))"

Ids = npt.NDArray[np.int64] | npt.NDArray[np.object_]


class Descriptions(Transactions):
    """What a table gives back of items. Payload is read from its file, if that is there."""

    def __init__(self) -> None:
        super().__init__()
        self.id_kind: str | None = None  # "int" or "str", from the first items on
        self._payload_name: str | None = None  # generation of the payload file
        self._payload_file: PayloadFile | None = None
        # Of "names" and "payload" those that an item has, or had: others are not looked for.
        self._kept: frozenset[str] = frozenset()

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
            rows = self._all("SELECT number FROM items WHERE id = ?", item_id)
        except UnicodeEncodeError:
            return None
        return rows[0][0] if rows else None

    def numbers_of(self, ids: Any) -> Any:
        """Numbers of items for the index, -1 for ids that are not here; masks stay as they are."""
        if self.id_kind != "str":
            return ids
        given = plain_ids(list(ids), unique=False)
        if not isinstance(given, list):
            self._require_kind(given)
            return given
        present = self._present(given)
        return np.fromiter((present.get(item, -1) for item in given), np.int64, len(given))

    def _require_kind(self, ids: Int64s | list[str]) -> None:
        kind = "str" if isinstance(ids, list) else "int"
        if len(ids) and self.id_kind not in (None, kind):
            words = {"str": "text", "int": "integers"}
            raise ValueError(f"ids are {words[kind]}, those of the table are {words[self.id_kind]}")

    def _present(self, ids: Int64s | list[str]) -> dict[Any, int]:
        """Numbers of those ids that are in the table, in their order."""
        listed = listed_ids(ids)
        column = "id" if isinstance(ids, list) else "number"
        query = f"SELECT {column}, number FROM items WHERE {column} {AMONG}"
        found = dict(self._all(query, json.dumps(listed, ensure_ascii=False)))
        return {item: found[item] for item in listed if item in found}

    def _rows(self, columns: str, numbers: list[int]) -> list[Any]:
        """Columns of items as tuples, one for each number; nulls where there is no item."""
        parts = [numbers[at : at + _ASKED] for at in range(0, len(numbers), _ASKED)]
        return [row for part in parts for row in self._all(_select(columns, len(part)), *part)]

    def _described(self, numbers: Int64s, column: str) -> npt.NDArray[np.object_]:
        """Ids or names of items."""
        listed = numbers.ravel().tolist()
        rows = self._rows(f"{column}, number, id, label, name, crc", listed)
        for number, (_, found, *checked, crc) in zip(listed, rows, strict=True):
            if found is not None and (crc != row_crc(number, *checked) or not is_row(*checked)):
                raise self._damaged(number)
        return _objects([row[0] for row in rows], numbers)

    def _damaged(self, number: object) -> CorruptIndexError:
        return CorruptIndexError(
            f"{self.path} is damaged: the checksum of item {number!r} is wrong"
        )

    def ids_of(self, numbers: Int64s) -> Ids:
        """Ids of items, of the same shape; -1, or None for ids of text, where there is no item."""
        if self.id_kind != "str":
            return numbers
        return self._described(numbers, "id")

    def names_of(self, numbers: Int64s) -> npt.NDArray[np.object_]:
        """Names of items, an array of objects of the same shape; None where there is none."""
        if "names" not in self._kept:
            return np.full(numbers.shape, None, dtype=object)
        return self._described(numbers, "name")

    def name_of(self, item_id: object) -> str | None:
        """Name of the item with this id, or None."""
        number = self.number_of(item_id)
        name: str | None = None if number is None else self.names_of(np.array([number]))[0]
        return name

    @property
    def has_names(self) -> bool:
        """Whether an item has a name."""
        return "names" in self._kept and bool(
            self._all("SELECT 1 FROM items WHERE name IS NOT NULL LIMIT 1")
        )

    def payload_of(self, numbers: Int64s) -> npt.NDArray[np.object_]:
        """Payload of items, an array of objects of the same shape; None where there is none."""
        if "payload" not in self._kept:
            return np.full(numbers.shape, None, dtype=object)
        if self._payload_file is None:
            return _objects(self._stored_payload(numbers.ravel().tolist()), numbers)
        flat = numbers.ravel()
        values, places = self._payload_file.read(flat)
        if len(places):
            stored = self._stored_payload(flat[places].tolist())
            for place, value in zip(places.tolist(), stored, strict=True):
                values[place] = value
        return _objects(values, numbers)

    def _stored_payload(self, listed: list[int]) -> list[Any]:
        rows = self._rows("payload, payload_crc", listed)
        for number, (text, crc) in zip(listed, rows, strict=True):
            if crc != payload_crc(number, text):
                raise self._damaged(number)
        try:  # at once takes less time than one by one
            texts = ["null" if text is None else text for text, _ in rows]
            values: list[Any] = json.loads(f"[{','.join(texts)}]")
            if len(values) != len(rows) or not all(isinstance(v, dict | None) for v in values):
                raise ValueError("it is not an object")
        except (ValueError, RecursionError) as error:
            raise CorruptIndexError(f"{self.path}: a payload is damaged: {error}") from None
        return values

    # -- the payload file --------------------------------------------------------------------------

    def write_payload(self, generation: str) -> None:
        """Write the payload file, if it was announced with this generation.

        To be called for a catalog that shows this very commit: what follows it is noted.
        """
        if self.path is not None and self._payload_name == generation:
            directory = self.path.parent
            with database.database_errors(self.path):
                write_payload(directory, generation, self._payload_rows(self._db))
            remove_others(directory, generation)

    def _write_payload(self, db: sqlite3.Connection, directory: Path, generation: str) -> None:
        if write_payload(directory, generation, self._payload_rows(db)):
            db.execute("UPDATE meta SET value = ? WHERE key = 'payload'", (generation,))

    def _payload_rows(self, db: sqlite3.Connection) -> Iterator[tuple[int, str]]:
        """What is damaged must not get a new checksum."""
        query = "SELECT number, payload, payload_crc FROM items WHERE payload IS NOT NULL"
        for number, text, crc in db.execute(f"{query} ORDER BY number"):
            if crc != payload_crc(number, text):
                raise self._damaged(number)
            yield number, text

    def open_payload(self) -> None:
        """Take the payload file that belongs to the commit that is read, if it is there."""
        self._payload_file = None
        if self.path is None or self._payload_name is None:
            return
        noted = self._all("SELECT number, crc FROM unfiled")
        for number, crc in noted:
            if crc != row_crc(number, None, None, None):
                raise self._damaged(number)
        stale = {number for number, _ in noted}
        path = file_path(self.path.parent, self._payload_name)
        with storage_errors(f"cannot read {path}"), suppress(FileNotFoundError):
            self._payload_file = PayloadFile(path, stale)

    def _note_kept(self, rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """Rows of items on their way into the database: whether there are names and payload."""
        kept = set(self._kept)
        for row in rows:
            if row[3] is not None:
                kept.add("names")
            if row[5] is not None:
                kept.add("payload")
            yield row
        self._kept = frozenset(kept)

    def _note_changed(self, numbers: list[int]) -> None:
        """Have items read from the database from now on; to be called within a change."""
        if self._payload_file is not None:
            self._payload_file.note_changed(numbers)
        if self._payload_name is not None:
            rows = ((number, row_crc(number, None, None, None)) for number in numbers)
            with database.database_errors(self.path):
                self._db.executemany("INSERT OR IGNORE INTO unfiled VALUES(?, ?)", rows)


@lru_cache
def _select(columns: str, n: int) -> str:
    """A query for so many numbers: its rows are in their order."""
    given = ", ".join(["(?)"] * n)
    return f"SELECT {columns} FROM (VALUES {given}) LEFT JOIN items ON number = column1"


def _objects(values: list[Any], numbers: Int64s) -> npt.NDArray[np.object_]:
    return np.fromiter(values, object, numbers.size).reshape(numbers.shape)
