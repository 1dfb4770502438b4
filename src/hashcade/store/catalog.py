"""The catalog: ids, labels, names and payload of items. The index only has item numbers."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._validate import checked_choice
from hashcade.errors import CorruptIndexError, add_hint
from hashcade.index import METRICS, NO_LABEL, Cancel, Filter, HashIndex
from hashcade.store import database
from hashcade.store.change_log import ChangeLog
from hashcade.store.descriptions import IN_LIST, Descriptions
from hashcade.store.ids import Int64s, Label, format_ids, id_list, label_list, plain_ids
from hashcade.store.payload import payload_texts
from hashcade.store.payload_file import is_generation
from hashcade.store.rows import ItemRow, is_row, item_rows, payload_crc, row_crc
from hashcade.store.where import Names, compile_where, json_path

MODEL_DIR = "model"
PLACES = ("label", "network")
_CACHED_FILTERS = 8
_CHUNK = 10_000  # rows fetched at a time by verify
_STALE_FRACTION = 0.25  # of the payload file: beyond it, the file is rewritten

_STORED_VALUES = "SELECT field, kind, value, number FROM field_values"
_EXPECTED_VALUES = f"{database.FIELD_VALUES.format('items')}, items"  # from the payload


class Catalog(ChangeLog, Descriptions):
    """Ids, labels, names and payload of items, in a private database or that of a directory.

    Parameters
    ----------
    classes
        Labels in the order of their codes: code ``c`` in the index stands for ``classes[c]``.
    metric, place, data
        How candidates are ranked; what decides the bucket of a labelled item, ``"label"`` or
        ``"network"``; the path that the items came from, if known.
    """

    _rollback_attributes = (
        "classes", "_code_of", "_label_of", "_fields", "_used_columns", "id_kind", "_payload_name",
    )  # fmt: skip

    def __init__(
        self,
        classes: Sequence[Label] = (),
        *,
        metric: str = "euclidean",
        place: str = "label",
        data: Path | None = None,
    ) -> None:
        super().__init__()
        self.metric, self.data = metric, data
        self.place = checked_choice("place", place, PLACES)
        self._set_classes(list(classes))
        self._fields: dict[str, int] = {}  # numbers of indexed fields

    def _set_classes(self, classes: list[Label]) -> None:
        self.classes = classes  # never modified in place: snapshots share it
        self._code_of = {label: code for code, label in enumerate(classes)}
        self._label_of = np.empty(len(classes) + 1, dtype=object)  # by code, None last
        self._label_of[:-1] = classes

    # -- the database ------------------------------------------------------------------------------

    @classmethod
    def open(cls, directory: Path, *, read_only: bool = False) -> Catalog:
        """Open the catalog of a table at its last commit; later commits are not visible."""
        database.require_table(directory)
        catalog = cls()
        path = directory.resolve() / database.DATABASE
        with database.database_errors(path):
            catalog._attach(database.connect(path, read_only=read_only), path)
            catalog.begin_reading()
        try:
            catalog.refresh()
        except BaseException:
            catalog.close()
            raise
        return catalog

    def _fill_private(self) -> None:
        self._insert("classes", list(enumerate(self.classes)))

    def _insert(self, table: str, rows: Any) -> None:
        with database.database_errors(self.path):
            database.insert(self._db, table, {"classes": 2, "items": 7}[table], rows)

    def refresh(self) -> None:
        """Read classes, settings and indexed fields from the database."""
        try:
            meta = dict(self._query("SELECT key, value FROM meta"))
            codes = self._query("SELECT code, label FROM classes ORDER BY code")
            labels = [label for _, label in codes]
            if [code for code, _ in codes] != list(range(len(codes))):
                raise ValueError("codes of classes are missing")
            if not all(isinstance(label, int | str) for label in labels):
                raise TypeError("classes must be integers or strings")
            if len(set(labels)) < len(labels):
                raise ValueError("a class is there twice")
            self.metric = checked_choice("metric", meta["metric"], METRICS)
            self.place = checked_choice("place", meta["place"], PLACES)
            self.data = None if meta["data"] is None else Path(meta["data"])
            self.id_kind = meta["ids"]
            if self.id_kind is None and self._query("SELECT 1 FROM items LIMIT 1"):
                raise ValueError("ids are of no kind")
            if self.id_kind not in (None, "int", "str"):
                raise ValueError(f"ids are of the kind {self.id_kind!r}")
            fields = self._query("SELECT field, name, path FROM fields")
            self._fields = {name: field for field, name, _ in fields}
            if len(self._fields) < len(fields) or any(p != json_path(n) for _, n, p in fields):
                raise ValueError("fields with an index are not as they must be")
            self._used_columns = frozenset(meta["kept"].split())
            if not self._used_columns <= {"names", "payload"}:
                raise ValueError(f"items are said to have {meta['kept']!r}")
            self._payload_name = meta["payload"]
            if self._payload_name is not None and not is_generation(self._payload_name):
                raise ValueError(f"the payload file is called {self._payload_name!r}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(f"{self.path} is damaged: {error!r}") from None
        self._set_classes(labels)
        self.open_payload()

    def snapshot(self) -> Catalog:
        """The catalog at its last commit, for reading; later changes are not visible."""
        assert self.path is not None
        other = Catalog(metric=self.metric, place=self.place, data=self.data)
        vars(other).update(self._attributes(), _payload_file=self._payload_file)
        with database.database_errors(self.path):
            other._attach(database.connect(self.path, check=False), self.path)
            other.begin_reading()
        return other

    def same_commit(self, other: Catalog) -> bool:
        """Whether both catalogs are of the same file, at the same commit."""
        versions = [
            (c.last_change, c._fields, c._query("SELECT * FROM generations ORDER BY 1"))
            for c in (self, other)
        ]
        files = [c._stat for c in (self, other) if c._stat is not None]
        return versions[0] == versions[1] and len(files) == 2 and os.path.samestat(*files)

    def write(self, directory: Path, generation: str, *, payload_file: bool = True) -> None:
        """Write the catalog into a new directory, for an index of this generation."""
        path = directory / database.DATABASE
        with self._lock, database.database_errors(path), self._new_database(path, generation) as db:
            for table in database.COPIED_TABLES:
                rows = self._db.execute(f"SELECT * FROM {table}")
                database.insert(db, table, len(rows.description), rows)
            if payload_file:
                self._write_payload(db, directory, generation)

    def write_rows(self, path: Path, generation: str, rows: Iterable[ItemRow]) -> None:
        """Write a database with the classes and settings of this catalog and the items in ``rows``.

        For items that do not fit into memory: ``rows`` are from :func:`item_rows`, in ascending
        order of item numbers. Raises ``ValueError`` if a text id occurs twice.
        """
        try:
            with self._new_database(path, generation) as db:
                database.insert(db, "classes", 2, enumerate(self.classes))
                database.insert(db, "items", 7, self._track_columns(rows))
                db.execute("UPDATE meta SET value = ? WHERE key = 'kept'", (self._meta()["kept"],))
                self._write_payload(db, path.parent, generation)
        except sqlite3.IntegrityError:
            with closing(sqlite3.connect(path)) as db:
                query = "SELECT id FROM items GROUP BY id HAVING count(*) > 1 LIMIT 11"
                duplicates = [item for (item,) in db.execute(query)]
            raise ValueError(f"ids has {format_ids(duplicates)} more than once") from None
        except database.ERRORS as error:
            raise database.translate_error(error, path) from error

    @contextmanager
    def _new_database(self, path: Path, generation: str) -> Iterator[sqlite3.Connection]:
        with database.new_database(path) as db:
            meta = {"format": database.FORMAT, "version": database.VERSION, **self._meta()}
            meta["payload"] = None
            db.executemany("INSERT INTO meta VALUES(?, ?)", meta.items())
            db.execute("INSERT INTO generations VALUES(?, 0)", (generation,))
            yield db

    def _meta(self) -> dict[str, str | None]:
        data = None if self.data is None else str(self.data.absolute())
        meta = {"metric": self.metric, "place": self.place, "data": data, "ids": self.id_kind}
        return {**meta, "kept": " ".join(sorted(self._used_columns)), "payload": self._payload_name}

    # -- replication and saving --------------------------------------------------------------------

    def rows_of(self, numbers: Int64s) -> list[list[Any]]:
        """Database rows of items, for :meth:`put_rows`; removed items are left out."""
        rows = self._select_rows("items.*", np.unique(numbers).tolist())
        return [list(row) for row in rows if row[0] is not None]

    def put_rows(
        self, numbers: Int64s, rows: list[list[Any]], classes: list[Label], id_kind: str | None
    ) -> None:
        """Set items to the state that :meth:`rows_of` of another catalog returned.

        ``numbers`` are all items that changed; those without a row were removed. ``classes`` are
        all classes, old and new.
        """
        n_old = len(self.classes)
        if classes[:n_old] != self.classes or len(set(classes)) < len(classes):
            raise CorruptIndexError("a change has other classes than the table")
        if not all(isinstance(label, int | str) for label in classes):
            raise CorruptIndexError("a change has classes that are no labels")
        if id_kind not in ("int", "str") or self.id_kind not in (None, id_kind):
            raise CorruptIndexError("a change has ids of another kind than the table")
        self._insert("classes", list(enumerate(classes[n_old:], n_old)))
        self._set_classes([*classes])
        self.id_kind = id_kind
        self._execute("UPDATE meta SET value = ? WHERE key = 'ids'", id_kind)
        changed = set(numbers.tolist())
        for row in rows:
            if len(row) != 7 or not self._is_sound(row) or row[0] not in changed:
                raise CorruptIndexError("a change has an item that is not as it must be")
        self._delete(numbers)
        self._insert_items(rows)

    def announce(self, generation: str) -> int:
        """Record that an index with all changes so far will be saved; the caller commits.

        If the payload file is missing, or stale for many items, it is to be rewritten for this
        generation: see :meth:`write_payload`. Items that change from here on are tracked.
        """
        last, file = self.last_change, self._payload_file
        if file is None:
            needs_payload_file = "payload" in self._used_columns
        else:
            needs_payload_file = len(file.stale) > len(file) * _STALE_FRACTION
        if needs_payload_file:
            self._payload_name = generation
            self._execute("DELETE FROM unfiled")
        self._execute("INSERT INTO generations VALUES(?, ?)", generation, last)
        for key, value in self._meta().items():
            self._execute("UPDATE meta SET value = ? WHERE key = ?", value, key)
        return last

    # -- labels ------------------------------------------------------------------------------------

    def codes(
        self, labels: object, n: int, *, name: str = "labels", known: Sequence[Label] | None = None
    ) -> Int64s:
        """Codes of ``n`` labels, int64[n]; new labels become classes.

        None, NaN and other missing values become ``NO_LABEL``; ``labels=None`` means that all are
        missing. With ``known``, labels that are neither classes nor listed there are an error.
        """
        if labels is None:
            return np.full(n, NO_LABEL, dtype=np.int64)
        plain = label_list(labels, n, name)
        new = [x for x in dict.fromkeys(plain) if x is not None and x not in self._code_of]
        if known is not None and new and (unknown := [x for x in new if x not in set(known)]):
            examples = ", ".join(map(repr, unknown[:10])) + ", ..." * (len(unknown) > 10)
            error = ValueError(f"{name} has {examples}, which the table does not have")
            raise add_hint(error, "let them become classes with new_labels=True (--new-labels)")
        if new:
            if self._connection is not None:
                self._insert("classes", list(enumerate(new, len(self.classes))))
            self._set_classes([*self.classes, *new])
        codes = (NO_LABEL if label is None else self._code_of[label] for label in plain)
        return np.fromiter(codes, dtype=np.int64, count=n)

    def labels(self, codes: Int64s) -> npt.NDArray[np.object_]:
        """Labels of codes, an object array of the same shape; None for ``NO_LABEL``."""
        try:
            return np.asarray(self._label_of[codes])  # NO_LABEL is -1: the last entry, None
        except IndexError:
            message = f"{self.path or 'the table'} has no class for a label of the index"
            raise CorruptIndexError(message) from None

    def label(self, code: int) -> Label | None:
        """Label of one code, or None."""
        return self.classes[code] if 0 <= code < len(self.classes) else None

    def label_codes_of(self, numbers: Int64s) -> Int64s:
        """Label codes of items, of the same shape; -1 for items without a label, or missing."""
        codes = self._checked_column(numbers, "label")
        return np.asarray(np.where(codes == None, NO_LABEL, codes), np.int64)  # noqa: E711

    # -- items -------------------------------------------------------------------------------------

    def put(
        self,
        codes: Int64s,
        next_number: int,
        *,
        ids: object = None,
        names: Sequence[str | None] | None = None,
        payload: object = None,
        replace: bool = False,
    ) -> Int64s:
        """Store items and return their numbers; new numbers start at ``next_number``."""
        n = len(codes)
        if names is not None and len(names) != n:
            raise ValueError(f"names has {len(names)} entries, there are {n} items")
        texts = [None] * n if payload is None else payload_texts(payload, n)
        keys: Sequence[str | None] = [None] * n
        if ids is None:
            if self.id_kind == "str" and n:
                error = ValueError("ids are missing, this table has ids of text")
                raise add_hint(error, "give an id for each item")
            if next_number + n > 2**63:
                message = f"the next free id is {next_number}, with {n} items ids would go beyond"
                message = f"{message} 2**63-1: give ids, automatic ones have run out"
                raise add_hint(ValueError(message), "give ids that are free")
            numbers = np.arange(n) + np.int64(next_number if n else 0)
        else:
            item_ids = plain_ids(ids, n)
            self._require_kind(item_ids)
            existing = self._existing(item_ids)
            if existing and not replace:
                error = ValueError(f"{format_ids(list(existing))} already in the table")
                raise add_hint(error, "remove them first, or use upsert")
            if isinstance(item_ids, list):
                keys, unused = item_ids, iter(range(next_number, next_number + n))
                assigned = (existing[key] if key in existing else next(unused) for key in item_ids)
                numbers = np.fromiter(assigned, np.int64, n)
            else:
                numbers = item_ids
            self._delete(np.fromiter(existing.values(), np.int64, len(existing)))
        if n and self.id_kind is None:
            self.id_kind = "str" if keys[0] is not None else "int"
            self._execute("UPDATE meta SET value = ? WHERE key = 'ids'", self.id_kind)
        item_names = [None if name is None else str(name) for name in names or [None] * n]
        self._mark_stale(numbers.tolist())
        self._insert_items(item_rows(numbers, keys, codes, item_names, texts))
        return numbers

    def _insert_items(self, rows: Iterable[Sequence[Any]]) -> None:
        columns = self._used_columns
        self._insert("items", self._track_columns(rows))
        if self._used_columns != columns:
            self._execute("UPDATE meta SET value = ? WHERE key = 'kept'", self._meta()["kept"])

    def fill_from(self, index: HashIndex) -> None:
        """Register the items of an index, unless this catalog already has a database."""
        if self._connection is None and len(index):
            numbers = np.unique(index.entries()[1])
            codes = index.labels_of(numbers)
            if codes.max() >= len(self.classes):
                raise ValueError(f"the index has label {codes.max()}, there is no such class")
            with self.change():
                self.put(codes, 0, ids=numbers)

    def remove(self, ids: object) -> Int64s:
        """Remove items by their ids, and return their numbers."""
        item_ids = plain_ids(ids)
        self._require_kind(item_ids)
        existing = self._existing(item_ids)
        if missing := [item for item in id_list(item_ids) if item not in existing]:
            raise ValueError(f"{format_ids(missing)} not in the table")
        numbers = np.fromiter(existing.values(), np.int64, len(existing))
        self._delete(numbers)
        return numbers

    def remove_where(self, where: object) -> Int64s:
        """Remove items by a filter, and return their numbers."""
        numbers = self.where(where)
        self._delete(numbers)
        return numbers

    def _delete(self, numbers: Int64s) -> None:
        if len(numbers):
            self._mark_stale(numbers.tolist())
            self._execute(f"DELETE FROM items WHERE number {IN_LIST}", json.dumps(numbers.tolist()))

    # -- filters -----------------------------------------------------------------------------------

    def where(self, where: object = None) -> Int64s:
        """Numbers of the items that match a filter, ascending; None: of all items."""
        return self.filter({} if where is None else where).ids

    def filter(self, where: object, cancel: Cancel | None = None) -> Filter:
        """The same as a filter for searches; the last few are cached until the next change."""
        names = Names(self.classes, self.id_kind == "str", self._fields)
        sql, values = compile_where(where, names)
        key = (sql, *values)
        result = self._filters.get(key)
        if result is None:
            with database.stoppable(cancel):
                rows = self._query(f"SELECT number FROM items WHERE {sql} ORDER BY number", *values)
            numbers = np.fromiter((number for (number,) in rows), np.int64, len(rows))
            numbers.flags.writeable = False
            result = Filter(numbers)
            recent = list(self._filters.items())[1 - _CACHED_FILTERS :]
            self._filters = dict([*recent, (key, result)])  # replaced: other threads may read it
        return result

    def index_field(self, name: str) -> None:
        """Create an index of a payload field, so that filters on it are fast."""
        path = json_path(name)
        if name in ("label", "id", "name"):
            raise ValueError(f"{name!r} is not a field of the payload, and needs no index")
        if name in self._fields:
            return
        field = 1 + max(self._fields.values(), default=0)
        self._execute("INSERT INTO fields VALUES(?, ?, ?)", field, name, path)
        values = database.FIELD_VALUES.format("items")
        self._execute(f"INSERT INTO field_values {values}, items WHERE field = ?", field)
        self._fields = {**self._fields, name: field}

    def verify(self, index: HashIndex) -> None:
        """Read everything, and raise ``CorruptIndexError`` if the database is damaged."""
        problems = [text for (text,) in self._query("PRAGMA integrity_check") if text != "ok"]
        ((page_size,),) = self._query("PRAGMA page_size")
        if self.path is not None and self.path.stat().st_size % page_size:
            problems.append(f"its length is not a multiple of {page_size}")
        codes: dict[int, int] = {}
        rows = self._execute("SELECT * FROM items ORDER BY number")
        with database.database_errors(self.path):
            while part := rows.fetchmany(_CHUNK):
                for row in part:
                    if not self._is_sound(row):
                        raise self._damaged(row[0])
                    codes[row[0]] = NO_LABEL if row[2] is None else row[2]
        for kind, column in (("names", "name"), ("payload", "payload")):
            query = f"SELECT 1 FROM items WHERE {column} IS NOT NULL LIMIT 1"
            if kind not in self._used_columns and self._query(query):
                problems.append(f"an item has {kind}, and none is said to have")
        for left, right in ((_STORED_VALUES, _EXPECTED_VALUES), (_EXPECTED_VALUES, _STORED_VALUES)):
            if self._query(f"SELECT * FROM ({left}) EXCEPT SELECT * FROM ({right}) LIMIT 1"):
                problems.append("an index of a field does not have the values of the payload")
                break
        if self._payload_file is not None:
            with database.database_errors(self.path):
                problems += self._payload_file.problems(self._payload_rows(self._db))
        numbers = np.fromiter(codes, np.int64, len(codes))
        if len(numbers) != len(index) or not index.contains(numbers).all():
            problems.append(f"its {len(numbers)} items are not the {len(index)} of the index")
        elif index.has_labels and index.labels_of(numbers).tolist() != list(codes.values()):
            problems.append("its labels are not those of the index")
        if problems:
            raise CorruptIndexError("\n".join(f"{self.path}: {problem}" for problem in problems))

    def _is_sound(self, row: Any) -> bool:
        """Whether the checksums and the values of an item are valid."""
        number, key, label, name, crc, payload, crc_of_payload = row
        if (crc, crc_of_payload) != (row_crc(*row[:4]), payload_crc(number, payload)):
            return False
        try:
            content = None if payload is None else json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return (
            is_row(key, label, name)
            and (key is None) == (self.id_kind != "str")
            and (label is None or label < len(self.classes))
            and isinstance(content, dict | None)
        )
