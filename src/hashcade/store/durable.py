"""A table that is open for changes which are on disk before they are acknowledged.

A change goes this way: the writer thread takes all that are waiting, stores what belongs to their
items, tries them on a copy of the index, commits once for all, publishes the copy, and only then
tells the callers. A change that was acknowledged survives any kind of stop; no search ever sees
one that could still be lost. From time to time the index is saved, while searches and changes go
on. Each state that is published reads the database as of its own commit.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from hashcade.errors import StorageError
from hashcade.index import HashIndex, new_generation, read_generation
from hashcade.store.catalog import Catalog
from hashcade.store.changes import (
    Add,
    Answer,
    Change,
    Key,
    NewItems,
    Prepare,
    apply_changes,
    removal,
)
from hashcade.store.database import require_table
from hashcade.store.state import State, foreign_files, load_state
from hashcade.store.transactions import INDEX_DIR

log = logging.getLogger("hashcade.store")

_GROUP = 256  # changes that are committed together at most
_RETRY_SECONDS = 5.0  # after a save that failed
_CHECKPOINT_BYTES = 4 << 20  # of changes, until the log of SQLite is emptied


class ReadOnlyError(StorageError):
    """The table is open for reading alone."""


class BusyError(StorageError):
    """Too many changes are waiting."""


class _Waiting(NamedTuple):
    """A change that somebody waits for."""

    prepare: Prepare
    future: Future[Any]
    key: Key | None = None


class DurableIndex:
    """Index and catalog of a table, open for searches and for changes that last.

    Parameters
    ----------
    path
        Directory of the table.
    read_only
        Changes are refused, and nothing is written.
    fold_bytes, fold_seconds
        The index is saved when its changes are this long, or the first of them this old.
    max_waiting
        Changes that may wait; more are refused with ``BusyError``.
    keep_after
        Changes with larger numbers stay in the log when the index has them: others follow it.

    Searches take ``state`` once, and see nothing of later changes.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        fold_bytes: int = 64 << 20,
        fold_seconds: float = 60.0,
        max_waiting: int = 1024,
        keep_after: int | None = None,
    ) -> None:
        require_table(path)
        self.path = path.resolve()
        self.fold_bytes, self.fold_seconds = fold_bytes, fold_seconds
        self.keep_after = keep_after
        self.unsaved = 0  # changes that are not yet in the index on disk
        self.n_folds = 0  # how often the index was saved
        self.n_failed_folds = 0
        self.save_failure: str | None = None  # why the last try to save failed
        self.epoch = 0  # how often another index was taken over
        self.on_commit: Callable[[float, int], None] = lambda seconds, n_changes: None
        self._index_path = self.path / INDEX_DIR
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(max_waiting)
        self._commit = threading.Lock()  # held to change the state or the database
        self._folding = threading.Lock()
        self._first_change: float | None = None
        self._bytes = self._bytes_in_log = 0  # of changes since the last save, and checkpoint
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._catalog: Catalog | None = None  # the one that is written
        if read_only:
            self.state, _ = load_state(self.path, read_only=True)
            return
        self._open()
        for name, run in (("writer", self._write), ("folder", self._fold_at_times)):
            thread = threading.Thread(target=run, name=f"hashcade-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _open(self) -> None:
        """Load the table, and save the changes that the index lacks."""
        catalog = Catalog.open(self.path)
        try:
            catalog.lock()  # before it is read: nobody writes from here on
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
        """The index as it is now."""
        return self.state.index

    @property
    def _writer(self) -> Catalog:
        if self._catalog is None:
            raise ReadOnlyError("this table is open for reading alone")
        return self._catalog

    # -- changing ----------------------------------------------------------------------------------

    def add(
        self, items: NewItems, *, key: Key | None = None, epoch: int | None = None
    ) -> Future[Any]:
        """Add items. The future gives the change when they are on disk and can be found.

        With ``key`` it gives an :class:`Answer`: if a request with this key was answered before,
        that one, and nothing is added. With ``epoch`` items are refused if another model or index
        was taken over since: their buckets may be those of another model.
        """

        def prepare(state: State, free: int) -> Change:
            if epoch is not None and epoch != self.epoch:
                raise StorageError("the table was replaced meanwhile", hint="ask again")
            return items(state, free)

        return self.submit(prepare, key)

    def remove(self, ids: object = None, *, where: object = None) -> Future[Change]:
        """Remove items. The future gives the change when it is on disk."""
        return self.submit(removal(ids, where))

    def change(self, prepare: Prepare) -> Change:
        """Make a change, and return when it is on disk."""
        change: Change = self.submit(prepare).result()
        return change

    def submit(self, prepare: Prepare, key: Key | None = None) -> Future[Any]:
        """Make a change, as a whole or not at all."""
        self._writer  # noqa: B018  raises unless it can be written
        if self._closing.is_set():
            raise BusyError("the table is being closed")
        if not self._threads[0].is_alive():
            raise StorageError(f"no changes are taken: {self.failure}")
        future: Future[Any] = Future()
        try:
            self._queue.put_nowait(_Waiting(prepare, future, key))
        except queue.Full:
            raise BusyError(f"{self._queue.maxsize} changes are waiting already") from None
        return future

    def _write(self) -> None:
        """Commit what is waiting, group by group, until None comes."""
        group: list[_Waiting | None] = []
        while None not in group:
            group = [self._queue.get()]
            while len(group) < _GROUP and group[-1] is not None and not self._queue.empty():
                group.append(self._queue.get_nowait())  # nobody else takes from the queue
            running = [w for w in group if w and w.future.set_running_or_notify_cancel()]
            try:
                self._commit_group(running)
            except BaseException as error:  # whatever it is, nobody waits in vain
                _log_error("changes were not made", error)
                for waiting in running:
                    if not waiting.future.done():
                        waiting.future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

    def _commit_group(self, group: list[_Waiting]) -> None:
        start, catalog = time.perf_counter(), self._writer
        done: list[tuple[_Waiting, Change]] = []
        answers: list[tuple[_Waiting, Answer]] = []  # to those with keys
        alone: list[_Waiting] = []  # of which it must be found out which one does not fit
        later: list[_Waiting] = []  # with a key of another one in this group
        keys: set[str] = set()
        with self._commit:
            index = self.index.copy()
            catalog.begin()
            try:
                n_bytes, free = 0, index.next_id
                for waiting in group:
                    key = waiting.key
                    if key is not None and key.text in keys:
                        later.append(waiting)
                        continue
                    try:
                        if key is not None and (answer := catalog.answer_to(key)) is not None:
                            answers.append((waiting, answer))
                            continue
                        with catalog.change():
                            change = waiting.prepare(State(index, catalog), free)
                            n_bytes += catalog.log(change)
                    except Exception as error:
                        if not catalog.in_transaction:  # not of this change alone
                            raise
                        waiting.future.set_exception(error)
                    else:
                        done.append((waiting, change))
                        keys |= {key.text} if key is not None else set()
                        if isinstance(change, Add):
                            free = max(free, int(change.numbers.max(initial=-1)) + 1)
                alone = _fitting(index, done) if done else []
                if done and not alone:
                    for waiting, change in done:
                        if waiting.key is not None:
                            ids = catalog.ids_of(change.numbers).tolist()
                            answers.append((waiting, Answer(ids, len(index))))
                            catalog.remember(waiting.key, answers[-1][1])
                    catalog.commit()
            finally:
                catalog.rollback()
            if done and not alone:
                self.state = State(index, catalog.snapshot())
                self.unsaved += len(done)
                self._bytes += n_bytes
                self._bytes_in_log += n_bytes
                self._first_change = self._first_change or time.monotonic()
                if self._bytes_in_log > _CHECKPOINT_BYTES:
                    self._checkpoint()
                if self._bytes > self.fold_bytes:
                    self._wake.set()
        if done and not alone:
            try:
                self.on_commit(time.perf_counter() - start, len(done))
            except Exception:  # a number less in the metrics; the changes are made
                log.exception("a commit was not counted")
            for waiting, change in done:
                if waiting.key is None:
                    waiting.future.set_result(change)
        for waiting, answer in answers:
            waiting.future.set_result(answer)
        for waiting in (*alone, *later):
            try:
                self._commit_group([waiting])
            except Exception as error:
                waiting.future.set_exception(error)

    def _checkpoint(self) -> None:
        """Empty the log of SQLite: it begins again when nobody reads from it any more.

        The state that is published reads from it, until the second time.
        """
        self._writer.checkpoint()
        self.state = State(self.index, self._writer.snapshot())
        self._bytes_in_log = 0

    def create_index(self, field: str) -> None:
        """Keep an index of a field of the payload."""
        catalog = self._writer
        with self._commit:
            catalog.begin()
            try:
                with catalog.change():
                    catalog.index_field(field)
                catalog.commit()
            finally:
                catalog.rollback()
            self.state = State(self.index, catalog.snapshot())

    # -- saving ------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """Why changes are not taken or not saved any more, if so."""
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
        self._writer  # noqa: B018  raises unless it can be written
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
        with self._folding:
            with self._commit:
                if self.unsaved == 0:
                    return False
                saved, n_saved, n_bytes = self.index.copy(), self.unsaved, self._bytes
                # The database knows the name before it is that of the index on disk.
                following = new_generation()
                catalog.begin()
                try:
                    last = catalog.announce(following)
                    catalog.commit()
                finally:
                    catalog.rollback()
                announced = catalog.snapshot()
                self._first_change = None
            try:
                with closing(announced):
                    announced.write_payload(following)
                saved.save(self._index_path, generation=following, lock_held=True)
            except BaseException:
                self._first_change = self._first_change or time.monotonic()
                raise
            finally:
                with self._commit:
                    self.index.adopt_storage(saved)
            with self._commit:
                catalog.begin()
                try:
                    kept = last if self.keep_after is None else min(last, self.keep_after)
                    catalog.forget_changes(following, kept)
                    catalog.commit()
                finally:
                    catalog.rollback()
                catalog.open_payload()
                self.unsaved -= n_saved
                self._bytes -= n_bytes
                self._checkpoint()
                self.n_folds += 1
            return True

    def _fold_at_times(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(min(max(self.fold_seconds / 2, 0.01), 1.0))
            self._wake.clear()
            since = self._first_change
            old = since is not None and time.monotonic() - since >= self.fold_seconds
            if (old or self._bytes > self.fold_bytes) and not self._closing.is_set():
                try:
                    self.fold()
                except Exception as error:  # the database has everything; it is tried again
                    _log_error("the index could not be saved", error)
                    self._closing.wait(_RETRY_SECONDS)

    def reload(self, accept: Callable[[State], None] = lambda state: None) -> bool:
        """Take over what stands in the directory now, if it is not this state.

        For reading alone: what others have saved or acknowledged there. ``accept`` is called with
        the new state before it is published; what it raises keeps the old one. False if there is
        nothing new. One that is open for changes only looks whether the directory is still its own.
        """
        with self._folding, self._commit:
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

    def close(self, seconds: float | None = None) -> None:
        """Commit what is waiting, save, and release the directory.

        After ``seconds`` it is left as it is, for a process that ends: what was acknowledged is in
        the database, and is applied at the next start.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        if self._catalog is None:
            return
        end = None if seconds is None else time.monotonic() + seconds
        if self._threads[0].is_alive():
            self._queue.put(None)
        saver = threading.Thread(target=self._save_at_end, name="hashcade-saver", daemon=True)
        for thread in (*self._threads, saver):
            if thread is saver:
                saver.start()
            thread.join(None if end is None else max(end - time.monotonic(), 0.0))
            if thread.is_alive():
                changes = f"{self.unsaved} changes are applied at the next start"
                log.warning("stopped before the index was saved: %s", changes)
                return
        while not self._queue.empty():  # what came between the last group and the end
            waiting = self._queue.get_nowait()
            if waiting is not None and waiting.future.set_running_or_notify_cancel():
                waiting.future.set_exception(BusyError("the table is being closed"))
        self._catalog.close()

    def _save_at_end(self) -> None:
        try:
            self.fold()
        except Exception as error:  # nothing is lost: the changes are applied at the next start
            _log_error(f"the index was not saved, it lacks {self.unsaved} changes", error)
            return
        if self.failure is None:
            log.info("every change is saved")
        else:
            log.error("not every change may be saved: %s", self.failure)


def _fitting(index: HashIndex, done: list[tuple[_Waiting, Change]]) -> list[_Waiting]:
    """Apply changes to an index; if that fails for several, for want of memory, return them."""
    try:
        apply_changes(index, [change for _, change in done])
    except Exception:
        if len(done) == 1:
            raise
        return [waiting for waiting, _ in done]
    return []


def _log_error(what: str, error: BaseException) -> None:
    expected = isinstance(error, StorageError)  # others are bugs: show where
    log.error("%s: %s", what, error, exc_info=None if expected else error)
