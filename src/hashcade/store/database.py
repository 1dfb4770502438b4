"""``items.db``: an SQLite database with the metadata of the items of a table.

::

    items         number in the index, id (null: the number is the id), code of the label, name
                  and a checksum of these; payload, and its checksum
    classes       the label behind each code
    meta          format, version, metric, place, data, kind of ids, name of the payload file
    unfiled       numbers of the items that changed since that file was written, with checksums
    changes       changes that the index on disk lacks, oldest first
    generations   for each generation of the index, the last change that it has
    answers       answers to requests that may be retried, by idempotency key
    fields, field_values   indexed fields of the payload, kept up to date by triggers

A new generation is committed here before the index is saved, and its changes are dropped after.
So the index on disk can be brought up to date at any time, and a foreign index is detected.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hashcade._io import distrust_database, restore_directory
from hashcade.errors import (
    Cancelled,
    CorruptIndexError,
    HashcadeError,
    IncompatibleFormatError,
    IndexLockedError,
    StorageError,
)
from hashcade.index import Cancel

DATABASE = "items.db"
FORMAT, VERSION = "hashcade-table", "1"

_KIND = """CASE COALESCE(json_type({0}.payload, path), 'null') WHEN 'null' THEN 0
WHEN 'true' THEN 1 WHEN 'false' THEN 1 WHEN 'integer' THEN 2 WHEN 'real' THEN 2
WHEN 'text' THEN 3 ELSE 4 END"""
_VALUE = """CASE WHEN json_type({0}.payload, path) IN ('true', 'false', 'integer', 'real', 'text')
THEN json_extract({0}.payload, path) ELSE 0 END"""
FIELD_VALUES = f"SELECT field, {_KIND}, {_VALUE}, {{0}}.number FROM fields"
SCHEMA = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
    "CREATE TABLE classes(code INTEGER PRIMARY KEY, label)",
    "CREATE TABLE items(number INTEGER PRIMARY KEY, id TEXT, label INTEGER, name TEXT,"
    " crc INTEGER, payload TEXT, payload_crc INTEGER)",
    "CREATE UNIQUE INDEX item_ids ON items(id) WHERE id IS NOT NULL",
    "CREATE INDEX item_labels ON items(label)",
    "CREATE TABLE changes(seq INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB)",
    "CREATE TABLE generations(generation TEXT PRIMARY KEY, seq INTEGER) WITHOUT ROWID",
    "CREATE TABLE unfiled(number INTEGER PRIMARY KEY, crc INTEGER)",
    "CREATE TABLE answers(seq INTEGER PRIMARY KEY, key TEXT UNIQUE, digest TEXT, ids TEXT,"
    " n_items INTEGER, time INTEGER, crc INTEGER)",
    "CREATE TABLE fields(field INTEGER PRIMARY KEY, name TEXT, path TEXT)",
    "CREATE TABLE field_values(field INTEGER, kind INTEGER, value, number INTEGER,"
    " PRIMARY KEY(field, kind, value, number)) WITHOUT ROWID",
    "CREATE TRIGGER item_added AFTER INSERT ON items BEGIN"
    f" INSERT INTO field_values {FIELD_VALUES.format('new')}; END",
    "CREATE TRIGGER item_removed AFTER DELETE ON items BEGIN"
    " DELETE FROM field_values WHERE (field, kind, value, number) IN"
    f" ({FIELD_VALUES.format('old')}); END",
)
COPIED_TABLES = ("classes", "fields", "items")
_ROWS_PER_INSERT = 128  # a call per row would take longer than SQLite itself

_SEQUENCE = ("table", "sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)")
ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the second: names in a damaged file
_BUSY_SECONDS = 10.0  # while another process recovers or removes the WAL
_MMAP = 1 << 31
_CANCEL_CHECK_STEPS = 100_000  # virtual machine steps, some milliseconds

_thread = threading.local()  # .cancel: stops the statements of this thread


def connect(
    path: Path | None, *, read_only: bool = False, check: bool = True
) -> sqlite3.Connection:
    """Open a database, or with None a private one that lives as long as its connection.

    The connection is in autocommit mode and may be used by any thread.
    """
    if path is None:
        db = _connect("")
        create(db)
        return db
    if check:
        _require_regular(path)
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    wal = path.with_name(f"{path.name}-wal")
    if not os.access(path.parent, os.W_OK) and not wal.exists():
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"  # read-only media
    db = _connect(uri)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA mmap_size = {_MMAP}")
        if check:
            _check_schema(db, path)
            _trust(db)
    except BaseException:
        db.close()
        raise
    return db


def create(db: sqlite3.Connection) -> None:
    """Create the schema in an empty database."""
    for statement in SCHEMA:
        db.execute(statement)
    _trust(db)


def _trust(db: sqlite3.Connection) -> None:
    """Let triggers call JSON functions; only after the schema was checked."""
    db.execute("PRAGMA trusted_schema = ON")


@contextmanager
def new_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Create a database file in a directory that is not visible yet; flushed to disk at the end.

    Yields it with empty tables. Indexes and triggers are created afterwards: sorting all rows
    once is faster than inserting them one by one.
    """
    db = _connect(f"{path.absolute().as_uri()}?mode=rwc")
    try:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        tables = [sql for sql in SCHEMA if sql.startswith("CREATE TABLE")]
        for sql in tables:
            db.execute(sql)
        yield db
        db.execute("COMMIT")
        db.execute("BEGIN")
        db.execute(f"INSERT INTO field_values {FIELD_VALUES.format('items')}, items")
        for sql in SCHEMA:
            if sql not in tables:
                db.execute(sql)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")
    finally:
        db.close()
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def insert(db: sqlite3.Connection, table: str, n_columns: int, rows: Iterable[Any]) -> None:
    """Insert rows with values for all columns of a table."""
    placeholders = f"({', '.join('?' * n_columns)})"
    values = chain.from_iterable(rows)
    many = f"INSERT INTO {table} VALUES {', '.join([placeholders] * _ROWS_PER_INSERT)}"
    n_values = _ROWS_PER_INSERT * n_columns
    while len(chunk := list(islice(values, n_values))) == n_values:
        db.execute(many, chunk)
    remainder = (chunk[start : start + n_columns] for start in range(0, len(chunk), n_columns))
    db.executemany(f"INSERT INTO {table} VALUES {placeholders}", remainder)


