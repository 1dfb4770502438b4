"""The index: a table of buckets to search in, to change, to store and to look into."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hashcade._validate import checked_count, checked_seed, checked_vectors, name_ids
from hashcade.codes import CodeShape
from hashcade.errors import CorruptIndexError, StorageError, add_hint
from hashcade.index import inspect, missing, nearest, storage, validate
from hashcade.index.blocks import Block, blocks_of
from hashcade.index.cancel import Cancel
from hashcade.index.checksums import structure_problems
from hashcade.index.filters import Filter
from hashcade.index.search import FILTER_BUDGET, SearchResult, make_request, run
from hashcade.index.segment import Int64s, Items, Segment, View
from hashcade.index.snapshot import Snapshot, empty_snapshot

Array = npt.ArrayLike
MaybeArray = npt.ArrayLike | None
Place = str | os.PathLike[str]


class HashIndex:
    """Items in buckets: exact search among the few that share a bucket with the query.

    Made by :meth:`build` or :meth:`load`. A search looks at one state of the index from beginning
    to end: changes make a new state and put it in place at once. Searches may run in any number of
    threads; changes wait for each other.

    Examples
    --------
    >>> from hashcade import CodeShape, HashIndex
    >>> shape = CodeShape(width=4, depth=2)
    >>> index = HashIndex.build([5, 5, 9], [[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]], shape=shape)
    >>> result = index.search([[0.0, 0.0]], bucket_ids=[5], n_neighbors=2)
    >>> result.ids.tolist(), result.distances.tolist(), result.candidates.tolist()
    ([[0, 1]], [[0.0, 5.0]], [2])
    >>> index.remove([1])
    >>> index.search([[0.0, 0.0]], bucket_ids=[5], n_neighbors=2).ids.tolist()
    [[0, 2]]
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._change = threading.Lock()
        # Where it is stored, and the generations of which one is there: two after a save whose
        # last flush to the disk failed.
        self._stored: tuple[Path, frozenset[str]] | None = None

    @classmethod
    def build(
        cls, bucket_ids: Array, vectors: Array, ids: MaybeArray = None, labels: MaybeArray = None,
        *, shape: CodeShape, unit_length: bool = False, first_pass: str | None = None,
        dtype: str = "float32",
    ) -> HashIndex:  # fmt: skip
        """Build an index of ``vectors`` (n, dim) in buckets ``bucket_ids`` (n, sparsity) or (n,).

        A bucket that is named twice for an item counts once. Vectors are stored as float32; NaN and
        infinite values are refused. ``ids`` are not negative, none twice, by default 0..n-1.
        ``labels`` are classes, for :meth:`stats`, :meth:`explain` and :meth:`labels_of`, -1
        (``NO_LABEL``) for an item without; if not given, the index never has labels. ``shape``
        gives the range of bucket ids and the tree for filling. With ``unit_length`` vectors are
        scaled to length 1 when they are added, once, for searches with ``metric="cosine"``; one
        that is zero everywhere is refused. For ``first_pass`` see :meth:`set_first_pass`. With
        ``dtype="float16"`` vectors are rounded to float16 when they are added, once, and take half
        the memory; distances are exact for what they were rounded to. Not with ``unit_length``.
        """
        if not isinstance(shape, CodeShape):
            raise ValueError(f"shape={shape!r} must be a CodeShape")
        values = checked_vectors("vectors", vectors)
        validate.check_storage(first_pass, dtype, unit_length)
        dim, with_labels = values.shape[1], labels is not None
        index = cls(empty_snapshot(shape, dim, with_labels, unit_length, first_pass, dtype))
        index.add(bucket_ids, values, ids, labels)
        return index

    @classmethod
    def from_segment(
        cls, segment: Segment, *, shape: CodeShape, next_id: int, unit_length: bool
    ) -> Self:
        """Put an index around a segment that somebody else reads, bucket by bucket, when needed.

        ``next_id`` is larger than every id. Where things are is checked here, all else by
        ``segment.check`` when it is first read.
        """
        dim = segment.vectors.shape[1]
        faults = structure_problems(segment.arrays, segment.n_entries, dim, shape.n_buckets)
        if faults:
            raise CorruptIndexError("; ".join(faults))
        first_pass = None if segment.codes is None else "int8"
        empty = empty_snapshot(shape, dim, segment.labels is not None, unit_length, first_pass)
        return cls(empty.with_views([View(segment)], next_id))

    def blocks(self) -> Iterator[Block]:
        """The entries bucket by bucket, in the order in which one segment would have them.

        Buckets ascend; one without items is left out. A bucket is checked when it is read.
        """
        return blocks_of(self._snapshot.views)

    def search(
        self, vectors: Array, *, bucket_ids: MaybeArray = None, scores: MaybeArray = None,
        n_neighbors: int = 10, n_probe: int | None = None, max_candidates: int | None = None,
        fill: str = "path", filter_ids: Any = None, filter_budget: int = FILTER_BUDGET,
        exclude_self: Any = False, metric: str = "euclidean", threads: int | None = None,
        cancel: Cancel | None = None,
    ) -> SearchResult:  # fmt: skip
        """Find the nearest items among those in the buckets of each query.

        The ranking is exact: distances are computed in float64 and rounded to float32 once, equal
        ones are ordered by id, and neither ``threads`` (by default all cores this process may use)
        nor the other queries change the answer.

        Parameters
        ----------
        vectors : float[q, dim] or float[dim]
            The queries, or one alone; each has ``n_neighbors`` results, padded with id -1.
        bucket_ids : int[q, p] or int[q]
            The buckets to look into, any number of them per query. (For one query: int[p] too.)
            With ``n_probe`` the first so many; the others follow if ``fill`` has to continue.
        scores : float[q, depth, width]
            Slot scores instead: look into the ``n_probe`` occupied buckets with the largest sums of
            scores; without ``n_probe`` into the ``shape.sparsity`` buckets that they name.
        max_candidates
            Compute at most this many distances per query, in the order of buckets and of adding;
            ``truncated`` tells that something was left out.
        fill
            With fewer than ``n_neighbors`` candidates ``"path"`` continues bucket by bucket, with
            scores and ``n_probe`` by the sums of scores, with scores alone in the lexicographic
            order of the query's sorted slots, without through the buckets of the same parent, then
            of its parent, up to the root. ``"none"``: pad.
        filter_ids : set or int[m], or bool[m], or Filter
            Only these items may be found: ids, or a mask over ids (``mask[id]``; ids beyond its end
            are out), or what :meth:`make_filter` made of either. Others are no candidates. If 2,000
            items or fewer pass (and no more than ``max_candidates``), all of them are compared, in
            whatever buckets they are. Else a query continues as with ``fill``, with scores by their
            sums, until it has as many candidates that pass as it has candidates without the filter.
            ``fill="none"``: only in the query's own buckets.
        filter_budget
            With a filter no further bucket is visited after this many candidates, passing or not;
            then ``truncated`` is set. (``exact`` tells that all that pass were compared.)
        exclude_self : bool or int[q]
            An id per query that it must not find; True is short for ``arange(q)``.
        metric
            ``"euclidean"``; ``"inner_product"`` with the largest first; ``"cosine"``: 1 - cosine,
            in an index with ``unit_length``.
        cancel
            Stops the search when it is set, by another thread; then ``Cancelled`` is raised.
        """
        snapshot = self._snapshot
        request = make_request(
            snapshot, vectors, bucket_ids, scores, n_neighbors, n_probe, max_candidates, fill,
            filter_ids, filter_budget, exclude_self, metric, threads, cancel,
        )  # fmt: skip
        return run(snapshot, request)

    def make_filter(self, ids: Any) -> Filter:
        """Prepare ``filter_ids`` for several searches: which entries pass is found out once.

        It stays right when the index changes: then only what is new is read again.
        """
        prepared = ids if isinstance(ids, Filter) else Filter(validate.checked_filter(ids))
        prepared.passing(self._snapshot)
        return prepared

    def n_ranked(self, n_probe: int, prepared: Filter | None) -> int:
        """How many codes should be ranked for a search in the best ``n_probe`` with this filter.

        The fewer items pass, the more buckets it takes to find as many as without the filter.
        """
        if prepared is None:
            return n_probe
        return prepared.passing(self._snapshot).n_ranked(n_probe)

    def expected_candidates(self, n_probe: int = 1) -> float:
        """About how many items a query is compared with that looks into so many buckets."""
        return min(n_probe * self._snapshot.tree.mean_bucket_size, float(len(self)))

    def add(
        self, bucket_ids: Array, vectors: Array, ids: MaybeArray = None, labels: MaybeArray = None
    ) -> Int64s:
        """Add items as :meth:`build` does, and return their ids.

        Without ``ids`` they continue after the largest that was ever here. If an id is here
        already, nothing is added.
        """
        with self._change:
            items = self.checked_items(bucket_ids, vectors, ids, labels)
            if ids is None:  # ids continue after those that are here: see that next_id is right
                for view in self._snapshot.views:
                    view.segment.check.ids()
            else:
                present = items.ids[self._snapshot.contains(items.ids)]
                if len(present):
                    error = ValueError(f"{name_ids(present)} already in the index")
                    raise add_hint(error, "remove them first, or use upsert")
            self._snapshot = self._snapshot.with_items(items)
            return items.ids

    def upsert(
        self, ids: Array, bucket_ids: Array, vectors: Array, labels: MaybeArray = None
    ) -> None:
        """Replace items with the same ids, and add the others, in one change."""
        with self._change:
            items = self.checked_items(bucket_ids, vectors, ids, labels)
            present = items.ids[self._snapshot.contains(items.ids)]
            old = self._snapshot.without(present) if len(present) else self._snapshot
            self._snapshot = old.with_items(items)

    def remove(self, ids: Array) -> None:
        """Remove items by id. An id that is not here is refused, and then nothing is removed."""
        with self._change:
            names = validate.checked_ids("ids", ids)
            missing = names[~self._snapshot.contains(names)]
            if len(missing):
                raise ValueError(f"{name_ids(missing)} not in the index")
            if len(names):
                self._snapshot = self._snapshot.without(names)

    def compact(self) -> None:
        """Put everything into one segment, and give back the memory of removed items."""
        with self._change:
            self._snapshot = self._snapshot.compacted()

    def set_first_pass(self, first_pass: str | None) -> None:
        """Store int8 codes beside the vectors for a first pass (``"int8"``), or none (None).

        Results are the same. A search then reads the codes, a quarter of the bytes, and the vectors
        of the few items that their error bounds leave; the index grows by this quarter. It is
        faster from a disk, and in memory for single queries of 128 numbers and more.
        """
        validate.check_storage(first_pass)
        with self._change:
            self._snapshot = self._snapshot.with_first_pass(first_pass)

    @property
    def first_pass(self) -> str | None:
        """What :meth:`set_first_pass` set."""
        return self._snapshot.first_pass

    def checked_items(
        self, bucket_ids: Array, vectors: Array, ids: MaybeArray = None, labels: MaybeArray = None,
        *, next_id: int | None = None,
    ) -> Items:  # fmt: skip
        """Check items as :meth:`add` does, but not that ids are free, and change nothing."""
        start = self.next_id if next_id is None else next_id
        return validate.checked_items(self._snapshot, bucket_ids, vectors, ids, labels, start)

    @property
    def next_id(self) -> int:
        """Larger than every id that was ever in the index: where automatic ids continue."""
        return self._snapshot.next_id

    def reserve_ids(self, bound: int) -> None:
        """Let automatic ids begin at ``bound``, if they do not begin later already."""
        with self._change:
            if bound > self._snapshot.next_id:
                self._snapshot = replace(self._snapshot, next_id=bound)

    def copy(self) -> Self:
        """Return an index with the same items that goes its own way from here; none is copied."""
        with self._change:
            other = copy.copy(self)
            other._change = threading.Lock()
        return other

    def save(self, path: Place, *, generation: str | None = None, lock_held: bool = False) -> None:
        """Write the index into a directory, which is made if it is not there.

        At every moment the directory holds the old state or the new one. ``generation`` names the
        new state, from :func:`new_generation`; with ``lock_held`` the caller has the writer lock.
        Raises ``IndexLockedError`` if another writer, or a service, holds the directory, and
        ``StorageError`` if it cannot be written, or another writer has changed it since this index
        was loaded from it or saved to it.
        """
        directory = Path(path)
        generation = generation or storage.new_generation()
        with self._change:
            place = directory.resolve()
            expected = self._stored[1] if self._stored and self._stored[0] == place else None
            try:
                storage.save(directory, self._snapshot, generation, expected, lock_held=lock_held)
            except StorageError:  # the new state may be in place all the same
                if expected is not None:
                    self._stored = (place, expected | {generation})
                raise
            self._stored = (place, frozenset({generation}))

    @classmethod
    def load(cls, path: Place, *, mmap: bool = True) -> HashIndex:
        """Open an index that was saved.

        With ``mmap`` files are mapped into memory: opening takes milliseconds, processes share the
        memory, and every bucket is checked when it is first read. Else all is read and checked now.
        Raises ``CorruptIndexError`` if something is damaged, with ``mmap`` also in a later call;
        ``IncompatibleFormatError`` for another format version; ``StorageError`` if there is none.
        """
        directory = Path(path)
        snapshot, manifest = storage.load(directory, mmap=mmap)
        index = cls(snapshot)
        index._stored = (directory.resolve(), frozenset({manifest.generation}))
        return index

    @property
    def generation(self) -> str | None:
        """The state on disk that it was loaded from or last saved as; None if neither."""
        return None if self._stored is None else max(self._stored[1])

    def is_stored_as(self, generation: str) -> bool:
        """Whether this may be the state on disk: also true if a save failed at its last flush."""
        return self._stored is not None and generation in self._stored[1]

    def adopt_storage(self, copy: HashIndex) -> None:
        """Take over where a copy of this index was saved, and as what, from the copy."""
        with self._change:
            self._stored = copy._stored

    def verify(self) -> None:
        """Read everything, and raise ``CorruptIndexError`` with all that is wrong, if anything."""
        place = self._stored[0] if self._stored else None
        if problems := storage.problems_of(self._snapshot, place):
            raise CorruptIndexError("\n".join(problems))

    def stats(self, *, quick: bool = False) -> dict[str, Any]:
        """Describe the table in numbers, as a dictionary that can be written as JSON.

        ``n_items``, ``n_entries`` (items times their buckets), ``dim``, ``n_buckets``,
        ``n_occupied``, ``empty_share``, ``largest_bucket``, ``mean_bucket`` (of occupied ones),
        ``gini`` (of all sizes: 0 even, 1 all in one), ``expected_candidates`` (items in the buckets
        of an item, on average; for several from a sample), ``expected_speedup``, ``n_segments``,
        ``n_removed_entries``, ``bytes_vectors``, ``bytes_other``. With labels also, of the entries
        that have one, ``purity`` (share of entries of their bucket's largest class) and
        ``classes``: for each label ``n_entries``, ``n_buckets`` it lies in, and ``purity`` (share
        of its class in the bucket of one of its entries, on average). ``quick`` reads the sizes
        of buckets alone: nothing of labels, and buckets of an item as if they had none in common.
        """
        return inspect.stats(self._snapshot.settled, quick)

    def explain(
        self, vector: Array, bucket_ids: MaybeArray = None, scores: MaybeArray = None,
        *, shown_scores: MaybeArray = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Explain the search for one vector; the options are those of :meth:`search`.

        ``shown_scores`` are slot scores to show if it is ``bucket_ids`` that say where to look.

        Returns ``levels``: from the top down the slots of the query's own buckets, each with score,
        rank, and how many buckets and entries lie below it; ``buckets``: those looked into, in
        order, each with ``path``, ``size``, ``classes`` (label: count, largest first), ``score``,
        how many ``candidates`` it gave, and whether it is a ``fill``; ``results``: id, distance,
        label, and the ``buckets`` it came from (none if all items that pass a filter are compared);
        ``candidates``, ``truncated``, ``exact``, ``n_items``.
        """
        allowed = HashIndex.search.__kwdefaults__ or {}
        if unknown := options.keys() - allowed.keys():
            raise ValueError(f"unknown option {min(unknown)!r} (allowed: {', '.join(allowed)})")
        snapshot = self._snapshot.settled
        query = validate.checked_queries(vector, snapshot.dim)
        if len(query) != 1:
            raise ValueError(f"vector has {len(query)} rows, must be one vector")
        request = make_request(snapshot, query, bucket_ids, scores, **options)
        shown = None
        if shown_scores is not None:
            shown = validate.checked_scores(shown_scores, 1, snapshot.shape)[0]
        return inspect.explain(snapshot, request, shown)

    def item(self, item_id: int) -> dict[str, Any]:
        """Return one item: ``id``, ``label`` (None without), ``bucket_ids``, ``vector``."""
        return inspect.item(self._snapshot, int(validate.checked_ids("ids", [item_id])[0]))

    def bucket(
        self, bucket_id: int, *, start: int = 0, limit: int = 100
    ) -> tuple[Int64s, Int64s | None]:
        """Return ids and labels of the items of a bucket, in the order in which they came."""
        number = int(self.shape.bucket_ids(self.shape.paths(bucket_id)))
        first = checked_count("start", start, at_least=0)
        part = slice(first, first + checked_count("limit", limit))
        ids, labels = inspect.bucket_items(self._snapshot, number)
        return ids[part], None if labels is None else labels[part]

    def node(self, path: Sequence[int] = ()) -> dict[str, Any]:
        """Describe a node of the tree, the root by default, and its occupied children.

        ``path``, ``n_buckets`` (occupied), ``n_entries``, ``purity`` and ``classes`` (label: count,
        largest first; both None without labels), ``children``: the same for each ``slot`` below.
        """
        return inspect.node(self._snapshot.settled, validate.checked_path(path, self.shape))

    def tree(self) -> dict[str, Any]:
        """Describe all occupied nodes as :meth:`node` does; buckets have no ``children``."""
        return inspect.tree(self._snapshot.settled)

    def largest_buckets(self, path: Sequence[int] = (), limit: int = 10) -> Int64s:
        """Return the ids of the fullest buckets below a node, fullest first."""
        tree = self._snapshot.settled.tree
        low, high = tree.below(validate.checked_path(path, self.shape), self.shape)
        live = tree.live[low:high]
        n_shown = min(checked_count("limit", limit), int((live > 0).sum()))
        return tree.buckets[low + np.argsort(-live, kind="stable")[:n_shown]]

    def sample(self, n: int, *, random_state: int = 0) -> Int64s:
        """Return the ids of ``n`` items drawn at random, or of all if there are fewer."""
        return inspect.sample_ids(
            self._snapshot.settled, checked_count("n", n), checked_seed(random_state)
        )

    def labels_of(self, ids: Array) -> Int64s:
        """Return labels by id, in the same shape; -1 (``NO_LABEL``) for none, and for no item."""
        names = np.asarray(ids, dtype=np.int64)
        return self._snapshot.labels_of(names.ravel()).reshape(names.shape)

    def contains(self, ids: Array) -> npt.NDArray[np.bool_]:
        """Return for each id whether there is such an item, in the same shape."""
        names = np.asarray(ids, dtype=np.int64)
        return self._snapshot.contains(names.ravel()).reshape(names.shape)

    def entries(self) -> tuple[Int64s, Int64s]:
        """Return bucket id and item id of all entries: an item is named once per bucket."""
        snapshot = self._snapshot.settled
        numbers, ids, _ = snapshot.entries()
        return snapshot.tree.buckets[numbers], ids

    @property
    def shape(self) -> CodeShape:
        """Shape of the table."""
        return self._snapshot.shape

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self._snapshot.dim

    @property
    def dtype(self) -> str:
        """Type of the stored vectors: float32 or float16."""
        return self._snapshot.dtype

    @property
    def unit_length(self) -> bool:
        """Whether vectors are scaled to length 1 when they are added."""
        return self._snapshot.unit_length

    @property
    def max_norm(self) -> float:
        """At least as large as the norm of every vector."""
        return max((view.segment.max_norm for view in self._snapshot.views), default=0.0)

    @property
    def has_labels(self) -> bool:
        """Whether items may have labels."""
        return self._snapshot.with_labels

    def __contains__(self, item_id: int) -> bool:
        return bool(self.contains(item_id))

    def __len__(self) -> int:
        return self._snapshot.n_items

    def __repr__(self) -> str:
        n_occupied = int((self._snapshot.settled.tree.live > 0).sum())
        buckets = f"{n_occupied} of {self.shape.n_buckets} buckets occupied"
        return f"HashIndex({len(self)} items, dim={self.dim}, {buckets})"


def warmup(*, elsewhere: bool = False) -> None:
    """Compile all that the index needs, or load it from the cache: then no search waits for it.

    ``elsewhere``: also for segments whose vectors are not all here, see ``NoCheck.vectors_here``.
    """
    vectors = np.zeros((1, 1), dtype=np.float32)
    index = HashIndex.build([0], vectors, shape=CodeShape(width=2, depth=1))
    index.search(vectors, bucket_ids=np.array([[0]]), threads=1)
    index.explain(vectors[0], bucket_ids=[0])
    index.set_first_pass("int8")
    if elsewhere:
        missing.warmup(index._snapshot.table)
    nearest.warmup()
