"""The index: a table of buckets that can be searched, changed, stored and inspected."""

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
FsPath = str | os.PathLike[str]


class HashIndex:
    """Items in buckets: exact search among the few that share a bucket with the query.

    Created by :meth:`build` or :meth:`load`. A search uses one snapshot of the index from beginning
    to end: a change creates a new snapshot, which replaces the old one at once. Searches may run in
    any number of threads; changes wait for each other.

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
        # Where it is stored, and the generations one of which is on the disk: two after a save
        # whose last flush failed.
        self._stored: tuple[Path, frozenset[str]] | None = None

    @classmethod
    def build(
        cls, bucket_ids: Array, vectors: Array, ids: MaybeArray = None, labels: MaybeArray = None,
        *, shape: CodeShape, unit_length: bool = False, first_pass: str | None = None,
        dtype: str = "float32",
    ) -> HashIndex:  # fmt: skip
        """Build an index of ``vectors`` (n, dim) in buckets ``bucket_ids`` (n, sparsity) or (n,).

        Duplicate buckets of an item count once. Vectors are stored as float32; NaN and infinite
        values are refused. ``ids`` are unique and not negative, by default 0..n-1. ``labels`` are
        classes, for :meth:`stats`, :meth:`explain` and :meth:`labels_of`, -1 (``NO_LABEL``) for an
        item without; if not given, the index never has labels. ``shape`` gives the range of bucket
        ids and the tree for filling. With ``unit_length`` vectors are scaled to length 1 when they
        are added, for searches with ``metric="cosine"``; zero vectors are refused. For
        ``first_pass`` see :meth:`set_first_pass`. With ``dtype="float16"`` vectors are rounded to
        float16 when they are added, and take half the memory; distances are exact for the rounded
        vectors. Not with ``unit_length``.
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
        """Wrap a segment whose buckets are read on demand by ``segment.check``.

        ``next_id`` is larger than every id. The structure of the segment is checked here, the rest
        by ``segment.check`` when it is first read.
        """
        dim = segment.vectors.shape[1]
        problems = structure_problems(segment.arrays, segment.n_entries, dim, shape.n_buckets)
        if problems:
            raise CorruptIndexError("; ".join(problems))
        first_pass = None if segment.codes is None else "int8"
        empty = empty_snapshot(shape, dim, segment.labels is not None, unit_length, first_pass)
        return cls(empty.with_views([View(segment)], next_id))

    def blocks(self) -> Iterator[Block]:
        """The entries bucket by bucket, in the order of a single merged segment.

        Buckets ascend; empty ones are left out. A bucket is checked when it is read.
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
        nor the other queries change the result.

        Parameters
        ----------
        vectors : float[q, dim] or float[dim]
            The queries, or a single one; each has ``n_neighbors`` results, padded with id -1.
        bucket_ids : int[q, p] or int[q]
            The buckets to search, any number of them per query. (For a single query: int[p] too.)
            With ``n_probe`` only this many of them; the others are used to ``fill``.
        scores : float[q, depth, width]
            Slot scores instead: search the ``n_probe`` occupied buckets with the largest sums of
            scores; without ``n_probe`` the ``shape.sparsity`` buckets of the best slots.
        max_candidates
            Compute at most this many distances per query, in the order of buckets and of insertion;
            ``truncated`` is set if something was left out.
        fill
            With fewer than ``n_neighbors`` candidates ``"path"`` continues bucket by bucket: with
            scores and ``n_probe`` by sum of scores; with only scores in the lexicographic order of
            the query's sorted slots; without scores through the buckets of the same parent, then of
            its parent, up to the root. ``"none"``: pad.
        filter_ids : set or int[m], or bool[m], or Filter
            Only these items may be returned: ids, or a mask over ids (``mask[id]``; ids beyond its
            end do not pass), or a filter of :meth:`make_filter`. Others are not candidates. If
            2,000 items or fewer pass (and no more than ``max_candidates``), all of them are
            compared, whatever their buckets. Else a query continues as with ``fill``, with scores
            by their sums, until it has as many candidates that pass as it has candidates without
            the filter. ``fill="none"``: only in the query's own buckets.
        filter_budget
            With a filter no further bucket is visited after this many candidates, passing or not;
            then ``truncated`` is set. (``exact`` is set if all that pass were compared.)
        exclude_self : bool or int[q]
            An id per query that is excluded from its results; True is short for ``arange(q)``.
        metric
            ``"euclidean"``; ``"inner_product"`` with the largest first; ``"cosine"``: 1 - cosine,
            in an index with ``unit_length``.
        cancel
            Cancels the search when another thread sets it; then ``Cancelled`` is raised.
        """
        snapshot = self._snapshot
        request = make_request(
            snapshot, vectors, bucket_ids, scores, n_neighbors, n_probe, max_candidates, fill,
            filter_ids, filter_budget, exclude_self, metric, threads, cancel,
        )  # fmt: skip
        return run(snapshot, request)

    def make_filter(self, ids: Any) -> Filter:
        """Prepare ``filter_ids`` for several searches: ids are looked up once.

        The filter stays valid when the index changes: then only new segments are looked up.
        """
        prepared = ids if isinstance(ids, Filter) else Filter(validate.checked_filter(ids))
        prepared.passing(self._snapshot)
        return prepared

    def n_ranked(self, n_probe: int, prepared: Filter | None) -> int:
        """Number of codes to rank for a search in the best ``n_probe`` with this filter.

        The fewer items pass, the more buckets are needed for as many candidates.
        """
        if prepared is None:
            return n_probe
        return prepared.passing(self._snapshot).n_ranked(n_probe)

    def expected_candidates(self, n_probe: int = 1) -> float:
        """Estimated number of candidates of a query that is searched in ``n_probe`` buckets."""
        return min(n_probe * self._snapshot.tree.mean_bucket_size, float(len(self)))

    def most_candidates(self, n_buckets: int = 1) -> int:
        """An upper bound on the items compared with a query that looks into so many buckets."""
        return min(n_buckets * self._snapshot.largest_bucket, len(self))

    def add(
        self, bucket_ids: Array, vectors: Array, ids: MaybeArray = None, labels: MaybeArray = None
    ) -> Int64s:
        """Add items as :meth:`build` does, and return their ids.

        Without ``ids`` they continue after the largest one ever used. If an id already exists,
        nothing is added.
        """
        with self._change:
            items = self.checked_items(bucket_ids, vectors, ids, labels)
            if ids is None:  # next_id must be right: check the ids that exist
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
        """Replace items with the same ids, and add the others, atomically."""
        with self._change:
            items = self.checked_items(bucket_ids, vectors, ids, labels)
            present = items.ids[self._snapshot.contains(items.ids)]
            old = self._snapshot.without(present) if len(present) else self._snapshot
            self._snapshot = old.with_items(items)

    def remove(self, ids: Array) -> None:
        """Remove items by id. An unknown id is an error, and then nothing is removed."""
        with self._change:
            item_ids = validate.checked_ids("ids", ids)
            unknown_ids = item_ids[~self._snapshot.contains(item_ids)]
            if len(unknown_ids):
                raise ValueError(f"{name_ids(unknown_ids)} not in the index")
            if len(item_ids):
                self._snapshot = self._snapshot.without(item_ids)

    def compact(self) -> None:
        """Merge everything into one segment, and free the memory of removed items."""
        with self._change:
            self._snapshot = self._snapshot.compacted()

    def set_first_pass(self, first_pass: str | None) -> None:
        """Store int8 codes beside the vectors for a first pass (``"int8"``), or none (None).

        Results are the same. A search then reads the codes, a quarter of the bytes, and only the
        vectors of the few items that their error bounds do not rule out; the index grows by this
        quarter. Faster from a disk, and in memory for single queries of 128 numbers or more.
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
        """Check items as :meth:`add` does, except that ids are unused, without adding them."""
        start = self.next_id if next_id is None else next_id
        return validate.checked_items(self._snapshot, bucket_ids, vectors, ids, labels, start)

    @property
    def next_id(self) -> int:
        """The next automatic id: larger than every id that was ever in the index."""
        return self._snapshot.next_id

    def reserve_ids(self, bound: int) -> None:
        """Let automatic ids start at ``bound`` or later."""
        with self._change:
            if bound > self._snapshot.next_id:
                self._snapshot = replace(self._snapshot, next_id=bound)

    def copy(self) -> Self:
        """Return an independent index with the same items, which share their memory."""
        with self._change:
            other = copy.copy(self)
            other._change = threading.Lock()
        return other

    def save(self, path: FsPath, *, generation: str | None = None, lock_held: bool = False) -> None:
        """Write the index to a directory, which is created if it does not exist.

        Atomic: at every moment the directory holds the old state or the new one. ``generation``
        names the new state, see :func:`new_generation`; with ``lock_held`` the caller has the
        writer lock. Raises ``IndexLockedError`` if another writer, or a service, holds the lock,
        and ``StorageError`` if the directory cannot be written, or was changed by another writer
        since this index was loaded from it or saved to it.
        """
        directory = Path(path)
        generation = generation or storage.new_generation()
        with self._change:
            stored_path = directory.resolve()
            expected = self._stored[1] if self._stored and self._stored[0] == stored_path else None
            try:
                storage.save(directory, self._snapshot, generation, expected, lock_held=lock_held)
            except StorageError:  # the new state may be in place nevertheless
                if expected is not None:
                    self._stored = (stored_path, expected | {generation})
                raise
            self._stored = (stored_path, frozenset({generation}))

    @classmethod
    def load(cls, path: FsPath, *, mmap: bool = True) -> HashIndex:
        """Open an index that was saved.

        With ``mmap`` files are mapped into memory: opening takes milliseconds, processes share the
        memory, and every bucket is checked when it is first read. Otherwise all is read and checked
        now. Raises ``CorruptIndexError`` if something is damaged, with ``mmap`` also in a later
        call; ``IncompatibleFormatError`` for another format version; ``StorageError`` if there is
        no index.
        """
        directory = Path(path)
        snapshot, manifest = storage.load(directory, mmap=mmap)
        index = cls(snapshot)
        index._stored = (directory.resolve(), frozenset({manifest.generation}))
        return index

    @property
    def generation(self) -> str | None:
        """The generation that it was loaded from or last saved as; None if neither."""
        return None if self._stored is None else max(self._stored[1])

    def is_stored_as(self, generation: str) -> bool:
        """Whether this may be the state on disk: also true if a save failed at its last flush."""
        return self._stored is not None and generation in self._stored[1]

    def adopt_storage(self, copy: HashIndex) -> None:
        """Take over the directory and generation of a copy of this index that was saved."""
        with self._change:
            self._stored = copy._stored

    def verify(self) -> None:
        """Read everything, and raise ``CorruptIndexError`` with all problems, if there are any."""
        directory = self._stored[0] if self._stored else None
        if problems := storage.problems_of(self._snapshot, directory):
            raise CorruptIndexError("\n".join(problems))

    def stats(self, *, quick: bool = False) -> dict[str, Any]:
        """Statistics of the table, as a dictionary that can be written as JSON.

        ``n_items``, ``n_entries`` (items times their buckets), ``dim``, ``n_buckets``,
        ``n_occupied``, ``empty_share``, ``largest_bucket``, ``mean_bucket`` (of occupied ones),
        ``gini`` (of all sizes: 0 even, 1 all in one), ``expected_candidates`` (items in the buckets
        of an item, on average; for several from a sample), ``expected_speedup``, ``n_segments``,
        ``n_removed_entries``, ``bytes_vectors``, ``bytes_other``. With labels also, of the entries
        that have one, ``purity`` (share of entries of their bucket's largest class) and
        ``classes``: for each label ``n_entries``, ``n_buckets`` that it is in, and ``purity``
        (share of its class in the bucket of one of its entries, on average). ``quick`` uses only
        the sizes of buckets: no labels, and items in several buckets of an item count repeatedly.
        """
        return inspect.stats(self._snapshot.with_one_tree, quick)

    def explain(
        self, vector: Array, bucket_ids: MaybeArray = None, scores: MaybeArray = None,
        *, shown_scores: MaybeArray = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Explain the search for one vector; the options are those of :meth:`search`.

        ``shown_scores`` are slot scores to show for a search by ``bucket_ids``.

        Returns ``levels``: from the top down the slots of the query's own buckets, each with score,
        rank, and the number of buckets and entries below it; ``buckets``: those visited, in order,
        each with ``path``, ``size``, ``classes`` (label: count, largest first), ``score``, its
        number of ``candidates``, and whether it is a ``fill``; ``results``: id, distance, label,
        and the ``buckets`` it was found in (none if all items that pass a filter are compared);
        ``candidates``, ``truncated``, ``exact``, ``n_items``.
        """
        allowed = HashIndex.search.__kwdefaults__ or {}
        if unknown := options.keys() - allowed.keys():
            raise ValueError(f"unknown option {min(unknown)!r} (allowed: {', '.join(allowed)})")
        snapshot = self._snapshot.with_one_tree
        query = validate.checked_queries(vector, snapshot.dim)
        if len(query) != 1:
            raise ValueError(f"vector has {len(query)} rows, must be one vector")
        request = make_request(snapshot, query, bucket_ids, scores, **options)
        scores_to_show = None
        if shown_scores is not None:
            scores_to_show = validate.checked_scores(shown_scores, 1, snapshot.shape)[0]
        return inspect.explain(snapshot, request, scores_to_show)

    def item(self, item_id: int) -> dict[str, Any]:
        """Return one item: ``id``, ``label`` (None without), ``bucket_ids``, ``vector``."""
        return inspect.item(self._snapshot, int(validate.checked_ids("ids", [item_id])[0]))

    def bucket(
        self, bucket_id: int, *, start: int = 0, limit: int = 100
    ) -> tuple[Int64s, Int64s | None]:
        """Return ids and labels of the items of a bucket, in order of insertion."""
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
        return inspect.node(self._snapshot.with_one_tree, validate.checked_path(path, self.shape))

    def tree(self) -> dict[str, Any]:
        """Describe all occupied nodes as :meth:`node` does; buckets have no ``children``."""
        return inspect.tree(self._snapshot.with_one_tree)

    def largest_buckets(self, path: Sequence[int] = (), limit: int = 10) -> Int64s:
        """Return the ids of the fullest buckets below a node, fullest first."""
        tree = self._snapshot.with_one_tree.tree
        low, high = tree.below(validate.checked_path(path, self.shape), self.shape)
        live = tree.live[low:high]
        n_shown = min(checked_count("limit", limit), int((live > 0).sum()))
        return tree.buckets[low + np.argsort(-live, kind="stable")[:n_shown]]

    def sample(self, n: int, *, random_state: int = 0) -> Int64s:
        """Return the ids of ``n`` items drawn at random, or of all if there are fewer."""
        return inspect.sample_ids(
            self._snapshot.with_one_tree, checked_count("n", n), checked_seed(random_state)
        )

    def labels_of(self, ids: Array) -> Int64s:
        """Return labels by id, in the same shape; -1 (``NO_LABEL``) for none, or an unknown id."""
        item_ids = np.asarray(ids, dtype=np.int64)
        return self._snapshot.labels_of(item_ids.ravel()).reshape(item_ids.shape)

    def contains(self, ids: Array) -> npt.NDArray[np.bool_]:
        """Return for each id whether it is in the index, in the same shape."""
        item_ids = np.asarray(ids, dtype=np.int64)
        return self._snapshot.contains(item_ids.ravel()).reshape(item_ids.shape)

    def entries(self) -> tuple[Int64s, Int64s]:
        """Return bucket id and item id of all entries: an item has one per bucket."""
        snapshot = self._snapshot.with_one_tree
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
        """An upper bound of the norms of all vectors."""
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
        n_occupied = int((self._snapshot.with_one_tree.tree.live > 0).sum())
        buckets = f"{n_occupied} of {self.shape.n_buckets} buckets occupied"
        return f"HashIndex({len(self)} items, dim={self.dim}, {buckets})"


def warmup(*, elsewhere: bool = False) -> None:
    """Compile the kernels of the index, or load them from the cache: then no search waits for it.

    ``elsewhere``: also those for segments with remote vectors, see ``NoCheck.vectors_here``.
    """
    vectors = np.zeros((1, 1), dtype=np.float32)
    index = HashIndex.build([0], vectors, shape=CodeShape(width=2, depth=1))
    index.search(vectors, bucket_ids=np.array([[0]]), threads=1)
    index.explain(vectors[0], bucket_ids=[0])
    index.set_first_pass("int8")
    if elsewhere:
        missing.warmup(index._snapshot.table)
    nearest.warmup()
