"""Index and catalog of a table, open for changes that are on disk before they are acknowledged.

A change goes this way: the writer thread takes all that are waiting, tries them on a copy of the
index, writes new classes to the catalog, writes the changes that fit to the change log as one
frame, waits for the disk once, publishes the copy, and only then tells the callers. A change that
was acknowledged survives any kind of stop; no search ever sees one that could still be lost.
From time to time the index is saved and a new log begun, while searches and changes go on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hashcade.errors import StorageError
from hashcade.index import HashIndex, checked_ids, new_generation, read_generation
from hashcade.store.catalog import INDEX_DIR, Catalog, require_table
from hashcade.store.change_log import FOLDER, Add, Change, ChangeLog, Remove
from hashcade.store.state import State, apply_changes, load_state

log = logging.getLogger("hashcade.store")

_GROUP = 256  # changes that are committed together at most
_RETRY_SECONDS = 5.0  # after a save that failed


class ReadOnlyError(Exception):
    """The table is open for reading alone."""


class BusyError(Exception):
    """Too many changes are waiting."""


class _Waiting(NamedTuple):
    """A change that somebody waits for. ``prepare`` checks it; the int is the first free id."""

    prepare: Callable[[State, int], Change]
    future: Future[npt.NDArray[np.int64]]


class DurableIndex:
    """Index and catalog of a table, open for searches and for changes that last.

    Parameters
    ----------
    path
        Directory of the table.
    read_only
        Changes are refused and nothing is written; a change log is applied in memory.
    fold_bytes, fold_seconds
        The index is saved when the log is this long, or its first change this old.
    max_waiting
        Changes that may wait; more are refused with ``BusyError``.

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
    ) -> None:
        require_table(path)
        self.path = path.resolve()
        self.fold_bytes, self.fold_seconds = fold_bytes, fold_seconds
        self.unsaved = 0  # changes that are in the log and not yet in the index on disk
        self.n_folds = 0  # how often the index was saved
        self.epoch = 0  # how often another index was taken over
        self.on_commit: Callable[[float, int], None] = lambda seconds, n_changes: None
        self._index_path = self.path / INDEX_DIR
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(max_waiting)
        self._commit = threading.Lock()  # held to change the state or to begin a log file
        self._folding = threading.Lock()
        self._first_change: float | None = None
        self._names_changed = False
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._log: ChangeLog | None = None
        if read_only:
            self.state, self._position = load_state(self.path)
            return
        self._log = ChangeLog(self._index_path)
        try:
            self._open(self._log)
        except BaseException:
            self._log.close()
            raise
        for name, run in (("writer", self._write), ("folder", self._fold_at_times)):
            thread = threading.Thread(target=run, name=f"hashcade-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _open(self, change_log: ChangeLog) -> None:
        """Load the index, apply and save what the log has, and begin a new log file."""
        self.state = State(HashIndex.load(self._index_path), Catalog.read(self.path))
        generation = _generation(self.index)
        changes = change_log.replay(generation)
        if not changes:
            change_log.drop_before(change_log.begin(generation))
            return
        apply_changes(self.index, self.state.catalog, changes)
        self.unsaved, self._names_changed = len(changes), True
        self.fold()
        log.info("applied %d changes of the log", len(changes))

    @property
    def index(self) -> HashIndex:
        """The index as it is now."""
        return self.state.index

    # -- changing ----------------------------------------------------------------------------------

    def add(
        self,
        bucket_ids: npt.ArrayLike,
        vectors: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        labels: object = None,
        *,
        epoch: int | None = None,
    ) -> Future[npt.NDArray[np.int64]]:
        """Add items. The future gives their ids when they are on disk and can be found.

        Labels are those of the user; new ones become classes of the catalog. With ``epoch`` the
        items are refused if another index was taken over since: their buckets may be those of
        another model.
        """

        def prepare(state: State, next_id: int) -> Change:
            if epoch is not None and epoch != self.epoch:
                raise StorageError("the table was replaced meanwhile", hint="ask again")
            items = state.index.checked_items(bucket_ids, vectors, ids, next_id=next_id)
            codes = None
            if state.index.has_labels:
                codes = state.catalog.codes(labels, len(items.ids))
            elif labels is not None:
                raise ValueError("labels were given, the index has no labels")
            return Add(items.ids, items.bucket_ids, items.vectors, codes)

        return self._submit(prepare)

    def remove(self, ids: npt.ArrayLike) -> Future[npt.NDArray[np.int64]]:
        """Remove items. The future gives their ids when the removal is on disk."""
        return self._submit(lambda state, next_id: Remove(checked_ids("ids", ids)))

    def _submit(self, prepare: Callable[[State, int], Change]) -> Future[npt.NDArray[np.int64]]:
        if self._log is None:
            raise ReadOnlyError("this table is served for reading alone")
        if self._closing.is_set():
            raise BusyError("the service is stopping")
        if not self._threads[0].is_alive():
            raise StorageError(f"no changes are taken: {self.failure}")
        future: Future[npt.NDArray[np.int64]] = Future()
        try:
            self._queue.put_nowait(_Waiting(prepare, future))
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
        assert self._log is not None
        with self._commit:
            trial = State(self.index.copy(), self.state.catalog.copy())
            done = _apply_group(trial, group)
            if not done:
                return
            start = time.perf_counter()
            if len(trial.catalog.classes) > len(self.state.catalog.classes):
                trial.catalog.write(self.path, names=False)
            self._log.append([change for _, change in done])
            seconds = time.perf_counter() - start
            for _, change in done:
                if isinstance(change, Add):
                    self._names_changed |= trial.catalog.forget_names(change.ids.tolist())
            self.state = trial
            self.unsaved += len(done)
            self._first_change = self._first_change or time.monotonic()
            if self._log.size > self.fold_bytes:
                self._wake.set()
        try:
            self.on_commit(seconds, len(done))
        except Exception:  # a number less in the metrics; the changes are made
            log.exception("a commit was not counted")
        for waiting, change in done:
            waiting.future.set_result(change.ids)

    # -- saving ------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """Why changes are not taken or not saved any more, if so."""
        if self._log is None:
            return None
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead and not self._closing.is_set():
            return f"the thread {dead[0]} has ended; restart the service"
        return self._log.broken

    def fold(self) -> bool:
        """Save the index and begin a new log; False if there was nothing to save."""
        if self._log is None:
            raise ReadOnlyError("this table is served for reading alone")
        with self._folding:
            with self._commit:
                if self.unsaved == 0:
                    return False
                saved, n_saved = self.index.copy(), self.unsaved
                # The log knows the name before it is that of the index on disk.
                following = new_generation()
                number = self._log.begin(_generation(saved), following)
                if self._names_changed:
                    self.state.catalog.write(self.path)
                    self._names_changed = False
                self._first_change = None
            try:
                saved.save(self._index_path, generation=following, lock_held=True)
            except BaseException:
                self._first_change = self._first_change or time.monotonic()
                raise
            finally:
                with self._commit:
                    self.index.adopt_storage(saved)
            with self._commit:
                self.unsaved -= n_saved
                self._log.drop_before(number)
                self.n_folds += 1
            return True

    def _fold_at_times(self) -> None:
        assert self._log is not None
        while not self._closing.is_set():
            self._wake.wait(min(max(self.fold_seconds / 2, 0.01), 1.0))
            self._wake.clear()
            since = self._first_change
            old = since is not None and time.monotonic() - since >= self.fold_seconds
            if (old or self._log.size > self.fold_bytes) and not self._closing.is_set():
                try:
                    self.fold()
                except Exception as error:  # the log has everything; it is tried again
                    _log_error("the index could not be saved", error)
                    self._closing.wait(_RETRY_SECONDS)

    def reload(self, accept: Callable[[State], None] = lambda state: None) -> bool:
        """Take over what stands in the directory now, if it is not this state.

        For reading alone: what other writers have saved or acknowledged there. Else: an index
        that was copied over the one in the directory by a program that ignores the lock, which is
        an error while changes are unsaved. ``accept`` is called with the new state before it is
        published; what it raises keeps the old one. False if there is nothing new.
        """
        with self._folding, self._commit:
            generation = read_generation(self._index_path)
            if self._log is None:
                state, end = load_state(self.path)
                if end == self._position:
                    return False
                accept(state)
                self._position = end
            else:
                if self.index.is_stored_as(generation):
                    return False
                if self.unsaved:
                    folder = self._index_path / FOLDER
                    raise StorageError(
                        f"{self.path} was replaced while {self.unsaved} changes were not saved;"
                        " they are still served",
                        hint="put the old index back to keep them, or stop the service and remove"
                        f" {folder} to drop them",
                    )
                state = State(HashIndex.load(self._index_path), Catalog.read(self.path))
                accept(state)
                # What is in the old files was saved. It must be gone before a file names the new
                # index, or it would be applied to that one after a stop.
                self._log.drop_before(self._log.begin(_generation(self.index)))
                self._log.drop_before(self._log.begin(_generation(state.index)))
            self.state = state
            self.epoch += 1
            return True

    def close(self) -> None:
        """Commit what is waiting, save, and release the directory."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        if self._log is None:
            return
        if self._threads[0].is_alive():
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        try:
            self.fold()
            log.info("every change is saved")
        except Exception as error:  # nothing is lost: the log is applied at the next start
            _log_error("the index could not be saved", error)
        while not self._queue.empty():  # what came between the last group and the end
            waiting = self._queue.get_nowait()
            if waiting is not None and waiting.future.set_running_or_notify_cancel():
                waiting.future.set_exception(BusyError("the service is stopping"))
        self._log.close()


def _apply_group(trial: State, group: list[_Waiting]) -> list[tuple[_Waiting, Change]]:
    """Apply changes to a copy of the state, and return those that fit; the others are told."""
    done: list[tuple[_Waiting, Change]] = []
    additions: list[tuple[_Waiting, Add]] = []
    next_id = trial.index.next_id
    for waiting in group:
        try:
            change = waiting.prepare(trial, next_id)
            if isinstance(change, Add):
                additions.append((waiting, change))
                next_id = max(next_id, int(change.ids.max(initial=-1)) + 1)
                continue
            done += _add_items(trial.index, additions)
            additions = []
            trial.index.remove(change.ids)
            done.append((waiting, change))
        except Exception as error:  # of this change alone: the copy is as before
            waiting.future.set_exception(error)
    return done + _add_items(trial.index, additions)


def _add_items(
    index: HashIndex, additions: list[tuple[_Waiting, Add]]
) -> list[tuple[_Waiting, Change]]:
    """Add the items of many changes at once, which costs little more than those of one."""
    if not additions:
        return []
    parts = [change for _, change in additions]
    labels = [part.labels for part in parts if part.labels is not None]
    try:
        index.add(
            np.concatenate([part.bucket_ids for part in parts]),
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate(labels) if labels else None,
        )
        return list(additions)
    except Exception as error:  # an id is taken, or memory is short for all: find out whose
        if len(additions) > 1:
            return [done for addition in additions for done in _add_items(index, [addition])]
        additions[0][0].future.set_exception(error)
        return []


def _log_error(what: str, error: BaseException) -> None:
    expected = isinstance(error, StorageError)  # others are bugs: show where
    log.error("%s: %s", what, error, exc_info=None if expected else error)


def _generation(index: HashIndex) -> str:
    assert index.generation is not None
    return index.generation
