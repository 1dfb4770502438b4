"""The index that is served: searched by many, changed by one thread, saved by another.

A change goes this way: the writer takes all that are waiting, tries them on a copy of the index,
writes those that fit to the journal as one frame, waits for the disk once, puts the copy in place
of the index, and only then tells the callers. Whoever was told so finds the change after any kind
of stop; nobody ever finds one that could still be lost. From time to time the index is saved and
the journal begun anew, while searches and changes go on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hashcade.errors import StorageError
from hashcade.index._check import (
    checked_buckets,
    checked_ids,
    checked_labels,
    checked_vectors,
    following_ids,
)
from hashcade.index._index import HashIndex
from hashcade.index._manifest import MANIFEST_NAME
from hashcade.index._store import read_manifest
from hashcade.index._table import new_uid
from hashcade.serve._changes import Prepare, Waiting, apply_again, apply_group
from hashcade.serve._journal import FOLDER, Journal, changes_for, read_files
from hashcade.serve._records import Add, Change, Remove

log = logging.getLogger("hashcade.serve")

_GROUP = 256  # changes that are committed together at most
_RETRY_SECONDS = 5.0  # after a save that failed


# These two do not leave the service: routes turn them into a status.


class ReadOnlyError(Exception):
    """The index is served for reading alone."""


class BusyError(Exception):
    """Too many changes are waiting."""


class LiveIndex:
    """An index directory that is open for searches and for changes that last.

    Parameters
    ----------
    path
        The directory.
    read_only
        Changes are refused and nothing is written; a journal that is there is applied in memory.
    fold_bytes, fold_seconds
        The index is saved when the journal is this long, or its first change this old.
    max_waiting
        Changes that may wait; more are refused with ``BusyError``.
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
        self.path = path.resolve()
        self.read_only = read_only
        self.fold_bytes, self.fold_seconds = fold_bytes, fold_seconds
        self.n_folds = 0
        self.epoch = 0  # how often another index was taken over
        self.on_commit: Callable[[float, int], None] = lambda seconds, n_changes: None
        self._queue: queue.Queue[Waiting | None] = queue.Queue(max_waiting)
        self._commit = threading.Lock()  # held to change the index or to begin a journal file
        self._folding = threading.Lock()
        self._first_change: float | None = None
        self._unfolded = 0
        self._closing = threading.Event()
        self._wake = threading.Event()
        if not (self.path / MANIFEST_NAME).is_file():  # before a journal is made there
            raise StorageError(f"{path} holds no index: there is no {MANIFEST_NAME}")
        self._journal = None if read_only else Journal(self.path)
        try:
            self.index = self._opened()
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            raise
        self._threads: list[threading.Thread] = []
        if not read_only:
            for name, run in (("writer", self._write), ("folder", self._fold_at_times)):
                thread = threading.Thread(target=run, name=f"hashcade-{name}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _opened(self) -> HashIndex:
        """Load the index, apply what the journal has, and begin a new journal file."""
        index = HashIndex.load(self.path)
        generation = _generation(index)
        if self._journal is None:
            folder = self.path / FOLDER
            apply_again(index, changes_for(read_files(folder), generation, folder))
            return index
        changes = self._journal.replay(generation)
        if not changes:
            self._journal.drop_before(self._journal.begin(generation))
            return index
        apply_again(index, changes)
        following = new_uid()
        number = self._journal.begin(generation, following)
        index._save_as(self.path, following, held=True)
        self._journal.drop_before(number)
        log.info("applied %d changes of the journal", len(changes))
        return index

    # -- changing ------------------------------------------------------------------------------

    def add(
        self,
        bucket_ids: npt.ArrayLike,
        vectors: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        *,
        epoch: int | None = None,
    ) -> Future[npt.NDArray[np.int64]]:
        """Add items. The future gives their ids when they are on disk and can be found.

        With ``epoch`` they are refused if another index was taken over since: their buckets may
        be those of another model.
        """

        def prepare(index: HashIndex, next_id: int) -> Change:
            if epoch is not None and epoch != self.epoch:
                raise StorageError("the index was replaced meanwhile; ask again")
            values = checked_vectors("vectors", vectors, index.dim)
            n, shape = len(values), index.shape
            buckets = checked_buckets(bucket_ids, n, shape, several=shape.sparsity, of="item")
            if (labels is not None) != index.has_labels:
                has = "has labels" if index.has_labels else "has no labels"
                raise ValueError(f"labels must be given for all items or none: the index {has}")
            classes = None if labels is None else checked_labels(labels, n)
            if ids is None:
                return Add(following_ids(next_id, n), buckets, values, classes)
            return Add(checked_ids("ids", ids, n), buckets, values, classes)

        return self._submit(prepare)

    def remove(self, ids: npt.ArrayLike) -> Future[npt.NDArray[np.int64]]:
        """Remove items. The future gives their ids when the removal is on disk."""
        return self._submit(lambda index, next_id: Remove(checked_ids("ids", ids)))

    def _submit(self, prepare: Prepare) -> Future[npt.NDArray[np.int64]]:
        if self._journal is None:
            raise ReadOnlyError("this index is served for reading alone")
        future: Future[npt.NDArray[np.int64]] = Future()
        if self._closing.is_set():
            raise BusyError("the service is stopping")
        if not self._threads[0].is_alive():
            raise StorageError(f"no changes are taken: {self.failure}")
        try:
            self._queue.put_nowait(Waiting(prepare, future))
        except queue.Full:
            raise BusyError(f"{self._queue.maxsize} changes are waiting already") from None
        return future

    def _write(self) -> None:
        """Commit what is waiting, group by group, until None comes."""
        while (first := self._queue.get()) is not None:
            group = [first]
            stop = False
            while len(group) < _GROUP:
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    stop = True
                    break
                group.append(following)
            running = [w for w in group if w.future.set_running_or_notify_cancel()]
            try:
                self._commit_group(running)
            except BaseException as error:  # whatever it is, nobody waits in vain
                log.exception("changes were not kept")
                for waiting in running:
                    if not waiting.future.done():
                        waiting.future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            if stop:
                return

    def _commit_group(self, group: list[Waiting]) -> None:
        with self._commit:
            trial = self.index.copy()
            done = apply_group(trial, group)
            if not done:
                return
            try:
                assert self._journal is not None
                start = time.perf_counter()
                self._journal.append([change for _, change in done])
                seconds = time.perf_counter() - start
            except Exception as error:  # nothing of this was seen by anybody
                log.error("changes were not kept: %s", error)
                for waiting, _ in done:
                    waiting.future.set_exception(error)
                return
            self.index = trial
            self._unfolded += len(done)
            if self._first_change is None:
                self._first_change = time.monotonic()
            if self._journal.size > self.fold_bytes:
                self._wake.set()
        try:
            self.on_commit(seconds, len(done))
        except Exception:  # a figure less; the changes are made
            log.exception("a commit was not counted")
        for waiting, change in done:
            waiting.future.set_result(change.ids)

    # -- saving ----------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Changes that are in the journal and not yet in the index on disk."""
        return self._unfolded

    @property
    def failure(self) -> str | None:
        """Why changes are not taken or not saved any more, if so."""
        if self._journal is None:
            return None
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead and not self._closing.is_set():
            return f"the thread {dead[0]} has ended; restart the service"
        return self._journal.broken

    def fold(self) -> bool:
        """Save the index and begin the journal anew; False if there was nothing to save."""
        if self._journal is None:
            raise ReadOnlyError("this index is served for reading alone")
        with self._folding:
            with self._commit:
                if self._unfolded == 0:
                    return False
                saved = self.index.copy()
                n_saved = self._unfolded
                # The name is known to the journal before it is that of the index on disk.
                following = new_uid()
                number = self._journal.begin(_generation(saved), following)
                self._first_change = None
            try:
                saved._save_as(self.path, following, held=True)
            except BaseException:
                with self._commit:
                    self.index._home = saved._home
                    self._first_change = self._first_change or time.monotonic()
                raise
            with self._commit:
                self.index._home = saved._home
                self._unfolded -= n_saved
                self._journal.drop_before(number)
                self.n_folds += 1
            return True

    def _fold_at_times(self) -> None:
        while not self._closing.is_set():
            since = self._first_change
            wait = 1.0 if since is None else since + self.fold_seconds - time.monotonic()
            self._wake.wait(min(max(wait, 0.0), 1.0))
            assert self._journal is not None
            full = self._wake.is_set() and self._journal.size > self.fold_bytes
            self._wake.clear()
            since = self._first_change
            due = since is not None and time.monotonic() - since >= self.fold_seconds
            if (full or due) and not self._closing.is_set():
                try:
                    self.fold()
                except Exception as error:  # the journal has everything; it is tried again
                    _log_unsaved(error)
                    self._closing.wait(_RETRY_SECONDS)

    def reload(self, accept: Callable[[HashIndex], None] = lambda index: None) -> bool:
        """Take over an index that was copied over the one in the directory.

        Searches go on with the old one until the new one is open; changes wait. To save into the
        directory is possible only if it is served for reading alone: otherwise the service has
        its lock. A new index is then given to a service by a link; see ``Service.reload``.

        Parameters
        ----------
        accept
            Called with the new index before it is served; what it raises keeps the old one.

        Returns
        -------
        bool
            False if the directory has what is served already.

        Raises
        ------
        StorageError
            If changes are not saved yet: they were made to the index that was replaced. Or if
            the directory is gone.
        """
        with self._folding, self._commit:
            home = self.index._home
            try:
                generation = read_manifest(self.path).generation
            except OSError as error:
                raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error
            if home is not None and generation in home[1]:
                return False
            if self._unfolded:
                raise StorageError(
                    f"{self.path} was replaced while {self._unfolded} changes were not saved;"
                    " they are still served: put the old index back to keep them, or stop and"
                    f" remove {self.path / FOLDER} to drop them"
                )
            index = HashIndex.load(self.path)
            accept(index)
            if self._journal is not None:
                # What is in the old files was saved. It must be gone before a file names the new
                # index, or it would be applied to that one after a stop.
                self._journal.drop_before(self._journal.begin(_generation(self.index)))
                self._journal.drop_before(self._journal.begin(_generation(index)))
            self.index = index
            self.epoch += 1
            return True

    def close(self) -> None:
        """Commit what is waiting, save, and give the directory back."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        if self._journal is None:
            return
        if self._threads[0].is_alive():
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        try:
            self.fold()
        except Exception as error:  # nothing is lost: the journal is applied at the next start
            _log_unsaved(error)
        while True:  # what came between the last group and the end
            try:
                waiting = self._queue.get_nowait()
            except queue.Empty:
                break
            if waiting is not None and waiting.future.set_running_or_notify_cancel():
                waiting.future.set_exception(BusyError("the service is stopping"))
        self._journal.close()


def _log_unsaved(error: Exception) -> None:
    expected = isinstance(error, StorageError)  # others are mistakes: show where
    log.error("the index could not be saved: %s", error, exc_info=None if expected else error)


def _generation(index: HashIndex) -> str:
    assert index._home is not None
    return max(index._home[1])  # one, but for a save whose last flush failed
