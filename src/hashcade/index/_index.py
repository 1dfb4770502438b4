"""The index: a table of buckets to search in, to change, to store and to look into."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hashcade.codes._check import checked_count
from hashcade.codes._shape import CodeShape
from hashcade.errors import CorruptIndexError, StorageError
from hashcade.index import _browse as browse
from hashcade.index import _check as check
from hashcade.index import _store as store
from hashcade.index._direct import search_directly
from hashcade.index._explain import explain
from hashcade.index._origin import forget_origin
from hashcade.index._search import SearchResult, checked_request, run
from hashcade.index._snapshot import Snapshot, empty_snapshot
from hashcade.index._stats import stats
from hashcade.index._table import build_segment, new_uid
from hashcade.index._verify import problems


class HashIndex:
    """Items in buckets: exact search among the few that share a bucket with the query.

    Made by :meth:`build` or :meth:`load`. It needs neither a model nor torch: bucket ids may come
    from a learned hasher, from a baseline, or from you.

    A search looks at one state of the index from beginning to end, whatever is added or removed
    meanwhile: changes make a new state and put it in place at once. Searches may run in any
    number of threads; changes wait for each other.

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
        self._home: tuple[Path, frozenset[str]] | None = None  # directory, generations left there

    # -- making ------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        bucket_ids: npt.ArrayLike,
        vectors: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        *,
        shape: CodeShape,
    ) -> HashIndex:
        """Build an index.

        Parameters
        ----------
        bucket_ids : int[n, sparsity] or int[n]
            The buckets of each item. A bucket that is named twice for an item counts once.
        vectors : float[n, dim]
            What results are ranked by; kept as float32. NaN and infinite values are refused.
        ids : int[n], optional
            Names of the items, not negative, none twice. Default: 0..n-1.
        labels : int[n], optional
            Classes of the items, for :meth:`stats` and :meth:`explain`. All items or none.
        shape
            Shape of the table, which gives the range of bucket ids and the tree for filling.
        """
        if not isinstance(shape, CodeShape):
            raise ValueError(f"shape={shape!r} must be a CodeShape")
        values = check.checked_vectors("vectors", vectors)
        index = cls(empty_snapshot(shape, values.shape[1], labels is not None))
        index.add(bucket_ids, values, ids, labels)
        return index

    # -- searching ---------------------------------------------------------------------------------

    def search(
        self,
        vectors: npt.ArrayLike,
        *,
        bucket_ids: npt.ArrayLike | None = None,
        scores: npt.ArrayLike | None = None,
        n_neighbors: int = 10,
        n_probe: int | None = None,
        max_candidates: int | None = None,
        fill: str = "path",
        filter_ids: Any = None,
        exclude_self: Any = False,
        metric: str = "euclidean",
        threads: int | None = None,
    ) -> SearchResult:
        """Find the nearest items among those in the buckets of each query.

        The ranking is exact: distances are computed in float64 and rounded to float32 once, and
        equal distances are ordered by id. The answer depends neither on the number of threads nor
        on which queries are asked together.

        Parameters
        ----------
        vectors : float[q, dim] or float[dim]
            The queries; one vector alone is one query.
        bucket_ids : int[q, p] or int[q]
            The buckets to look into, any number of them per query. (For one query: int[p] too.)
        scores : float[q, depth, width]
            Slot scores instead: without ``n_probe`` the buckets of the hash function are looked
            into, ``shape.sparsity`` of them. NaN and +inf are refused.
        n_neighbors
            Results per query. If fewer exist, rows are padded with id -1.
        n_probe
            With scores: look into this many occupied buckets, those with the largest sums of slot
            scores over the levels; equal sums by bucket id.
        max_candidates
            Compute at most this many distances per query. Buckets are visited in order and items
            in the order in which they were added, so what is left out is always the same;
            ``truncated`` tells that something was.
        fill
            What to do with fewer than ``n_neighbors`` candidates. ``"path"``: go on bucket by
            bucket, with scores in the lexicographic order of the query's sorted slots, without
            scores through the buckets of the same parent, then of the parent's parent, up to the
            root. ``"none"``: pad.
        filter_ids : set or int[m], or bool[m]
            Only these items may be found: ids, or a mask over ids (``mask[id]``; ids beyond its end
            are out). Others are neither candidates nor results, and filling goes on past them.
        exclude_self : bool or int[q]
            An id per query that it must not find; True is short for ``arange(q)``, for queries
            that are the items of an index built without ids, in order.
        metric
            ``"euclidean"``, or ``"inner_product"`` with the largest first.
        threads
            At most this many. Default: all cores this process may use.
        """
        snapshot = self._snapshot
        if (
            scores is None
            and n_probe is None
            and max_candidates is None
            and filter_ids is None
            and exclude_self is False
        ):
            result = search_directly(
                snapshot, vectors, bucket_ids, n_neighbors, fill, metric, threads
            )
            if result is not None:
                return result
        request = checked_request(
            snapshot, vectors, bucket_ids=bucket_ids, scores=scores, n_neighbors=n_neighbors,
            n_probe=n_probe, max_candidates=max_candidates, fill=fill, filter_ids=filter_ids,
            exclude_self=exclude_self, metric=metric, threads=threads,
        )  # fmt: skip
        return run(snapshot, request)

    # -- changing ----------------------------------------------------------------------------------

    def add(
        self,
        bucket_ids: npt.ArrayLike,
        vectors: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> npt.NDArray[np.int64]:
        """Add items, and return their ids; the arguments are those of :meth:`build`.

        Without ``ids`` they go on after the largest id that was ever here. An id that is here
        already is refused, and then nothing is added.
        """
        with self._change:
            old = self._snapshot
            values = check.checked_vectors("vectors", vectors, old.dim)
            n = len(values)
            buckets = check.checked_buckets(
                bucket_ids, n, old.shape, several=old.shape.sparsity, of="item"
            )
            if (labels is not None) != old.with_labels:
                has = "has labels" if old.with_labels else "has no labels"
                raise ValueError(f"labels must be given for all items or none: the index {has}")
            classes = None if labels is None else check.checked_labels(labels, n)
            if ids is None:
                names = check.following_ids(old.next_id, n)
            else:
                names = check.checked_ids("ids", ids, n)
                present = [name for name, here in zip(names, self._has(names), strict=True) if here]
                if present:
                    raise ValueError(
                        f"{check.name_ids(np.array(present))} already in the index; remove first"
                    )
            if n == 0:
                return names
            segment = build_segment(buckets, values, names, classes)
            self._snapshot = old.with_segment(segment, max(old.next_id, int(names.max()) + 1))
            return names

    def remove(self, ids: npt.ArrayLike) -> None:
        """Remove items by id. An id that is not here is refused, and then nothing is removed."""
        with self._change:
            old = self._snapshot
            names = check.checked_ids("ids", ids)
            if len(names) == 0:
                return
            missing = np.ones(len(names), dtype=np.bool_)
            views = []
            for view in old.views:
                entries, found = view.segment.entries_of(names)
                if len(view.dead) and len(entries):
                    entries = entries[view.dead[entries] == 0]
                    found = np.isin(names, view.segment.ids[entries])
                n_found = int(found.sum())
                views.append(view.without(entries, n_found) if n_found else view)
                missing &= ~found
            if missing.any():
                raise ValueError(f"{check.name_ids(names[missing])} not in the index")
            self._snapshot = old.with_views(tuple(views))

    def compact(self) -> None:
        """Put everything into one segment, and give back the memory of removed items."""
        with self._change:
            self._snapshot = self._snapshot.compacted()

    def _reserve_ids(self, bound: int) -> None:
        """Let ids that nobody chose begin at ``bound``, if they do not begin later already."""
        with self._change:
            if bound > self._snapshot.next_id:
                self._snapshot = replace(self._snapshot, next_id=bound)

    def copy(self) -> HashIndex:
        """Return an index with the same items that goes its own way from here.

        No item is copied: both look at the same arrays, which nobody writes to. So a change can
        be tried on a copy, and be kept or dropped as a whole.
        """
        with self._change:
            other = HashIndex(self._snapshot)
            other._home = self._home
        return other

    # -- storing -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index into a directory, which is made if it is not there.

        At every moment, whatever happens, the directory holds the old state or the new one. What
        is there already and did not change is not written again. Other indexes that were loaded
        from the directory go on with what they loaded. What the directory says of the origin of
        an index (:func:`read_origin`) stays if this one was loaded from it or saved to it before;
        else it is removed.

        Raises
        ------
        IndexLockedError
            Another writer is at it, or a service that can change it.
        StorageError
            The directory cannot be written, or another writer has changed it since this index was
            loaded from it or saved to it: nothing of theirs is overwritten unseen.
        """
        self._save_as(path, new_uid())

    def _save_as(
        self, path: str | os.PathLike[str], generation: str, *, held: bool = False
    ) -> None:
        """Save under a name of the generation that the caller knows before it is there.

        With ``held`` the caller has the lock of the directory.
        """
        directory = Path(path)
        with self._change:
            here = directory.resolve()
            expected = self._home[1] if self._home and self._home[0] == here else None
            try:
                store.save(directory, self._snapshot, generation, expected, held=held)
            except StorageError:  # the new state may be in place all the same
                if expected is not None:
                    self._home = (here, expected | {generation})
                raise
            self._home = (here, frozenset({generation}))
            if expected is None:
                forget_origin(directory)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = True) -> HashIndex:
        """Open an index that was saved.

        Parameters
        ----------
        path
            The directory.
        mmap
            True: map the files into memory; opening takes milliseconds, processes share the
            memory, and every bucket is checked when it is first read. False: read and check
            everything now.

        Raises
        ------
        CorruptIndexError
            Something is damaged. With ``mmap`` this may also be raised by a later call that reads
            a damaged bucket: an error, never a wrong answer.
        IncompatibleFormatError
            The format is of another version.
        StorageError
            There is no index, or it cannot be read.
        """
        directory = Path(path)
        snapshot, manifest = store.load(directory, mmap=mmap)
        index = cls(snapshot)
        index._home = (directory.resolve(), frozenset({manifest.generation}))
        return index

    def verify(self) -> None:
        """Read everything, and raise ``CorruptIndexError`` with all that is wrong, if anything."""
        found = problems(self._snapshot, self._home[0] if self._home else None)
        if found:
            raise CorruptIndexError("\n".join(found))

    # -- looking into it ---------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Describe the table in numbers, as a dictionary that can be written as JSON.

        ``n_items``, ``n_entries`` (items times their buckets), ``dim``, ``n_buckets``,
        ``n_occupied``, ``empty_share``, ``largest_bucket``, ``mean_bucket`` (of occupied ones),
        ``gini`` (of the sizes of all buckets: 0 even, 1 everything in one),
        ``expected_candidates`` (items in the buckets of an item, on average, itself included; for
        several buckets per item from a sample), ``expected_speedup``, ``n_segments``,
        ``n_removed_entries``, ``bytes_vectors``, ``bytes_other``. With labels also ``purity``
        (share of entries of their bucket's largest class) and ``classes``: for each label
        ``n_entries``, ``n_buckets`` it lies in, and ``purity`` (how much of the bucket of one of
        its items is of the same class, on average).
        """
        return stats(self._snapshot)

    def explain(
        self,
        vector: npt.ArrayLike,
        bucket_ids: npt.ArrayLike | None = None,
        scores: npt.ArrayLike | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Explain the search for one vector; the options are those of :meth:`search`.

        Returns
        -------
        dict
            ``levels``: from the top down the slots of the query's own buckets, each with its score
            and rank (with scores), and how many buckets and entries lie below it. ``buckets``:
            those looked into, in order, each with ``path``, ``size``, ``classes`` (label: count,
            largest first), ``score``, how many entries were ``looked_at``, and whether it is a
            ``fill``. ``results``: id, distance, label, and the ``buckets`` it came from.
            ``candidates``, ``truncated``, ``n_items``.
        """
        return self._explain(vector, None, bucket_ids, scores, **options)

    def _explain(
        self,
        vector: npt.ArrayLike,
        shown: npt.NDArray[Any] | None,
        bucket_ids: npt.ArrayLike | None = None,
        scores: npt.ArrayLike | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Explain with scores to show even if it is ``bucket_ids`` that say where to look."""
        settings: dict[str, Any] = {
            "n_neighbors": 10, "n_probe": None, "max_candidates": None, "fill": "path",
            "filter_ids": None, "exclude_self": False, "metric": "euclidean", "threads": None,
        }  # fmt: skip
        unknown = options.keys() - settings.keys()
        if unknown:
            raise ValueError(f"unknown option {min(unknown)!r}, known are {', '.join(settings)}")
        settings.update(options)
        snapshot = self._snapshot
        query = check.checked_queries(vector, snapshot.dim)
        if len(query) != 1:
            raise ValueError(f"vector has {len(query)} rows, must be one vector")
        request = checked_request(snapshot, query, bucket_ids=bucket_ids, scores=scores, **settings)
        return explain(snapshot, request, shown)

    def item(self, item_id: int) -> dict[str, Any]:
        """Return what is known of one item: ``id``, ``label``, ``bucket_ids``, ``vector``."""
        return browse.find_item(self._snapshot, int(check.checked_ids("ids", [item_id])[0]))

    def bucket(
        self, bucket_id: int, *, start: int = 0, limit: int = 100
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Return ids and labels of the items of a bucket, in the order in which they came."""
        if start < 0:
            raise ValueError(f"start={start} must be >= 0")
        return browse.bucket_items(
            self._snapshot, int(self.shape.bucket_ids(self.shape.paths(bucket_id))),
            start, checked_count("limit", limit),
        )  # fmt: skip

    def node(self, path: Sequence[int] = ()) -> dict[str, Any]:
        """Describe a node of the tree, the root by default, and its occupied children.

        Returns
        -------
        dict
            ``path``, ``n_buckets`` (occupied ones below it), ``n_entries``, ``purity`` (share of
            entries of their bucket's largest class), ``classes`` (label: count, largest first) and
            ``children``: the same for each occupied ``slot`` below, in ascending order. Without
            labels ``purity`` and ``classes`` are None.
        """
        slots = check.checked_path(path, self.shape)
        return browse.node(self._snapshot, slots)

    def sample(self, n: int, *, random_state: int = 0) -> npt.NDArray[np.int64]:
        """Return the ids of ``n`` items drawn at random, or of all if there are fewer."""
        if random_state < 0:
            raise ValueError(f"random_state={random_state} must be >= 0")
        return browse.sample_ids(self._snapshot, checked_count("n", n), random_state)

    # -- temporary stand-ins until the rebuilt index lands

    def labels_of(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Labels of ids, -1 for none."""
        wanted = np.asarray(ids, dtype=np.int64)
        result = np.full(wanted.shape, -1, dtype=np.int64)
        for at in np.ndindex(wanted.shape):
            if wanted[at] >= 0 and int(wanted[at]) in self:
                label = self.item(int(wanted[at]))["label"]
                result[at] = -1 if label is None else label
        return result

    def upsert(
        self,
        ids: npt.ArrayLike,
        bucket_ids: npt.ArrayLike,
        vectors: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        """Replace or add."""
        wanted = np.asarray(ids, dtype=np.int64)
        self.remove(wanted[self._has(wanted)])
        self.add(bucket_ids, vectors, wanted, labels)

    # -- small things ----------------------------------------------------------------------

    def _has(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        here = np.zeros(len(ids), dtype=np.bool_)
        for view in self._snapshot.views:
            entries, found = view.segment.entries_of(ids)
            if len(view.dead) and len(entries):
                entries = entries[view.dead[entries] == 0]
                found = np.isin(ids, view.segment.ids[entries])
            here |= found
        return here

    def __contains__(self, item_id: int) -> bool:
        return bool(self._has(np.array([item_id], dtype=np.int64))[0])

    def __len__(self) -> int:
        return self._snapshot.n_items

    def __repr__(self) -> str:
        snapshot = self._snapshot
        return (
            f"HashIndex({len(self)} items, dim={snapshot.dim}, "
            f"{len(snapshot.directory.buckets)} of {self.shape.n_buckets} buckets occupied)"
        )

    @property
    def shape(self) -> CodeShape:
        """Shape of the table."""
        return self._snapshot.shape

    @property
    def has_labels(self) -> bool:
        """Whether the items have labels."""
        return self._snapshot.with_labels

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self._snapshot.dim
