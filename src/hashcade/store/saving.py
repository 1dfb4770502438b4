"""A table whose index is saved in the background, while searches and changes continue.

The database has every committed change; the index on disk may lack the last ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hashcade.errors import StorageError
from hashcade.index import HashIndex, new_generation, read_generation
from hashcade.store.catalog import Catalog
from hashcade.store.database import require_table
from hashcade.store.state import State, foreign_files, load_state
from hashcade.store.transactions import INDEX_DIR

log = logging.getLogger("hashcade.store")

_RETRY_SECONDS = 5.0  # after a save that failed


class ReadOnlyError(StorageError):
    """The table is open read-only."""


class SavedIndex:
    """Index and catalog of a table, and how the index is saved."""

    def __init__(
        self, path: Path, *, read_only: bool, fold_bytes: int, fold_seconds: float,
        keep_after: int | None,
    ) -> None:  # fmt: skip
        require_table(path)
        self.path = path.resolve()
        self.fold_bytes, self.fold_seconds = fold_bytes, fold_seconds
        self.keep_after = keep_after
        self.unsaved = 0  # changes that the index on disk lacks
        self.n_folds = 0  # how often the index was saved
        self.n_failed_folds = 0
        self.save_failure: str | None = None  # why the last attempt failed
        self.epoch = 0  # how often another index was loaded
        self._index_path = self.path / INDEX_DIR
        self._commit = threading.Lock()  # lock: held to change the state or the database
        self._fold_lock = threading.Lock()
        self._first_change: float | None = None
        self._unsaved_bytes = 0  # of changes since the last save
        self._wal_bytes = 0  # of changes since the last checkpoint
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._catalog: Catalog | None = None  # for writing; None: read-only
        if read_only:
            self.state, _ = load_state(self.path, read_only=True)
        else:
            self._open()

    def _open(self) -> None:
        """Load the table, and save the index if it lacks changes."""
        catalog = Catalog.open(self.path)
        try:
            catalog.lock()  # before it is read: no other writer from here on
            state, self.unsaved = load_state(self.path)
            for other in foreign_files(self.path):
                log.warning("%s is not a part of the table; it is left alone", ascii(str(other)))
            state.catalog.close()
            catalog.rollback()
            catalog.refresh()
            self._catalog, self.state = catalog, State(state.index, catalog.snapshot())
            if self.unsaved:
                log.info("the index gets %d changes", self.unsaved)
                self.fold()
        except BaseException:
            catalog.close()
            raise

    @property
    def index(self) -> HashIndex:
        """The current index."""
        return self.state.index

    @property
    def _writer(self) -> Catalog:
        if self._catalog is None:
            raise ReadOnlyError("this table is open for reading alone")
        return self._catalog

    @property
    def failure(self) -> str | None:
        """Why changes are no longer accepted or saved; None if they are."""
        if self._catalog is None:
            return None
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead and not self._closing.is_set():
            return f"the thread {dead[0]} has ended; restart the service"
        return self._catalog.broken

    def lives_in(self, directory: Path) -> bool:
        """Whether this is the table in a directory."""
        return self.path == directory.resolve()

    def save(self) -> None:
        """Save the index now."""
        self.fold()

    def fold(self) -> bool:
        """Save the index; False if there was nothing to save."""
        self._writer  # noqa: B018  raises if read-only
        try:
            saved = self._fold()
        except BaseException as error:
            self.save_failure = str(error) or type(error).__name__
            self.n_failed_folds += 1
            raise
        self.save_failure = None
        return saved

    def _fold(self) -> bool:
        catalog = self._writer
        with self._fold_lock:
            with self._commit:
                if self.unsaved == 0:
                    return False
                index, n_saved, n_bytes = self.index.copy(), self.unsaved, self._unsaved_bytes
                # Committed to the database before the index is saved under it.
                generation = new_generation()
                with catalog.transaction():
                    last = catalog.announce(generation)
                snapshot = catalog.snapshot()
                self._first_change = None
            try:
                with closing(snapshot):
                    snapshot.write_payload(generation)
                index.save(self._index_path, generation=generation, lock_held=True)
            except BaseException:
                self._first_change = self._first_change or time.monotonic()
                raise
            finally:
                with self._commit:
                    self.index.adopt_storage(index)
            with self._commit:
                with catalog.transaction():
                    last_to_drop = last if self.keep_after is None else min(last, self.keep_after)
                    catalog.forget_changes(generation, last_to_drop)
                catalog.open_payload()
                self.unsaved -= n_saved
                self._unsaved_bytes -= n_bytes
                self._checkpoint()
                self.n_folds += 1
            return True

    def _fold_loop(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(min(max(self.fold_seconds / 2, 0.01), 1.0))
            self._wake.clear()
            oldest = self._first_change
            is_due = oldest is not None and time.monotonic() - oldest >= self.fold_seconds
            if (is_due or self._unsaved_bytes > self.fold_bytes) and not self._closing.is_set():
                try:
                    self.fold()
                except Exception as error:  # the database has all changes: retry later
                    log_error("the index could not be saved", error)
                    self._closing.wait(_RETRY_SECONDS)

    def reload(self, accept: Callable[[State], None] = lambda state: None) -> bool:
        """Load the last commit from the directory, if it is newer; False if there is none.

        For a read-only table. ``accept`` is called with the new state before it is published; if
        it raises, the old state stays. A table open for changes only checks that its directory was
        not replaced.
        """
        with self._fold_lock, self._commit:
            if self._catalog is None:
                state, _ = load_state(self.path, read_only=True)
                if state.catalog.same_commit(self.state.catalog):
                    state.catalog.close()
                    return False
                accept(state)
                self.state = state
                self.epoch += 1
                return True
            self._catalog.check_place()
            if not self.index.is_stored_as(read_generation(self._index_path)):
                raise StorageError(
                    f"{self._index_path} was replaced, {self.unsaved} changes were not saved",
                    hint="put the old index back",
                )
            return False

    def _checkpoint(self) -> None:
        """Checkpoint the WAL of SQLite, which restarts once there is no reader left.

        The published state reads from it, until it is replaced here.
        """
        self._writer.checkpoint()
        self.state = State(self.index, self._writer.snapshot())
        self._wal_bytes = 0

    def create_index(self, field: str) -> None:
        """Create an index of a payload field."""
        catalog = self._writer
        with self._commit:
            with catalog.transaction(), catalog.change():
                catalog.index_field(field)
            self.state = State(self.index, catalog.snapshot())

    def _save_at_end(self) -> None:
        try:
            self.fold()
        except Exception as error:  # the changes are applied at the next start
            log_error(f"the index was not saved, it lacks {self.unsaved} changes", error)
            return
        if self.failure is None:
            log.info("every change is saved")
        else:
            log.error("not every change may be saved: %s", self.failure)


def log_error(message: str, error: BaseException) -> None:
    """Log an error, with a traceback unless it is a ``StorageError``: others are bugs."""
    log.error("%s: %s", message, error, exc_info=None if isinstance(error, StorageError) else error)
