"""The blocks of a generation on a query node: fetched when first read, dropped when too many.

All vectors of the generation have an address from the beginning, but memory only when they are
there: pages are reserved, and a block is written to its place when a search needs it. So a search
knows nothing of Redis; it asks ``checked`` which blocks are there, as it does with files.

Blocks are dropped in two steps. First the mark in ``checked`` goes, so that no search begins to
read them; a search that needs one now only puts the mark back. Their memory goes when the limit is
reached, the oldest first, and never before all searches that began with the mark in place are over.
So what is in use comes back before it is dropped, and a search that finds everything there pays
for entering its number in a table, and nothing else.

In a generation with a first pass a block comes without its vectors: a search looks at the codes,
and then asks for the vectors that it needs, which ``vectors_here`` tells. They go with the block.
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
    AT_ONCE,
    block_keys,
    fetch_blocks,
    fetch_vectors,
    gather,
    read_directory,
    split_block,
)
from .generations import Generations
from .manifest import VECTORS, Manifest
from .memory import PAGE, Reserved

Int64s = npt.NDArray[np.int64]

GROUP_BYTES = 64 << 10  # blocks are dropped together, else small ones would share pages
_MARKED_SHARE = 0.75  # of the limit: blocks beyond it lose their mark


class Searches:
    """Numbers of the searches that are running, in the order in which they began."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[int, None] = {}

    def now(self) -> int:
        """A number after all that were given out."""
        return next(self._numbers)

    def enter(self) -> int:
        """Begin a search. One step of the interpreter each: no lock is needed."""
        number = next(self._numbers)
        self._running[number] = None
        return number

    def leave(self, number: int) -> None:
        """End a search."""
        del self._running[number]

    def oldest(self) -> int:
        """Number of the first one that is still running, or of one that is yet to come."""
        return min(list(self._running), default=next(self._numbers))


class _ThisThread(threading.local):
    has_fetched = False  # since its search began


