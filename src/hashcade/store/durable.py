"""A table whose changes are on disk before they are acknowledged, with group commit.

The writer thread takes all queued changes, stores the metadata of their items, applies them to a
copy of the index, commits once for all, publishes the copy, and only then notifies the callers. An
acknowledged change survives any crash, and no search sees a change that could still be lost. Each
published state reads the database at its own commit.
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

_GROUP = 256  # maximum number of changes per commit
_CHECKPOINT_BYTES = 4 << 20  # of changes in the WAL


class BusyError(StorageError):
    """Too many changes are waiting."""


class _Request(NamedTuple):
    """A queued change, and the future of its caller."""

    prepare: Prepare
    future: Future[Any]
    key: Key | None = None


@dataclass(frozen=True, eq=False)
class NewItems:
    """Items to add, or to replace others with.

    ``known`` are labels that may become classes; None: any label may.
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
        """Validate the items and store their metadata, within a change of the catalog."""
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
        removed_ids = catalog.ids_of(catalog.where(where))  # before they are removed
        return Remove(catalog.remove_where(where), removed_ids)

    return prepare


class DurableIndex(SavedIndex):
    """Index and catalog of a table, open for searches and for durable changes.

    Parameters
    ----------
    path
        Directory of the table.
    read_only
        Changes are refused, and nothing is written.
    fold_bytes, fold_seconds
        The index is saved when its unsaved changes have this size, or the oldest is this old.
    max_waiting
        Length of the queue of changes; beyond it they are refused with ``BusyError``.
    keep_after
        Changes with larger numbers stay in the log after the index was saved, for replicas.

    A search takes ``state`` once, and so does not see later changes.
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
        self._queue: queue.Queue[_Request | None] = queue.Queue(max_waiting)
        if read_only:
            return
        for name, run in (("writer", self._write_loop), ("folder", self._fold_loop)):
            thread = threading.Thread(target=run, name=f"hashcade-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    # -- changing ----------------------------------------------------------------------------------

    def add(
        self, items: NewItems, *, key: Key | None = None, epoch: int | None = None
    ) -> Future[Any]:
        """Add items. The future resolves to the change once they are on disk and searchable.

        With ``key`` it resolves to an :class:`Answer`: if a request with this key was answered
        before, to that one, and nothing is added. With ``epoch``, items are refused if another
        model or index was loaded since: their buckets may be those of another model.
        """

        def prepare(state: State, next_number: int) -> Change:
            if epoch is not None and epoch != self.epoch:
                raise StorageError("the table was replaced meanwhile", hint="ask again")
            return items(state, next_number)

        return self.submit(prepare, key)

    def remove(self, ids: object = None, *, where: object = None) -> Future[Change]:
        """Remove items. The future resolves to the change once it is on disk."""
        return self.submit(removal(ids, where))

    def change(self, prepare: Prepare) -> Change:
        """Make a change, and return once it is on disk."""
        change: Change = self.submit(prepare).result()
        return change

    def submit(self, prepare: Prepare, key: Key | None = None) -> Future[Any]:
        """Queue a change, which is made completely or not at all."""
        self._writer  # noqa: B018  raises if read-only
        if self._closing.is_set():
            raise BusyError("the table is being closed")
        if not self._threads[0].is_alive():
            raise StorageError(f"no changes are taken: {self.failure}")
        future: Future[Any] = Future()
        try:
            self._queue.put_nowait(_Request(prepare, future, key))
        except queue.Full:
            raise BusyError(f"{self._queue.maxsize} changes are waiting already") from None
        return future

    def _write_loop(self) -> None:
        """Commit queued changes, group by group, until None is queued."""
        group: list[_Request | None] = []
        while None not in group:
            group = [self._queue.get()]
            while len(group) < _GROUP and group[-1] is not None and not self._queue.empty():
                group.append(self._queue.get_nowait())  # the only consumer
            requests = [r for r in group if r and r.future.set_running_or_notify_cancel()]
            try:
                self._commit_group(requests)
            except BaseException as error:  # every caller gets an answer
                log_error("changes were not made", error)
                for request in requests:
                    if not request.future.done():
                        request.future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

    def _commit_group(self, group: list[_Request]) -> None:
        start, catalog = time.perf_counter(), self._writer
        changes: list[tuple[_Request, Change]] = []
        answers: list[tuple[_Request, Answer]] = []  # to requests with keys
        failed: list[_Request] = []  # to be retried one by one, to find the one at fault
        duplicates: list[_Request] = []  # with the key of another request of this group
        keys: set[str] = set()
        with self._commit:
            index = self.index.copy()
            catalog.begin()
            try:
                n_bytes, next_number = 0, index.next_id
                for request in group:
                    key = request.key
                    if key is not None and key.text in keys:
                        duplicates.append(request)
                        continue
                    try:
                        if key is not None and (answer := catalog.answer_to(key)) is not None:
                            answers.append((request, answer))
                            continue
                        with catalog.change():
                            change = request.prepare(State(index, catalog), next_number)
                            n_bytes += catalog.log(change)
                    except Exception as error:
                        if not catalog.in_transaction:  # the whole transaction failed
                            raise
                        request.future.set_exception(error)
                    else:
                        changes.append((request, change))
                        keys |= {key.text} if key is not None else set()
                        if isinstance(change, Add):
                            next_number = max(next_number, int(change.numbers.max(initial=-1)) + 1)
                failed = _apply_group(index, changes) if changes else []
                if changes and not failed:
                    for request, change in changes:
                        if request.key is not None:
                            ids = catalog.ids_of(change.numbers).tolist()
                            answers.append((request, Answer(ids, len(index))))
                            catalog.remember(request.key, answers[-1][1])
                    catalog.commit()
            finally:
                catalog.rollback()
            if changes and not failed:
                self.state = State(index, catalog.snapshot())
                self.unsaved += len(changes)
                self._unsaved_bytes += n_bytes
                self._wal_bytes += n_bytes
                self._first_change = self._first_change or time.monotonic()
                if self._wal_bytes > _CHECKPOINT_BYTES:
                    self._checkpoint()
                if self._unsaved_bytes > self.fold_bytes:
                    self._wake.set()
        if changes and not failed:
            try:
                self.on_commit(time.perf_counter() - start, len(changes))
            except Exception:  # only the metrics are wrong: the changes are committed
                log.exception("a commit was not counted")
            for request, change in changes:
                if request.key is None:
                    request.future.set_result(change)
        for request, answer in answers:
            request.future.set_result(answer)
        for request in (*failed, *duplicates):
            try:
                self._commit_group([request])
            except Exception as error:
                request.future.set_exception(error)

    def close(self, seconds: float | None = None) -> None:
        """Commit queued changes, save the index, and release the directory.

        After ``seconds`` it gives up, for a process that must end: acknowledged changes are in the
        database, and are applied to the index at the next start.
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
        while not self._queue.empty():  # submitted after the last group
            request = self._queue.get_nowait()
            if request is not None and request.future.set_running_or_notify_cancel():
                request.future.set_exception(BusyError("the table is being closed"))
        self._catalog.close()


def _apply_group(index: HashIndex, changes: list[tuple[_Request, Change]]) -> list[_Request]:
    """Apply changes to an index; if that fails for a group, out of memory, return its requests."""
    try:
        apply_changes(index, [change for _, change in changes])
    except Exception:
        if len(changes) == 1:
            raise
        return [request for request, _ in changes]
    return []