def _connect(uri: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS
    )
    try:
        db.set_progress_handler(_is_cancelled, _CANCEL_CHECK_STEPS)
        distrust_database(db)
        db.execute("PRAGMA cache_size = -32768")
    except BaseException:
        db.close()
        raise
    return db


def _require_regular(path: Path) -> None:
    """Refuse a database, or its WAL, that is a link, a pipe or a device.

    SQLite writes to these files: a link in an untrusted table could lead to any other file.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        try:
            mode = os.lstat(file).st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            raise StorageError(f"{file} must be a regular file, and not a link")


@contextmanager
def stoppable(cancel: Cancel | None) -> Iterator[None]:
    """Stop statements of this thread with ``Cancelled`` when ``cancel`` is set."""
    previous = getattr(_thread, "cancel", None)
    _thread.cancel = cancel
    try:
        yield
    finally:
        _thread.cancel = previous


def _is_cancelled() -> bool:
    cancel = getattr(_thread, "cancel", None)
    return cancel is not None and cancel.is_set()


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Refuse any other schema: triggers or views of an untrusted file could do anything."""
    rows = db.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    tables = [row for row in rows if row != _SEQUENCE]
    if _schema_entry(SCHEMA[0]) in tables:
        query = "SELECT value FROM meta WHERE key IN ('format', 'version') ORDER BY key"
        stored = tuple(value for (value,) in db.execute(query))
        if stored != (FORMAT, VERSION):
            raise IncompatibleFormatError(
                f"{path} has format and version {stored}, this package reads {(FORMAT, VERSION)}"
            )
    if sorted(map(repr, tables)) != sorted(repr(_schema_entry(sql)) for sql in SCHEMA):
        raise IncompatibleFormatError(f"{path} is not the database of a hashcade table")


def _schema_entry(sql: str) -> tuple[str, str, str]:
    """A statement as ``sqlite_schema`` lists it: kind, name, text."""
    kind, name = sql.removeprefix("CREATE ").removeprefix("UNIQUE ").split("(")[0].split()[:2]
    return kind.lower(), name, sql


@contextmanager
def database_errors(path: Path | None) -> Iterator[None]:
    """Turn errors of SQLite into those of this package."""
    try:
        yield
    except ERRORS as error:
        raise translate_error(error, path) from error


def translate_error(error: Exception, path: Path | None) -> HashcadeError:
    """An error of SQLite as one of this package."""
    location, text = path or "the table", str(error)
    if isinstance(error, UnicodeDecodeError):
        return CorruptIndexError(f"{location} is damaged: it has names that are not text")
    code = getattr(error, "sqlite_errorcode", None)
    kind = None if code is None else code & 0xFF
    if kind == sqlite3.SQLITE_INTERRUPT:
        return Cancelled("stopped while the items were looked up")
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StorageError(
            f"{location} was changed since it was loaded: load it again, and repeat the change",
            hint="load it again, and repeat the change",
        )
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return IndexLockedError(f"{location} is held by another writer", hint="try again")
    if "closed database" in text:
        return StorageError("the table is closed", hint="load it again")
    is_damaged = kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "JSON" in text
    # Not UTF-8, or a schema that cannot be parsed.
    is_malformed = isinstance(error, sqlite3.OperationalError) and kind in (
        None,
        sqlite3.SQLITE_ERROR,
    )
    if is_damaged or is_malformed:
        return CorruptIndexError(f"{location} is damaged: {text}")
    hints = {
        sqlite3.SQLITE_FULL: "free some space, or write elsewhere",
        sqlite3.SQLITE_READONLY: "choose a path that you may write to",
    }
    hint = None if kind is None else hints.get(kind)
    return StorageError(f"cannot use {location}: {text}", hint=hint)


def refuse_foreign(directory: Path) -> None:
    """Raise ``StorageError`` if the path has anything but a table or an empty directory."""
    if not os.path.lexists(directory) or (directory.is_dir() and not any(directory.iterdir())):
        return
    try:
        require_table(directory)
    except StorageError:
        raise StorageError(
            f"{directory} exists and is not a hashcade table", hint="choose another path"
        ) from None


def require_table(directory: Path) -> None:
    """Raise ``StorageError`` unless the directory has a table."""
    restore_directory(directory)
    if not (directory / DATABASE).is_file():
        raise StorageError(
            f"{directory} is not a hashcade table: {DATABASE} is missing",
            hint="make a table with: hashcade fit DATA -o TABLE",
        )
