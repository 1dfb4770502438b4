"""The block cache of a query node: blocks are fetched on first use, and evicted beyond a limit.

Address space is reserved for all vectors of the generation, but memory is only used once a block is
written to its place, when a search needs it. So the search code is the same as for files: the flags
in ``checked`` tell which blocks can be read.

Eviction has two steps. First the flags in ``checked`` of a group of blocks are cleared, so that no
new search reads it; a search that needs the group only sets the flags again. Its memory is freed
when the limit is reached, the oldest group first, and never before all searches that started while
the flags were set have ended. So groups in use are reactivated before they are freed, and a cache
hit costs no more than the registration of the search.

In a generation with a first pass, blocks come without their vectors: a search reads the codes, and
then fetches the vectors that it needs; ``vectors_here`` tells which are cached. They are evicted
with the block.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.errors import ClusterError
from hashcade.index import NoCheck, Segment, wrong_labels, wrong_numbers, wrong_values

from .blocks import (
    BATCH_BYTES,
    block_keys,
    fetch_blocks,
    fetch_vectors,
    gather,
    read_directory,
    split_block,
)
from .generations import Generations
from .manifest import VECTORS, Manifest
from .memory import PAGE, SparseArray

Int64s = npt.NDArray[np.int64]

GROUP_BYTES = 64 << 10  # blocks are evicted in groups: small ones would share pages
_ACTIVE_SHARE = 0.75  # of the limit: beyond it, the oldest groups become inactive


class Searches:
    """Numbers of the running searches, in the order of their start."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[int, None] = {}

    def tick(self) -> int:
        """A number larger than all before."""
        return next(self._numbers)

    def enter(self) -> int:
        """Register a search. Both steps are atomic: no lock is needed."""
        number = next(self._numbers)
        self._running[number] = None
        return number

    def leave(self, number: int) -> None:
        """Unregister a search."""
        del self._running[number]

    def oldest(self) -> int:
        """Number of the oldest running search, or a new number if there is none."""
        return min(list(self._running), default=next(self._numbers))


class _ThreadState(threading.local):
    has_fetched = False  # during the current search