class RemoteBlocks(NoCheck):
    """Checks of a segment whose blocks are in Redis: to check one is to fetch it.

    Attributes
    ----------
    limit : int
        Bytes of vectors and codes that may be here; more are only while running searches need them.
        Ids, item numbers and labels, up to 20 bytes an entry, stay once they were read.
    n_bytes, n_fetched, n_dropped, n_vectors : int
        Bytes of vectors and codes that are here, single vectors by the page; blocks that were
        fetched and dropped so far; vectors that were fetched by themselves.
    n_searches, n_hits : int
        Searches so far, and how many of them found everything here.
    """

    stays_apart = True

    def __init__(self, generations: Generations, manifest: Manifest, limit: int) -> None:
        self._generations, self._manifest, self.limit = generations, manifest, limit
        self.n_bytes = self.n_fetched = self.n_dropped = self.n_vectors = 0
        self.searches = Searches()
        self.n_searches = self.n_hits = 0
        self._own = _ThisThread()
        self._directory = read_directory(generations, manifest)
        self._offsets = np.concatenate([[0], np.cumsum(self._directory.counts)]).astype(np.int64)
        n = manifest.n_entries
        self._memory = {
            name: Reserved(n, entry)
            for arrays in manifest.kinds.values()
            for name, entry in arrays.items()
        }
        self._arrays = {name: memory.array for name, memory in self._memory.items()}
        self._kind, kept = next(iter(manifest.kinds)), manifest.columns
        self._dropped = [each for name, each in self._memory.items() if name not in kept]
        whole = manifest.kinds[self._kind].items()  # what comes with a block
        self._entry_bytes = sum(entry.itemsize for name, entry in whole if name not in kept)
        if self._kind != VECTORS:
            self.vectors_here = np.zeros(n, dtype=np.bool_)
        n_rows = manifest.n_buckets
        self.checked: npt.NDArray[np.bool_] = np.zeros(n_rows + 1, dtype=np.bool_)
        self._present = np.zeros(n_rows, dtype=np.bool_)
        # Rows of a group are neighbours; group g are rows starts[g]..starts[g + 1] - 1.
        filled = self._offsets[:-1] * self._entry_bytes // GROUP_BYTES
        self._group = np.cumsum(np.diff(filled, prepend=filled[:1]) > 0)
        n_groups = int(self._group[-1]) + 1 if n_rows else 0
        self._starts = np.searchsorted(self._group, np.arange(n_groups + 1))
        self._firsts = self._offsets[self._starts]  # entries of groups
        self._bytes = np.zeros(n_groups, dtype=np.int64)  # that are here
        self._lock = threading.Lock()
        self._marked: OrderedDict[int, int] = OrderedDict()  # group: when it was last asked for
        self._unmarked: OrderedDict[int, int] = OrderedDict()  # group: when it lost its marks
        self._underway: dict[int, threading.Event] = {}  # by row
        self._whole: set[str] = set()  # columns that are here as a whole
        self._loading = threading.Lock()

    def segment(self) -> Segment:
        """The segment that this checks."""
        arrays = {name: array.view() for name, array in self._arrays.items()}  # read-only ones
        return Segment(
            arrays["vectors"], arrays["ids"], arrays.get("labels"), arrays.get("items"),
            self._directory.buckets, self._offsets, self._manifest.n_items, self._manifest.max_norm,
            check=self, codes=arrays.get("codes"), code_bounds=arrays.get("code_bounds"),
        )  # fmt: skip

    # -- what a search asks for --------------------------------------------------------------------

    def begin(self) -> int:
        """Enter a search of this thread; returns its number."""
        self._own.has_fetched = False
        return self.searches.enter()

    def end(self, number: int) -> None:
        """It is over."""
        self.searches.leave(number)
        with self._lock:
            self.n_searches += 1
            self.n_hits += not self._own.has_fetched
        if self.n_bytes > self.limit:
            self.trim()

    def blocks(self, rows: Int64s | None = None) -> None:
        """Fetch blocks, with all of their vectors, that are not here."""
        rows = np.arange(len(self._present)) if rows is None else rows
        self.first_pass(rows)
        if self.vectors_here is not None and len(rows):
            bounds = zip(
                self._offsets[rows].tolist(), self._offsets[rows + 1].tolist(), strict=True
            )
            self.vectors(np.concatenate([np.arange(start, stop) for start, stop in bounds]))

    def first_pass(self, rows: Int64s) -> None:
        """Fetch blocks that are not here. Within a search: they stay until its end."""
        while True:
            with self._lock:
                self._touch(rows)
                missing = rows[~self.checked[rows]].tolist()
                mine = [row for row in missing if row not in self._underway]
                others = [self._underway[row] for row in missing if row in self._underway]
                done = threading.Event()
                self._underway |= dict.fromkeys(mine, done)
            if not missing:
                break
            self._own.has_fetched = True
            try:
                self._fetch(mine)
            finally:
                with self._lock:
                    for row in mine:
                        del self._underway[row]
                done.set()
            for other in others:  # if it failed, the next turn is ours, and so is the error
                other.wait()
        self.trim()

    def _touch(self, rows: Int64s) -> None:
        """Note that groups are needed; those that are here without a mark get it back."""
        now = self.searches.now()
        for group in np.unique(self._group[rows]).tolist():
            if self._unmarked.pop(group, None) is not None:
                own = slice(self._starts[group], self._starts[group + 1])
                self.checked[own] = self._present[own]
            self._marked[group] = now
            self._marked.move_to_end(group)

    def _fetch(self, rows: list[int]) -> None:
        """Fetch blocks, check them, write them into place, and only then mark them."""
        generations, manifest, directory = self._generations, self._manifest, self._directory
        found = fetch_blocks(generations, manifest, directory, self._kind, rows)
        for row, data in zip(rows, found, strict=True):
            if isinstance(data, ClusterError):
                raise data
            start, stop = self._offsets[row : row + 2].tolist()
            arrays = split_block(data, manifest, self._kind)
            self._refuse_wrong(arrays, self._kind, row)
            for name, array in arrays.items():
                if name not in self._whole:  # what is there as a whole, others may be reading
                    self._arrays[name][start:stop] = array
        with self._lock:
            self.checked[rows] = True
            self._present[rows] = True
            self.n_fetched += len(rows)
            self._count(np.unique(self._group[rows]))

    def vectors(self, entries: Int64s) -> None:
        """Fetch vectors that are not here, of blocks that are."""
        if self.vectors_here is None:
            return
        entries = entries[~self.vectors_here[entries]]
        self._own.has_fetched |= len(entries) > 0
        at_once = max(1, AT_ONCE // self._memory["vectors"].entry_bytes)
        for at in range(0, len(entries), at_once):
            self._fetch_vectors(entries[at : at + at_once])
        self.trim()

    def _fetch_vectors(self, entries: Int64s) -> None:
        """Two threads may do so at once, and write the same."""
        assert self.vectors_here is not None
        rows = np.searchsorted(self._offsets, entries, "right") - 1
        names = ("ids", "codes", "code_bounds", "vector_crcs")
        arrays = {name: self._arrays[name][entries] for name in names}
        places, crcs = entries - self._offsets[rows], arrays.pop("vector_crcs")
        arrays["vectors"] = fetch_vectors(
            self._generations, self._manifest, self._directory, rows, places, crcs
        )
        self._refuse_wrong(arrays, VECTORS, int(rows[0]))
        self._arrays["vectors"][entries] = arrays["vectors"]
        with self._lock:
            self.vectors_here[entries] = True
            self.n_vectors += len(entries)
            self._count(np.unique(self._group[rows]))

    def _refuse_wrong(self, arrays: dict[str, npt.NDArray[Any]], kind: str, row: int) -> None:
        """Raise an error that names a block if it has values that must not be."""
        n, limits = len(arrays["ids"]), self._manifest.limits
        if "vectors" in arrays:
            problems = wrong_values(arrays, 0, n, limits)
        else:
            numbers = wrong_numbers(arrays, 0, n, limits)
            problems = itertools.chain(numbers, wrong_labels(arrays, 0, n))
        for problem in problems:
            key = block_keys(self._generations, self._manifest, self._directory, kind, row)[0]
            raise self._generations.error(key, f"has wrong values: {problem}")

    def _count(self, groups: Int64s) -> None:
        """Count the bytes of some groups again."""
        for group in groups.tolist():
            rows = slice(self._starts[group], self._starts[group + 1])
            n_entries = int(self._directory.counts[rows][self._present[rows]].sum())
            n_bytes = n_entries * self._entry_bytes
            if self.vectors_here is not None:
                first = self._firsts[group]
                here = first + np.flatnonzero(self.vectors_here[first : self._firsts[group + 1]])
                pages = here * self._memory["vectors"].entry_bytes // PAGE
                n_bytes += len(np.unique(pages)) * PAGE
            self.n_bytes += n_bytes - int(self._bytes[group])
            self._bytes[group] = n_bytes

    def ids(self) -> None:
        """Fetch ids and item numbers of all entries: 8 to 12 bytes each."""
        if not self.checked[-1]:
            for name in ("ids", "items"):
                self.section(name)
            self.checked[-1] = True

    def section(self, name: str) -> None:
        """Fetch ids, item numbers or labels of all entries."""
        if name not in self._manifest.columns or name in self._whole:
            return
        with self._loading:
            if name in self._whole:
                return
            array = np.empty(self._manifest.n_entries, self._manifest.columns[name])
            gather(self._generations.file(self._manifest, name), array)
            limits, n = self._manifest.limits, len(array)
            problems = wrong_labels({"labels": array}, 0, n)
            if name != "labels":  # ids come before item numbers
                problems = wrong_numbers({**self._arrays, name: array}, 0, n, limits)
            for problem in problems:
                key = self._generations.keys.file(self._manifest.generation, name, 1)[0]
                raise self._generations.error(key, f"and its other parts: {problem}")
            self._arrays[name][:] = array
            self._whole.add(name)

    # -- dropping ----------------------------------------------------------------------------------

    def trim(self) -> None:
        """Drop what is beyond the limit, as far as no search may be reading it."""
        if self.n_bytes <= self.limit:
            return
        with self._lock:
            oldest = self.searches.oldest()
            left = self.n_bytes - sum(int(self._bytes[group]) for group in self._unmarked)
            while self._marked and left > _MARKED_SHARE * self.limit:
                group, asked = next(iter(self._marked.items()))
                if asked >= oldest:  # by a search that may still be running
                    break
                del self._marked[group]
                self.checked[self._starts[group] : self._starts[group + 1]] = False
                self._unmarked[group] = self.searches.now()
                left -= int(self._bytes[group])
            oldest = self.searches.oldest()
            while self._unmarked and self.n_bytes > self.limit:
                group, since = next(iter(self._unmarked.items()))
                if since >= oldest:
                    break
                del self._unmarked[group]
                self._drop(group)

    def _drop(self, group: int) -> None:
        first, last = self._starts[group : group + 2].tolist()
        start, stop = self._firsts[group : group + 2].tolist()
        if self.vectors_here is not None:
            self.vectors_here[start:stop] = False
        for memory in self._dropped:
            first_page, end_page = memory.pages(start, stop)
            if self._is_shared(memory, first_page, group):
                first_page += 1
            if end_page > first_page and self._is_shared(memory, end_page - 1, group):
                end_page -= 1
            memory.give_back(first_page, end_page)
        self.n_dropped += int(self._present[first:last].sum())
        self._present[first:last] = False
        self.n_bytes -= int(self._bytes[group])
        self._bytes[group] = 0

    def _is_shared(self, memory: Reserved, page: int, group: int) -> bool:
        """Whether another group that is here, or on its way, has a part of this page."""
        first, end = memory.entries(page)
        low = int(np.searchsorted(self._firsts[:-1], first, "right")) - 1
        high = int(np.searchsorted(self._firsts[:-1], end, "left"))
        others = (other for other in range(low, high) if other != group)
        return any(other in self._marked or other in self._unmarked for other in others)
