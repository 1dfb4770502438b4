"""The connection to the database of a table, and its transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hashcade._io import storage_errors, take_writer_lock
from hashcade.errors import StorageError
from hashcade.index import Filter
from hashcade.store import database

INDEX_DIR = "index"


class Transactions:
    """A database, private or of a directory, with one transaction at a time."""

    _rollback_attributes: tuple[str, ...] = ()  # restored by a rollback

    def __init__(self) -> None:
        self.path: Path | None = None  # of the database; None: private
        self.broken: str | None = None  # why changes are refused
        # Without it, a thread that waits inside SQLite would hold the GIL, which the progress
        # handler of the running statement needs: a deadlock.
        self._lock: AbstractContextManager[Any] = threading.RLock()
        self._filters: dict[Any, Filter] = {}  # cached until the next change
        self._writer_lock: weakref.finalize[Any, Any] | None = None  # calling it releases the lock
        self._stat: os.stat_result | None = None
        self._connection: sqlite3.Connection | None = None
        self._rollback_values: dict[str, Any] | None = None  # restored by a rollback

    def _fill_private(self) -> None:
        """Fill a new private database with what was set before there was one."""

    def _attach(self, db: sqlite3.Connection, path: Path | None) -> None:
        self._connection, self.path = db, path
        self._stat = None if path is None else path.stat()
        self._close = weakref.finalize(self, db.close)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            self._attach(database.connect(None), None)
            self._fill_private()
        assert self._connection is not None
        return self._connection

    def _execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        with database.database_errors(self.path):
            return self._db.execute(sql, values)

    def _query(self, sql: str, *values: Any) -> list[Any]:
        try:  # faster than database_errors
            with self._lock:
                return self._db.execute(sql, values).fetchall()
        except database.ERRORS as error:
            raise database.translate_error(error, self.path) from error

    def close(self) -> None:
        """Close the database; uncommitted changes are dropped."""
        if self._connection is not None:
            self._close()
        self.unlock()

    def begin_reading(self) -> None:
        """Start a read transaction: see the last commit, and no later one."""
        self._execute("BEGIN")
        self._query("SELECT 1 FROM meta LIMIT 1")

    def lock(self) -> None:
        """Take the writer lock, or raise ``IndexLockedError``."""
        if self.path is not None and self._writer_lock is None:
            with storage_errors(f"cannot write {self.path.parent}"):
                handle = take_writer_lock(self.path.parent / INDEX_DIR)
                self._writer_lock = weakref.finalize(self, os.close, handle)

    def unlock(self) -> None:
        """Release the writer lock."""
        if self._writer_lock is not None:
            self._writer_lock()
            self._writer_lock = None

    def begin(self) -> None:
        """Begin to write; an error if there is another writer, or was one since this was read."""
        self.check_place()
        if self.path is None:
            return
        was_locked = self._writer_lock is not None
        self.lock()
        try:
            upgrade = "DELETE FROM changes WHERE 0"  # of a read transaction
            self._execute(upgrade if self.in_transaction else "BEGIN IMMEDIATE")
            self._rollback_values = self._rollback_values or self._attributes()
        except BaseException:
            if not was_locked:
                self.unlock()
            raise

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction, for writing or reading, is open."""
        return self._db.in_transaction

    def commit(self) -> None:
        """Commit to disk. After an error it is unknown whether the change was made."""
        try:
            self._execute("COMMIT")
            self._rollback_values = None
            self.check_place()  # a commit to a file that was moved away is lost
        except StorageError as error:
            cause = error.__cause__
            if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise  # nothing was committed
            if self.broken is None:
                self.broken = f"writing {self.path} failed: {cause or error}"
            raise StorageError(
                f"it is unknown whether the change was made: {self.broken}",
                hint="open the table again, and look before you repeat the change",
            ) from cause

    def rollback(self) -> None:
        """Drop uncommitted changes, if there are any."""
        if self.in_transaction:
            self._execute("ROLLBACK")
        if self._rollback_values is not None:
            vars(self).update(self._rollback_values)
            self._rollback_values, self._filters = None, {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin to write, and commit at the end, or roll back after an error."""
        self.begin()
        try:
            yield
            self.commit()
        finally:
            self.rollback()

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._rollback_attributes}

    @contextmanager
    def change(self) -> Iterator[None]:
        """A savepoint: if the change fails, everything is restored."""
        with self._lock:
            attributes = self._attributes()
            self._execute("SAVEPOINT change")
            try:
                yield
                self._execute("RELEASE change")
            except BaseException:
                vars(self).update(attributes)
                if self.in_transaction:  # else SQLite has rolled back the whole transaction
                    self._execute("ROLLBACK TO change")
                    self._execute("RELEASE change")
                raise
            finally:
                self._filters = {}

    def check_place(self) -> None:
        """Refuse to write to a table that was moved or replaced."""
        if self.broken is None and self.path is not None:
            try:
                is_same = self._stat is None or os.path.samestat(self._stat, self.path.stat())
            except OSError:
                is_same = False
            if not is_same:
                self.broken = f"{self.path.parent} was moved or removed by another program"
        if self.broken is not None:
            raise StorageError(f"no changes are taken: {self.broken}")

    def checkpoint(self) -> None:
        """Move the WAL of SQLite into the database file, as far as no reader needs it."""
        self._query("PRAGMA wal_checkpoint(PASSIVE)")
