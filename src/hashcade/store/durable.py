"""A table that is open for changes which are on disk before they are acknowledged.

A change goes this way: the writer thread takes all that are waiting, stores what belongs to their
items, tries them on a copy of the index, commits once for all, publishes the copy, and only then
tells the callers. A change that was acknowledged survives any kind of stop; no search ever sees
one that could still be lost. Each state that is published reads the database as of its own commit.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from hashcade.errors import StorageError
from hashcade.index import HashIndex
from hashcade.store.changes import Add, Answer, Change, Key, Prepare, Remove, apply_changes
from hashcade.store.ids import Label
from hashcade.store.saving import SavedIndex, log_error
from hashcade.store.state import State

log = logging.getLogger("hashcade.store")

_GROUP = 256  # changes that are committed together at most
_CHECKPOINT_BYTES = 4 << 20  # of changes, until the log of SQLite is emptied


class BusyError(StorageError):
    """Too many changes are waiting."""


class _Waiting(NamedTuple):
    """A change that somebody waits for."""

    prepare: Prepare
    future: Future[Any]
    key: Key | None = None


@dataclass(frozen=True, eq=False)
class NewItems:
    """Items to add, or to put in the place of others, as a change prepares them.

    ``known`` are labels that may become classes; None: any may.
    """

    bucket_ids: npt.ArrayLike
    vectors: npt.ArrayLike
    ids: Any = None
    labels: Any = None
    names: Sequence[str | None] | None = None
    payload: Any = None
    known: Sequence[Label] | None = None
    replace: bool = False

    def __call__(self, state: State, next_number: int) -> Add:
        """Check the items and store what belongs to them, within a change of the catalog."""
        index, catalog = state.index, state.catalog
        items = index.checked_items(self.bucket_ids, self.vectors, next_id=0)
        n = len(items.ids)
        codes = catalog.codes(self.labels, n, known=self.known)
        if self.labels is not None and not index.has_labels:
            raise ValueError("labels were given, the index has no labels")
        numbers = catalog.put(
            codes, next_number,
            ids=self.ids, names=self.names, payload=self.payload, replace=self.replace,
        )  # fmt: skip
        labels = codes if index.has_labels else None
        return Add(numbers, items.bucket_ids, items.vectors, labels)


def removal(ids: object = None, where: object = None) -> Prepare:
    """A change that removes items, by their ids or by a filter."""
    if (ids is None) == (where is None):
        raise ValueError("one of ids and where says what to remove")

    def prepare(state: State, next_number: int) -> Remove:
        catalog = state.catalog
        if where is None:
            return Remove(catalog.remove(ids))
        removed = catalog.ids_of(catalog.where(where))  # while they are there
        return Remove(catalog.remove_where(where), removed)

    return prepare


class DurableIndex(SavedIndex):
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
        super().__init__(
            path, read_only=read_only, fold_bytes=fold_bytes, fold_seconds=fold_seconds,
            keep_after=keep_after,
        )  # fmt: skip
        self.on_commit: Callable[[float, int], None] = lambda seconds, n_changes: None
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(max_waiting)
        if read_only:
            return
        for name, run in (("writer", self._write), ("folder", self._fold_at_times)):
            thread = threading.Thread(target=run, name=f"hashcade-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

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
                log_error("changes were not made", error)
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


def _fitting(index: HashIndex, done: list[tuple[_Waiting, Change]]) -> list[_Waiting]:
    """Apply changes to an index; if that fails for several, for want of memory, return them."""
    try:
        apply_changes(index, [change for _, change in done])
    except Exception:
        if len(done) == 1:
            raise
        return [waiting for waiting, _ in done]
    return []
