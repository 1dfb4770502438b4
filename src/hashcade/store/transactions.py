"""The connection to the database of a table, and what is committed there or dropped."""

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
    """A database, of a directory or a private one, with one transaction at a time."""

    _restored: tuple[str, ...] = ()  # attributes that are as before if nothing is committed

    def __init__(self) -> None:
        self.path: Path | None = None  # of the database; None: a private one
        self.broken: str | None = None  # why nothing can be written any more
        # A thread that waits within SQLite would keep the interpreter's lock, which the look at
        # the flag that stops a statement needs: both would wait for ever.
        self._lock: AbstractContextManager[Any] = threading.RLock()
        self._filters: dict[Any, Filter] = {}  # answers of the last ones, until a change
        self._writer_lock: weakref.finalize[Any, Any] | None = None  # ends it when called
        self._stat: os.stat_result | None = None
        self._connection: sqlite3.Connection | None = None
        self._before: dict[str, Any] | None = None  # what is restored without a commit

    def _begin_private(self) -> None:
        """Store in a new private database what is known without one."""

    def _use(self, db: sqlite3.Connection, path: Path | None) -> None:
        self._connection, self.path = db, path
        self._stat = None if path is None else path.stat()
        self._close = weakref.finalize(self, db.close)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            self._use(database.connect(None), None)
            self._begin_private()
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

    def close(self) -> None:
        """Close the database; what was not committed is dropped."""
        if self._connection is not None:
            self._close()
        self.unlock()

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
        return {name: getattr(self, name) for name in self._restored}

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