class RemoteBlocks(NoCheck):
    """Checks of a segment whose blocks are in Redis: to check one is to fetch it.

    Attributes
    ----------
    limit : int
        Bytes of vectors and codes to cache; only running searches may exceed it. Ids, item numbers
        and labels, up to 20 bytes per entry, are never evicted.
    n_bytes, n_fetched, n_dropped, n_vectors : int
        Bytes of cached vectors and codes (single vectors count as pages); blocks fetched and
        evicted so far; vectors that were fetched individually.
    n_searches, n_hits : int
        Searches so far, and how many of them were cache hits: they fetched nothing.
    """

    stays_apart = True

    def __init__(self, generations: Generations, manifest: Manifest, limit: int) -> None:
        self._generations, self._manifest, self.limit = generations, manifest, limit
        self.n_bytes = self.n_fetched = self.n_dropped = self.n_vectors = 0
        self.searches = Searches()
        self.n_searches = self.n_hits = 0
        self._local = _ThreadState()
        self._directory = read_directory(generations, manifest)
        self._offsets = np.concatenate([[0], np.cumsum(self._directory.counts)]).astype(np.int64)
        n = manifest.n_entries
        self._memory = {
            name: SparseArray(n, dtype)
            for arrays in manifest.kinds.values()
            for name, dtype in arrays.items()
        }
        self._arrays = {name: memory.array for name, memory in self._memory.items()}
        self._kind, columns = next(iter(manifest.kinds)), manifest.columns
        self._evictable = [array for name, array in self._memory.items() if name not in columns]
        block_arrays = manifest.kinds[self._kind].items()
        evictable = (dtype for name, dtype in block_arrays if name not in columns)
        self._entry_bytes = sum(dtype.itemsize for dtype in evictable)
        if self._kind != VECTORS:
            self.vectors_here = np.zeros(n, dtype=np.bool_)
        n_rows = manifest.n_buckets
        self.checked: npt.NDArray[np.bool_] = np.zeros(n_rows + 1, dtype=np.bool_)
        self._resident = np.zeros(n_rows, dtype=np.bool_)
        # Group g has the rows group_rows[g]..group_rows[g + 1] - 1.
        windows = self._offsets[:-1] * self._entry_bytes // GROUP_BYTES
        self._group = np.cumsum(np.diff(windows, prepend=windows[:1]) > 0)
        n_groups = int(self._group[-1]) + 1 if n_rows else 0
        self._group_rows = np.searchsorted(self._group, np.arange(n_groups + 1))
        self._group_entries = self._offsets[self._group_rows]  # first entries of groups
        self._group_bytes = np.zeros(n_groups, dtype=np.int64)  # cached, by group
        self._lock = threading.Lock()
        self._active: OrderedDict[int, int] = OrderedDict()  # group: when it was last used
        self._inactive: OrderedDict[int, int] = OrderedDict()  # group: when it became inactive
        self._fetching: dict[int, threading.Event] = {}  # by row
        self._complete_columns: set[str] = set()  # fetched for all entries
        self._column_lock = threading.Lock()

    def segment(self) -> Segment:
        """The segment whose blocks are cached here."""
        arrays = {name: array.view() for name, array in self._arrays.items()}  # made read-only
        return Segment(
            arrays["vectors"], arrays["ids"], arrays.get("labels"), arrays.get("items"),
            self._directory.buckets, self._offsets, self._manifest.n_items, self._manifest.max_norm,
            check=self, codes=arrays.get("codes"), code_bounds=arrays.get("code_bounds"),
        )  # fmt: skip

    # -- fetching ---------------------------------------------------------------------------------

    def begin(self) -> int:
        """Register a search of this thread; returns its number."""
        self._local.has_fetched = False
        return self.searches.enter()

    def end(self, number: int) -> None:
        """Unregister a search."""
        self.searches.leave(number)
        with self._lock:
            self.n_searches += 1
            self.n_hits += not self._local.has_fetched
        if self.n_bytes > self.limit:
            self.trim()

    def blocks(self, rows: Int64s | None = None) -> None:
        """Fetch blocks, with all of their vectors, that are not cached."""
        rows = np.arange(len(self._resident)) if rows is None else rows
        self.first_pass(rows)
        if self.vectors_here is not None and len(rows):
            bounds = zip(
                self._offsets[rows].tolist(), self._offsets[rows + 1].tolist(), strict=True
            )
            self.vectors(np.concatenate([np.arange(start, stop) for start, stop in bounds]))

    def first_pass(self, rows: Int64s) -> None:
        """Fetch blocks that are not cached. Within a search: they stay until its end."""
        while True:
            with self._lock:
                self._touch(rows)
                missing = rows[~self.checked[rows]].tolist()
                claimed = [row for row in missing if row not in self._fetching]
                events = [self._fetching[row] for row in missing if row in self._fetching]
                fetched = threading.Event()
                self._fetching |= dict.fromkeys(claimed, fetched)
            if not missing:
                break
            self._local.has_fetched = True
            try:
                self._fetch(claimed)
            finally:
                with self._lock:
                    for row in claimed:
                        del self._fetching[row]
                fetched.set()
            for event in events:  # if another thread failed, the next round fetches, or raises
                event.wait()
        self.trim()

    def _touch(self, rows: Int64s) -> None:
        """Record the use of groups, and reactivate inactive ones."""
        now = self.searches.tick()
        for group in np.unique(self._group[rows]).tolist():
            if self._inactive.pop(group, None) is not None:
                rows_slice = slice(self._group_rows[group], self._group_rows[group + 1])
                self.checked[rows_slice] = self._resident[rows_slice]
            self._active[group] = now
            self._active.move_to_end(group)

    def _fetch(self, rows: list[int]) -> None:
        """Fetch blocks, validate them, write them into place, and only then set their flags."""
        generations, manifest, directory = self._generations, self._manifest, self._directory
        blocks = fetch_blocks(generations, manifest, directory, self._kind, rows)
        for row, data in zip(rows, blocks, strict=True):
            if isinstance(data, ClusterError):
                raise data
            start, stop = self._offsets[row : row + 2].tolist()
            arrays = split_block(data, manifest, self._kind)
            self._validate(arrays, self._kind, row)
            for name, array in arrays.items():
                if name not in self._complete_columns:  # which other threads may be reading
                    self._arrays[name][start:stop] = array
        with self._lock:
            self.checked[rows] = True
            self._resident[rows] = True
            self.n_fetched += len(rows)
            self._recount(np.unique(self._group[rows]))

    def vectors(self, entries: Int64s) -> None:
        """Fetch vectors that are not cached, of blocks that are."""
        if self.vectors_here is None:
            return
        entries = entries[~self.vectors_here[entries]]
        self._local.has_fetched |= len(entries) > 0
        batch = max(1, BATCH_BYTES // self._memory["vectors"].entry_bytes)
        for start in range(0, len(entries), batch):
            self._fetch_vectors(entries[start : start + batch])
        self.trim()

    def _fetch_vectors(self, entries: Int64s) -> None:
        """Fetch single vectors. Two threads may fetch the same ones, and write the same bytes."""
        assert self.vectors_here is not None
        rows = np.searchsorted(self._offsets, entries, "right") - 1
        names = ("ids", "codes", "code_bounds", "vector_crcs")
        arrays = {name: self._arrays[name][entries] for name in names}
        positions, crcs = entries - self._offsets[rows], arrays.pop("vector_crcs")
        arrays["vectors"] = fetch_vectors(
            self._generations, self._manifest, self._directory, rows, positions, crcs
        )
        self._validate(arrays, VECTORS, int(rows[0]))
        self._arrays["vectors"][entries] = arrays["vectors"]
        with self._lock:
            self.vectors_here[entries] = True
            self.n_vectors += len(entries)
            self._recount(np.unique(self._group[rows]))

    def _validate(self, arrays: dict[str, npt.NDArray[Any]], kind: str, row: int) -> None:
        """Raise an error that names the block if it has invalid values."""
        n, limits = len(arrays["ids"]), self._manifest.limits
        if "vectors" in arrays:
            problems = wrong_values(arrays, 0, n, limits)
        else:
            numbers = wrong_numbers(arrays, 0, n, limits)
            problems = itertools.chain(numbers, wrong_labels(arrays, 0, n))
        for problem in problems:
            key = block_keys(self._generations, self._manifest, self._directory, kind, row)[0]
            raise self._generations.error(key, f"has wrong values: {problem}")

    def _recount(self, groups: Int64s) -> None:
        """Update the number of cached bytes of groups."""
        for group in groups.tolist():
            rows = slice(self._group_rows[group], self._group_rows[group + 1])
            n_entries = int(self._directory.counts[rows][self._resident[rows]].sum())
            n_bytes = n_entries * self._entry_bytes
            if self.vectors_here is not None:
                first = self._group_entries[group]
                stop = self._group_entries[group + 1]
                cached = first + np.flatnonzero(self.vectors_here[first:stop])
                pages = cached * self._memory["vectors"].entry_bytes // PAGE
                n_bytes += len(np.unique(pages)) * PAGE
            self.n_bytes += n_bytes - int(self._group_bytes[group])
            self._group_bytes[group] = n_bytes

    def ids(self) -> None:
        """Fetch ids and item numbers of all entries: 8 to 12 bytes per entry."""
        if not self.checked[-1]:
            for name in ("ids", "items"):
                self.section(name)
            self.checked[-1] = True

    def section(self, name: str) -> None:
        """Fetch ids, item numbers or labels of all entries."""
        if name not in self._manifest.columns or name in self._complete_columns:
            return
        with self._column_lock:
            if name in self._complete_columns:
                return
            array = np.empty(self._manifest.n_entries, self._manifest.columns[name])
            gather(self._generations.file(self._manifest, name), array)
            limits, n = self._manifest.limits, len(array)
            problems = wrong_labels({"labels": array}, 0, n)
            if name != "labels":  # ids are fetched before item numbers
                problems = wrong_numbers({**self._arrays, name: array}, 0, n, limits)
            for problem in problems:
                key = self._generations.keys.file(self._manifest.generation, name, 1)[0]
                raise self._generations.error(key, f"and its other parts: {problem}")
            self._arrays[name][:] = array
            self._complete_columns.add(name)

    # -- eviction ----------------------------------------------------------------------------------

    def trim(self) -> None:
        """Evict groups beyond the limit, unless a running search may be reading them."""
        if self.n_bytes <= self.limit:
            return
        with self._lock:
            oldest = self.searches.oldest()
            active_bytes = self.n_bytes - int(self._group_bytes[list(self._inactive)].sum())
            while self._active and active_bytes > _ACTIVE_SHARE * self.limit:
                group, last_used = next(iter(self._active.items()))
                if last_used >= oldest:  # a running search may use it
                    break
                del self._active[group]
                self.checked[self._group_rows[group] : self._group_rows[group + 1]] = False
                self._inactive[group] = self.searches.tick()
                active_bytes -= int(self._group_bytes[group])
            oldest = self.searches.oldest()
            while self._inactive and self.n_bytes > self.limit:
                group, inactive_since = next(iter(self._inactive.items()))
                if inactive_since >= oldest:
                    break
                del self._inactive[group]
                self._evict(group)

    def _evict(self, group: int) -> None:
        first, last = self._group_rows[group : group + 2].tolist()
        start, stop = self._group_entries[group : group + 2].tolist()
        if self.vectors_here is not None:
            self.vectors_here[start:stop] = False
        for memory in self._evictable:
            first_page, end_page = memory.pages(start, stop)
            if self._is_shared(memory, first_page, group):
                first_page += 1
            if end_page > first_page and self._is_shared(memory, end_page - 1, group):
                end_page -= 1
            memory.free(first_page, end_page)
        self.n_dropped += int(self._resident[first:last].sum())
        self._resident[first:last] = False
        self.n_bytes -= int(self._group_bytes[group])
        self._group_bytes[group] = 0

    def _is_shared(self, memory: SparseArray, page: int, group: int) -> bool:
        """Whether another group that is cached, or being fetched, has a part of this page."""
        first, end = memory.entries(page)
        low = int(np.searchsorted(self._group_entries[:-1], first, "right")) - 1
        high = int(np.searchsorted(self._group_entries[:-1], end, "left"))
        others = (other for other in range(low, high) if other != group)
        return any(other in self._active or other in self._inactive for other in others)
