"""The catalog: ids, labels, names and payload of items. An index holds numbers alone."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade._io import storage_errors, take_writer_lock
from hashcade._validate import checked_choice
from hashcade.errors import CorruptIndexError, StorageError, add_hint
from hashcade.index import METRICS, NO_LABEL, Cancel, Filter, HashIndex
from hashcade.store import database
from hashcade.store.changes import Answer, Change, Key, from_record, to_records
from hashcade.store.ids import Int64s, Label, listed_ids, named_ids, plain_ids, plain_list
from hashcade.store.payload import payload_texts
from hashcade.store.payload_file import (
    PayloadFile,
    file_path,
    is_generation,
    remove_others,
    write_payload,
)
from hashcade.store.rows import ItemRow, is_row, item_rows, payload_crc, row_crc
from hashcade.store.where import Names, compile_where, json_path

MODEL_DIR, INDEX_DIR = "model", "index"
PLACES = ("label", "network")
_CACHED_FILTERS = 8
_CHUNK = 10_000  # rows that are checked at a time
_ASKED = 50  # items that are read at a time: SQLite is slower with a list of more
_STALE_PART = 0.25  # of the items in the payload file, until it is written anew
KEPT_ANSWERS, KEPT_SECONDS = 10_000, 86_400  # as many, and as long, as requests may be repeated

Ids = npt.NDArray[np.int64] | npt.NDArray[np.object_]
_AMONG = "IN (SELECT value FROM json_each(?))"
_KEPT = "SELECT field, kind, value, number FROM field_values"  # of fields with an index
_MADE = f"{database.FIELD_VALUES.format('items')}, items"  # what they must be


class Catalog:
    """What belongs to the items of a table, in a database of its own or in that of a directory.

    Parameters
    ----------
    classes
        Labels in the order of their codes: code ``c`` in the index stands for ``classes[c]``.
    metric, place, data
        How candidates are ranked; where items with a label go, by ``"label"`` or by ``"network"``;
        where the items came from, if it is known.
    """

    def __init__(
        self,
        classes: Sequence[Label] = (),
        *,
        metric: str = "euclidean",
        place: str = "label",
        data: Path | None = None,
    ) -> None:
        self.metric, self.data = metric, data
        self.place = checked_choice("place", place, PLACES)
        self.id_kind: str | None = None  # "int" or "str", from the first items on
        self.path: Path | None = None  # of the database; None: a private one
        self.broken: str | None = None  # why nothing can be written any more
        self._set_classes(list(classes))
        self._fields: dict[str, int] = {}  # with an index
        self._payload_name: str | None = None  # generation of the payload file
        self._payload_file: PayloadFile | None = None
        self._has_payload = False  # whether some was stored since this was opened
        self._lock: AbstractContextManager[Any] = threading.RLock()
        self._filters: dict[Any, Filter] = {}  # answers of the last ones
        self._writer_lock: weakref.finalize[Any, Any] | None = None  # ends it when called
        self._stat: os.stat_result | None = None
        self._connection: sqlite3.Connection | None = None
        self._before: dict[str, Any] | None = None  # what is restored without a commit

    def _set_classes(self, classes: list[Label]) -> None:
        self.classes = classes  # replaced, never changed: copies share it
        self._code_of = {label: code for code, label in enumerate(classes)}
        self._label_of = np.empty(len(classes) + 1, dtype=object)  # by code, None last
        self._label_of[:-1] = classes

    # -- the database ------------------------------------------------------------------------------

    @classmethod
    def open(cls, directory: Path, *, read_only: bool = False) -> Catalog:
        """Open the catalog of a table as it is now: later commits of others do not show."""
        database.require_table(directory)
        catalog = cls()
        path = directory.resolve() / database.DATABASE
        with database.database_errors(path):
            catalog._use(database.connect(path, read_only=read_only), path)
            catalog.begin_reading()
        try:
            catalog.refresh()
        except BaseException:
            catalog.close()
            raise
        return catalog

    def _use(self, db: sqlite3.Connection, path: Path | None) -> None:
        self._connection, self.path = db, path
        self._stat = None if path is None else path.stat()
        self._close = weakref.finalize(self, db.close)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            self._use(database.connect(None), None)
            self._insert("classes", list(enumerate(self.classes)))
        assert self._connection is not None
        return self._connection

    def _run(self, sql: str, *values: Any) -> sqlite3.Cursor:
        with database.database_errors(self.path):
            return self._db.execute(sql, values)

    def _all(self, sql: str, *values: Any) -> list[Any]:
        try:  # as database_errors does, in less time
            with self._lock:
                return self._db.execute(sql, values).fetchall()
        except database.ERRORS as error:
            raise database.translated(error, self.path) from error

    def _insert(self, table: str, rows: Any) -> None:
        with database.database_errors(self.path):
            database.insert(self._db, table, {"classes": 2, "items": 7}[table], rows)

    def refresh(self) -> None:
        """Take classes, settings and fields from the database."""
        try:
            meta = dict(self._all("SELECT key, value FROM meta"))
            codes = self._all("SELECT code, label FROM classes ORDER BY code")
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
            if self.id_kind is None and self._all("SELECT 1 FROM items LIMIT 1"):
                raise ValueError("ids are of no kind")
            if self.id_kind not in (None, "int", "str"):
                raise ValueError(f"ids are of the kind {self.id_kind!r}")
            fields = self._all("SELECT field, name, path FROM fields")
            self._fields = {name: field for field, name, _ in fields}
            if len(self._fields) < len(fields) or any(p != json_path(n) for _, n, p in fields):
                raise ValueError("fields with an index are not as they must be")
            self._payload_name = meta["payload"]
            if self._payload_name is not None and not is_generation(self._payload_name):
                raise ValueError(f"the payload file is called {self._payload_name!r}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptIndexError(f"{self.path} is damaged: {error!r}") from None
        self._set_classes(labels)
        self.open_payload()

    def snapshot(self) -> Catalog:
        """The catalog as it was committed last, for reading, whatever is changed later."""
        assert self.path is not None
        other = Catalog(metric=self.metric, place=self.place, data=self.data)
        other.classes, other._code_of = self.classes, self._code_of
        other._label_of, other._fields = self._label_of, self._fields
        other.id_kind, other._lock = self.id_kind, nullcontext()
        other._payload_name, other._payload_file = self._payload_name, self._payload_file
        with database.database_errors(self.path):
            other._use(database.connect(self.path, check=False), self.path)
            other.begin_reading()
        return other

    def same_commit(self, other: Catalog) -> bool:
        """Whether two catalogs of directories show the same."""
        one, two = (
            (c.last_change, c._fields, c._all("SELECT * FROM generations ORDER BY 1"))
            for c in (self, other)
        )
        files = [c._stat for c in (self, other) if c._stat is not None]
        return one == two and len(files) == 2 and os.path.samestat(*files)

    def write(self, directory: Path, generation: str, *, payload_file: bool = True) -> None:
        """Write all of it into a new directory, for an index of this generation."""
        path = directory / database.DATABASE
        with self._lock, database.database_errors(path), self._new(path, generation) as db:
            for table in database.COPIED:
                rows = self._db.execute(f"SELECT * FROM {table}")
                database.insert(db, table, len(rows.description), rows)
            if payload_file:
                self._write_payload(db, directory, generation)

    def write_rows(self, path: Path, generation: str, rows: Iterable[ItemRow]) -> None:
        """Write a database with the classes and settings of this catalog and other items.

        For items that nobody has in memory at once: ``rows`` from :func:`item_rows`, in ascending
        order of their numbers. An id of text that is there twice is a ``ValueError``.
        """
        try:
            with self._new(path, generation) as db:
                database.insert(db, "classes", 2, enumerate(self.classes))
                database.insert(db, "items", 7, rows)
                self._write_payload(db, path.parent, generation)
        except sqlite3.IntegrityError:
            with closing(sqlite3.connect(path)) as db:
                query = "SELECT id FROM items GROUP BY id HAVING count(*) > 1 LIMIT 11"
                again = [item for (item,) in db.execute(query)]
            raise ValueError(f"ids has {named_ids(again)} more than once") from None
        except database.ERRORS as error:
            raise database.translated(error, path) from error

    @contextmanager
    def _new(self, path: Path, generation: str) -> Iterator[sqlite3.Connection]:
        with database.new_database(path) as db:
            meta = {"format": database.FORMAT, "version": database.VERSION, **self._meta()}
            meta["payload"] = None
            db.executemany("INSERT INTO meta VALUES(?, ?)", meta.items())
            db.execute("INSERT INTO generations VALUES(?, 0)", (generation,))
            yield db

    def _meta(self) -> dict[str, str | None]:
        data = None if self.data is None else str(self.data.absolute())
        meta = {"metric": self.metric, "place": self.place, "data": data, "ids": self.id_kind}
        return {**meta, "payload": self._payload_name}

    def close(self) -> None:
        """Close the database; what was not committed is dropped."""
        if self._connection is not None:
            self._close()
        self.unlock()

    # -- transactions ------------------------------------------------------------------------------

    def begin_reading(self) -> None:
        """See the last commit from now on, and none that follows."""
        self._run("BEGIN")
        self._all("SELECT 1 FROM meta LIMIT 1")

    def lock(self) -> None:
        """Keep other writers away, or raise ``IndexLockedError``."""
        if self.path is not None and self._writer_lock is None:
            with storage_errors(f"cannot write {self.path.parent}"):
                handle = take_writer_lock(self.path.parent / INDEX_DIR)
                self._writer_lock = weakref.finalize(self, os.close, handle)

    def unlock(self) -> None:
        """Let other writers in."""
        if self._writer_lock is not None:
            self._writer_lock()
            self._writer_lock = None

    def begin(self) -> None:
        """Begin to write, unless somebody else did, or has written since this was read."""
        self.check_place()
        if self.path is None:
            return
        held = self._writer_lock is not None
        self.lock()
        try:
            self._run("DELETE FROM changes WHERE 0" if self.in_transaction else "BEGIN IMMEDIATE")
            self._before = self._before or self._memory()
        except BaseException:
            if not held:
                self.unlock()
            raise

    @property
    def in_transaction(self) -> bool:
        """Whether there is something to commit, or one commit that is read."""
        return self._db.in_transaction

    def commit(self) -> None:
        """Bring everything to the disk. After an error it is unknown what is there."""
        try:
            self._run("COMMIT")
            self._before = None
            self.check_place()  # what is on a disk and cannot be reached there is lost
        except StorageError as error:
            cause = error.__cause__
            if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise  # surely nothing was committed
            if self.broken is None:
                self.broken = f"writing {self.path} failed: {cause or error}"
            raise StorageError(
                f"it is unknown whether the change was made: {self.broken}",
                hint="open the table again, and look before you repeat the change",
            ) from cause

    def rollback(self) -> None:
        """Drop what was not committed, if there is anything."""
        if self.in_transaction:
            self._run("ROLLBACK")
        if self._before is not None:
            vars(self).update(self._before)
            self._before, self._filters = None, {}

    def _memory(self) -> dict[str, Any]:
        names = ("classes", "_code_of", "_label_of", "_fields", "id_kind", "_payload_name")
        return {name: getattr(self, name) for name in names}

    @contextmanager
    def change(self) -> Iterator[None]:
        """A change as a whole: if it fails, everything is as before."""
        with self._lock:
            before = self._memory()
            self._run("SAVEPOINT change")
            try:
                yield
                self._run("RELEASE change")
            except BaseException:
                vars(self).update(before)
                if self.in_transaction:  # else SQLite has dropped all that was not committed
                    self._run("ROLLBACK TO change")
                    self._run("RELEASE change")
                raise
            finally:
                self._filters = {}

    def check_place(self) -> None:
        """Refuse to write to a table that somebody moved, or put another one in its place."""
        if self.broken is None and self.path is not None:
            try:
                same = self._stat is None or os.path.samestat(self._stat, self.path.stat())
            except OSError:
                same = False
            if not same:
                self.broken = f"{self.path.parent} was moved or removed by another program"
        if self.broken is not None:
            raise StorageError(f"no changes are taken: {self.broken}")

    def checkpoint(self) -> None:
        """Bring what the log of SQLite has into the file."""
        self._all("PRAGMA wal_checkpoint(PASSIVE)")

    # -- changes that the index on disk does not have ----------------------------------------------

    def log(self, change: Change) -> int:
        """Keep a change until the index is saved, and return its length."""
        records = list(to_records(change)) if self.path is not None else []
        for record in records:
            self._run("INSERT INTO changes(body) VALUES(?)", record)
        return sum(map(len, records))

    @property
    def last_change(self) -> int:
        """Number of the last change that was ever made."""
        rows = self._all("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
        last = rows[0][0] if rows else 0
        if not isinstance(last, int):
            raise CorruptIndexError(f"{self.path} is damaged: the number of its last change")
        return last

    def changes_after(self, generation: str) -> list[Change] | None:
        """Changes that an index of this generation does not have; None: it is unknown here."""
        rows = self._all("SELECT seq FROM generations WHERE generation = ?", generation)
        if not rows:
            return None
        bodies = self._all("SELECT body FROM changes WHERE seq > ? ORDER BY seq", rows[0][0])
        return [from_record(body) for (body,) in bodies]

    def records_after(self, last: int) -> list[tuple[int, bytes]]:
        """Numbers and records of the changes after number ``last`` that are in the log."""
        return self._all("SELECT seq, body FROM changes WHERE seq > ? ORDER BY seq", last)

    @property
    def lineage(self) -> str | None:
        """What those that follow the changes of this table know it by; None: nobody does."""
        rows = self._all("SELECT value FROM meta WHERE key = 'lineage'")
        return str(rows[0][0]) if rows else None

    def set_lineage(self, lineage: str) -> None:
        """Give the table a name for those that follow its changes; to be committed."""
        self._run("INSERT INTO meta VALUES('lineage', ?)", lineage)

    def rows_of(self, numbers: Int64s) -> list[list[Any]]:
        """All that is stored of items, for :meth:`put_rows`; those that are gone are left out."""
        rows = self._rows("items.*", np.unique(numbers).tolist())
        return [list(row) for row in rows if row[0] is not None]

    def put_rows(
        self, numbers: Int64s, rows: list[list[Any]], classes: list[Label], id_kind: str | None
    ) -> None:
        """Bring items to the state in which :meth:`rows_of` of another catalog had them.

        ``numbers`` are all that changed: those without a row are gone. ``classes`` are all.
        """
        known = len(self.classes)
        if classes[:known] != self.classes or len(set(classes)) < len(classes):
            raise CorruptIndexError("a change has other classes than the table")
        if not all(isinstance(label, int | str) for label in classes):
            raise CorruptIndexError("a change has classes that are no labels")
        if id_kind not in ("int", "str") or self.id_kind not in (None, id_kind):
            raise CorruptIndexError("a change has ids of another kind than the table")
        self._insert("classes", list(enumerate(classes[known:], known)))
        self._set_classes([*classes])
        self.id_kind = id_kind
        self._run("UPDATE meta SET value = ? WHERE key = 'ids'", id_kind)
        listed = set(numbers.tolist())
        for row in rows:
            checks = len(row) == 7 and (row_crc(*row[:4]), payload_crc(row[0], row[5]))
            if checks != (row[4], row[6]) or row[0] not in listed or not self._is_sound(row):
                raise CorruptIndexError("a change has an item that is not as it must be")
        self._delete(numbers)
        self._has_payload |= any(row[5] is not None for row in rows)
        self._insert("items", rows)

    def announce(self, generation: str) -> int:
        """Say that an index with all changes up to now is about to be saved; to be committed.

        If the payload file is missing, or of many items out of date, one of this generation is to
        follow: :meth:`write_payload`. All items that change from here on are noted.
        """
        last, file = self.last_change, self._payload_file
        if file is None:
            is_due = self._has_payload or self._payload_name is not None
        else:
            is_due = len(file.stale) > len(file) * _STALE_PART
        if is_due:
            self._payload_name = generation
            self._run("DELETE FROM unfiled")
        self._run("INSERT INTO generations VALUES(?, ?)", generation, last)
        for key, value in self._meta().items():
            self._run("UPDATE meta SET value = ? WHERE key = ?", value, key)
        return last

    def forget_changes(self, generation: str, last: int) -> None:
        """Drop what an index that was saved has; to be committed."""
        self._run("DELETE FROM changes WHERE seq <= ?", last)
        self._run("DELETE FROM generations WHERE generation != ?", generation)

    # -- the payload file --------------------------------------------------------------------------

    def write_payload(self) -> None:
        """Write the payload file that was announced, by a catalog that shows this very commit."""
        assert self.path is not None
        directory, name = self.path.parent, self._payload_name
        if name is not None and not file_path(directory, name).exists():
            with database.database_errors(self.path):
                write_payload(directory, name, self._payload_rows(self._db))
            remove_others(directory, name)

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

    def _note_changed(self, numbers: list[int]) -> None:
        """Have items read from the database from now on; to be called within a change."""
        if self._payload_file is not None:
            self._payload_file.stale.update(numbers)
        if self._payload_name is not None:
            rows = ((number, row_crc(number, None, None, None)) for number in numbers)
            with database.database_errors(self.path):
                self._db.executemany("INSERT OR IGNORE INTO unfiled VALUES(?, ?)", rows)

    # -- answers to requests that may come again ---------------------------------------------------

    def answer_to(self, key: Key) -> Answer | None:
        """What was answered to a request, if it was made before.

        Raises ``ValueError`` if its key was that of another request.
        """
        query = "SELECT digest, ids, n_items, crc FROM answers WHERE key = ?"
        for digest, ids, n_items, crc in self._all(query, key.text):
            if crc != row_crc(n_items, key.text, digest, ids):
                raise CorruptIndexError(f"{self.path} is damaged: an answer has a wrong checksum")
            if digest != key.digest:
                raise ValueError(f"the key {key.text!r} was used for another request")
            try:
                listed = [each for each in json.loads(ids) if isinstance(each, int | str)]
            except (TypeError, ValueError, RecursionError):
                raise CorruptIndexError(f"{self.path} is damaged: an answer has no ids") from None
            return Answer(listed, n_items)
        return None

    def remember(self, key: Key, answer: Answer) -> None:
        """Keep an answer for a day, until many more have come; to be committed."""
        ids, now = json.dumps(answer.ids, ensure_ascii=False), int(time.time())
        crc = row_crc(answer.n_items, key.text, key.digest, ids)
        insert = (
            "INSERT INTO answers(key, digest, ids, n_items, time, crc) VALUES(?, ?, ?, ?, ?, ?)"
        )
        self._run(insert, key.text, key.digest, ids, answer.n_items, now, crc)
        last = f"(SELECT max(seq) - {KEPT_ANSWERS} FROM answers)"
        old = f"SELECT seq FROM answers WHERE time < ? ORDER BY seq LIMIT {_ASKED}"
        self._run(f"DELETE FROM answers WHERE seq <= {last}")
        self._run(f"DELETE FROM answers WHERE seq IN ({old})", now - KEPT_SECONDS)

    # -- labels ------------------------------------------------------------------------------------

    def codes(
        self, labels: object, n: int, *, name: str = "labels", known: Sequence[Label] | None = None
    ) -> Int64s:
        """Codes of ``n`` labels, int64[n]; labels that are new become classes.

        None, NaN and other marks of a missing value become ``NO_LABEL``; ``labels=None`` means
        that all are missing. With ``known`` labels that are neither classes nor among these are an
        error.
        """
        if labels is None:
            return np.full(n, NO_LABEL, dtype=np.int64)
        plain = plain_list(labels, n, name)
        new = [x for x in dict.fromkeys(plain) if x is not None and x not in self._code_of]
        if known is not None and new and (unknown := [x for x in new if x not in set(known)]):
            listed = ", ".join(map(repr, unknown[:10])) + ", ..." * (len(unknown) > 10)
            error = ValueError(f"{name} has {listed}, which the table does not have")
            raise add_hint(error, "let them become classes with new_labels=True (--new-labels)")
        if new:
            if self._connection is not None:
                self._insert("classes", list(enumerate(new, len(self.classes))))
            self._set_classes([*self.classes, *new])
        codes = (NO_LABEL if label is None else self._code_of[label] for label in plain)
        return np.fromiter(codes, dtype=np.int64, count=n)

    def labels(self, codes: Int64s) -> npt.NDArray[np.object_]:
        """Labels of codes, an array of objects of the same shape; None where there is none."""
        try:
            return np.asarray(self._label_of[codes])  # NO_LABEL is -1: the last entry, None
        except IndexError:
            message = f"{self.path or 'the table'} has no class for a label of the index"
            raise CorruptIndexError(message) from None

    def label(self, code: int) -> Label | None:
        """Label of one code."""
        return self.classes[code] if 0 <= code < len(self.classes) else None

    def label_codes_of(self, numbers: Int64s) -> Int64s:
        """Codes of the labels of items, of the same shape; -1 for none, and for no item."""
        codes = self._described(numbers, "label")
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
        """Store items, and return their numbers; those without ids begin at ``next_number``."""
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
            given = plain_ids(ids, n)
            self._require_kind(given)
            present = self._present(given)
            if present and not replace:
                error = ValueError(f"{named_ids(list(present))} already in the table")
                raise add_hint(error, "remove them first, or use upsert")
            if isinstance(given, list):
                keys, free = given, iter(range(next_number, next_number + n))
                taken = (present[key] if key in present else next(free) for key in given)
                numbers = np.fromiter(taken, np.int64, n)
            else:
                numbers = given
            self._delete(np.fromiter(present.values(), np.int64, len(present)))
        if n and self.id_kind is None:
            self.id_kind = "str" if keys[0] is not None else "int"
            self._run("UPDATE meta SET value = ? WHERE key = 'ids'", self.id_kind)
        called = [None if name is None else str(name) for name in names or [None] * n]
        self._note_changed(numbers.tolist())
        self._has_payload |= payload is not None
        self._insert("items", item_rows(numbers, keys, codes, called, texts))
        return numbers

    def fill_from(self, index: HashIndex) -> None:
        """Take the items of an index, if nothing was ever stored here."""
        if self._connection is None and len(index):
            numbers = np.unique(index.entries()[1])
            codes = index.labels_of(numbers)
            if codes.max() >= len(self.classes):
                raise ValueError(f"the index has label {codes.max()}, there is no such class")
            with self.change():
                self.put(codes, 0, ids=numbers)

    def remove(self, ids: object) -> Int64s:
        """Remove items by their ids, and return their numbers."""
        given = plain_ids(ids)
        self._require_kind(given)
        present = self._present(given)
        if missing := [item for item in listed_ids(given) if item not in present]:
            raise ValueError(f"{named_ids(missing)} not in the table")
        numbers = np.fromiter(present.values(), np.int64, len(present))
        self._delete(numbers)
        return numbers

    def remove_where(self, where: object) -> Int64s:
        """Remove items by a filter, and return their numbers."""
        numbers = self.where(where)
        self._delete(numbers)
        return numbers

    def _delete(self, numbers: Int64s) -> None:
        if len(numbers):
            self._note_changed(numbers.tolist())
            self._run(f"DELETE FROM items WHERE number {_AMONG}", json.dumps(numbers.tolist()))

    def _require_kind(self, ids: Int64s | list[str]) -> None:
        kind = "str" if isinstance(ids, list) else "int"
        if len(ids) and self.id_kind not in (None, kind):
            words = {"str": "text", "int": "integers"}
            raise ValueError(f"ids are {words[kind]}, those of the table are {words[self.id_kind]}")

    def _present(self, ids: Int64s | list[str]) -> dict[Any, int]:
        """Numbers of those ids that are in the table, in their order."""
        listed = listed_ids(ids)
        column = "id" if isinstance(ids, list) else "number"
        query = f"SELECT {column}, number FROM items WHERE {column} {_AMONG}"
        found = dict(self._all(query, json.dumps(listed, ensure_ascii=False)))
        return {item: found[item] for item in listed if item in found}

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
        return self._described(numbers, "name")

    def name_of(self, item_id: object) -> str | None:
        """Name of the item with this id, or None."""
        number = self.number_of(item_id)
        name: str | None = None if number is None else self.names_of(np.array([number]))[0]
        return name

    @property
    def has_names(self) -> bool:
        """Whether an item has a name."""
        return bool(self._all("SELECT 1 FROM items WHERE name IS NOT NULL LIMIT 1"))

    def payload_of(self, numbers: Int64s) -> npt.NDArray[np.object_]:
        """Payload of items, an array of objects of the same shape; None where there is none."""
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

    # -- filters -----------------------------------------------------------------------------------

    def where(self, where: object = None) -> Int64s:
        """Numbers of the items that a filter lets through, ascending; None: of all."""
        return self.filter({} if where is None else where).ids

    def filter(self, where: object, cancel: Cancel | None = None) -> Filter:
        """The same for a search; the last ones are kept until the next change."""
        names = Names(self.classes, self.id_kind == "str", self._fields)
        sql, values = compile_where(where, names)
        key = (sql, *values)
        found = self._filters.get(key)
        if found is None:
            with database.stoppable(cancel):
                rows = self._all(f"SELECT number FROM items WHERE {sql} ORDER BY number", *values)
            numbers = np.fromiter((number for (number,) in rows), np.int64, len(rows))
            numbers.flags.writeable = False
            found = Filter(numbers)
            last = list(self._filters.items())[1 - _CACHED_FILTERS :]
            self._filters = dict([*last, (key, found)])  # replaced: other threads may read it
        return found

    def index_field(self, name: str) -> None:
        """Keep an index of a field of the payload from now on, so that filters on it are fast."""
        path = json_path(name)
        if name in ("label", "id", "name"):
            raise ValueError(f"{name!r} is not a field of the payload, and needs no index")
        if name in self._fields:
            return
        field = 1 + max(self._fields.values(), default=0)
        self._run("INSERT INTO fields VALUES(?, ?, ?)", field, name, path)
        values = database.FIELD_VALUES.format("items")
        self._run(f"INSERT INTO field_values {values}, items WHERE field = ?", field)
        self._fields = {**self._fields, name: field}

    def verify(self, index: HashIndex) -> None:
        """Read everything, and raise ``CorruptIndexError`` if the database is damaged."""
        problems = [text for (text,) in self._all("PRAGMA integrity_check") if text != "ok"]
        ((page_size,),) = self._all("PRAGMA page_size")
        if self.path is not None and self.path.stat().st_size % page_size:
            problems.append(f"its length is not a multiple of {page_size}")
        codes: dict[int, int] = {}
        rows = self._run("SELECT * FROM items ORDER BY number")
        with database.database_errors(self.path):
            while part := rows.fetchmany(_CHUNK):
                for row in part:
                    checks = row_crc(*row[:4]), payload_crc(row[0], row[5])
                    if (row[4], row[6]) != checks or not self._is_sound(row):
                        raise self._damaged(row[0])
                    codes[row[0]] = NO_LABEL if row[2] is None else row[2]
        for one, other in ((_KEPT, _MADE), (_MADE, _KEPT)):
            if self._all(f"SELECT * FROM ({one}) EXCEPT SELECT * FROM ({other}) LIMIT 1"):
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
        """Whether the values of an item are what they must be, with right checksums or not."""
        _, key, label, name, _, payload, _ = row
        try:
            kept = None if payload is None else json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return (
            is_row(key, label, name)
            and (key is None) == (self.id_kind != "str")
            and (label is None or label < len(self.classes))
            and isinstance(kept, dict | None)
        )


@lru_cache
def _select(columns: str, n: int) -> str:
    """A query for so many numbers: its rows are in their order."""
    given = ", ".join(["(?)"] * n)
    return f"SELECT {columns} FROM (VALUES {given}) LEFT JOIN items ON number = column1"


def _objects(values: list[Any], numbers: Int64s) -> npt.NDArray[np.object_]:
    return np.fromiter(values, object, numbers.size).reshape(numbers.shape)
