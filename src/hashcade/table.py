"""The table: a model, an index and what belongs to the items, as one thing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hashcade._io import new_directory, writer_lock
from hashcade._validate import as_array, checked_choice, checked_count
from hashcade.errors import NotFittedError, StorageError
from hashcade.index import METRICS, NO_LABEL, Encoded, HashIndex, SearchResult
from hashcade.store import (
    INDEX_DIR,
    MODEL_DIR,
    Catalog,
    Label,
    Position,
    State,
    load_state,
    save_state,
)
from hashcade.warmup import ensure_compiled

if TYPE_CHECKING:
    from hashcade.evaluate import Evaluation
    from hashcade.learn import Hasher


@dataclass(frozen=True)
class Match:
    """One result of a search."""

    id: int
    distance: float
    label: Label | None = None
    name: str | None = None


@dataclass(frozen=True, eq=False)
class Matches:
    """Results of a search. ``matches[0]`` is a list of :class:`Match` for the first query."""

    ids: npt.NDArray[np.int64]  # (q, n_neighbors), best first, padded with -1
    distances: npt.NDArray[np.float32]  # (q, n_neighbors); inner products: the largest first
    candidates: npt.NDArray[np.int64]  # (q,): items that were compared with the query
    truncated: npt.NDArray[np.bool_]  # (q,): whether max_candidates ended the search
    find_labels: Callable[[], npt.NDArray[np.object_]] = field(repr=False)
    find_names: Callable[[], npt.NDArray[np.object_]] = field(repr=False)

    @cached_property
    def labels(self) -> npt.NDArray[np.object_]:
        """Labels as they were given, (q, n_neighbors); None without one. Found when asked for."""
        return self.find_labels()

    @cached_property
    def names(self) -> npt.NDArray[np.object_]:
        """Names of the items, (q, n_neighbors); None without one."""
        return self.find_names()

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies, which hold labels and names instead of the table."""
        found = {"labels": self.labels, "names": self.names}
        return {**{k: v for k, v in vars(self).items() if not k.startswith("find_")}, **found}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, query: int) -> list[Match]:
        row = zip(
            self.ids[query].tolist(),
            self.distances[query].tolist(),
            self.labels[query],
            self.names[query],
            strict=True,
        )
        return [Match(*values) for values in row if values[0] >= 0]

    def __iter__(self) -> Iterator[list[Match]]:
        return (self[query] for query in range(len(self)))


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a table."""

    id: int
    label: Label | None
    name: str | None
    vector: npt.NDArray[np.float32]
    bucket_ids: list[int]


class HashTable:
    """Learns a hash table from labelled items, holds the items, and finds the nearest ones.

    Parameters
    ----------
    width, depth, sparsity
        Slots per level (None: from the number of classes), levels, and buckets per item.
        The table has ``width ** depth`` buckets.
    metric
        ``"euclidean"``, or ``"inner_product"`` with the largest first.
    place
        ``"label"``: an item whose label is known goes to the buckets of its label. ``"network"``:
        all items go where the network puts them, as in the paper.
    settings
        Further settings of :class:`Hasher`: ``loss``, ``backbone``, ``steps``, ...

    The parts: ``hasher`` is the model, ``index`` the buckets with the vectors, ``catalog`` the
    labels and names behind the numbers in the index.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["ant", "bee", "cat"], 40)
    >>> X = np.repeat(np.eye(3), 40, axis=0) + 0.1 * rng.normal(size=(120, 3))
    >>> table = HashTable(width=4, steps=50).fit(X, y)
    >>> matches = table.search([[0.0, 1.0, 0.0]], 2)
    >>> [match.label for match in matches[0]], int(matches.candidates[0])
    (['bee', 'bee'], 40)
    """

    def __init__(
        self,
        *,
        width: int | None = None,
        depth: int = 2,
        sparsity: int = 1,
        metric: str = "euclidean",
        place: str = "label",
        **settings: Any,
    ) -> None:
        from hashcade.learn import Hasher

        self.metric = checked_choice("metric", metric, METRICS)
        self.hasher: Hasher | None = Hasher(width=width, depth=depth, sparsity=sparsity, **settings)
        self.catalog = Catalog(metric=metric, place=place)
        self._index: HashIndex | None = None
        self._path: Path | None = None  # where it was loaded from or last saved to
        self._position: Position | None = None  # which state of that directory this is
        self._changes = threading.Lock()

    @classmethod
    def from_parts(
        cls,
        hasher: Hasher | None,
        index: HashIndex | None = None,
        catalog: Catalog | None = None,
        *,
        metric: str | None = None,
    ) -> HashTable:
        """Put a table together: from a fitted hasher alone an empty one, to be filled by `add`.

        Without a hasher the table can be inspected and searched through ``table.index``.
        """
        if hasher is None and index is None:
            raise ValueError("hasher and index are both None, one of them must be given")
        table = cls.__new__(cls)
        table.hasher = hasher
        table.catalog = catalog or Catalog(metric=metric or "euclidean")
        table.metric = checked_choice("metric", metric or table.catalog.metric, METRICS)
        table._index = index
        table._path = table._position = None
        table._changes = threading.Lock()
        return table

    # -- learning and filling ----------------------------------------------------------------------

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        *,
        ids: npt.ArrayLike | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Self:
        """Learn from labelled items, then fill the table with all items.

        Parameters
        ----------
        X : float[n, size] or uint8[n, height, width, 3]
            Embeddings, or images if there is a ``backbone`` for them; with ``features`` images of
            any size, or paths of image files.
        y : int or str[n], optional
            Labels. None (or NaN) marks an item without one: it is not learned from, but it is in
            the table. Without any labels, clusters of the items take the place of classes.
        ids : int[n], optional
            Not negative, none twice. Default: 0..n-1.
        names : str[n], optional
            Names of the items, file names for instance.
        """
        if self.hasher is None:
            raise NotFittedError("this table has no model, and so no settings to fit with")
        hasher = type(self.hasher)(**self.hasher.get_params())
        items = as_array("X", hasher.with_features(X))
        catalog = Catalog(metric=self.metric, place=self.catalog.place)
        with catalog.change(len(items), names):
            codes = catalog.codes(y, len(items), name="y")
        ensure_compiled()
        labelled = codes != NO_LABEL
        if not labelled.any():
            if items.ndim != 2:
                raise ValueError("y is missing: images cannot be learned from without labels")
            hasher.fit_clusters(items)
        elif len({type(label) for label in catalog.classes}) > 1:
            raise ValueError("y mixes integers and strings, must be one of them")
        else:
            classes = np.asarray(catalog.classes)
            hasher.fit(items if labelled.all() else items[labelled], classes[codes[labelled]])
        labels = catalog.labels(codes) if catalog.place == "label" else None
        vectors, bucket_ids = hasher.place_items(items, labels)
        index = HashIndex.build(bucket_ids, vectors, ids, labels=codes, shape=hasher.shape_)
        catalog.name_items(np.arange(len(items)) if ids is None else as_array("ids", ids), names)
        self.hasher, self._index, self.catalog = hasher, index, catalog  # nothing can fail now
        return self

    def add(
        self,
        X: npt.ArrayLike | Encoded,
        *,
        labels: object = None,
        ids: npt.ArrayLike | None = None,
        names: Sequence[str | None] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Add items, and return their ids.

        Labels may be missing for some or all; a label that was never seen becomes a new class of
        the catalog (the model does not change).
        """
        encoded = self.encode(X)
        with self._changes, self.catalog.change(len(encoded), names):
            codes = self.catalog.codes(labels, len(encoded))
            encoded = self.placed(encoded, self.catalog.labels(codes))
            if self._index is None:
                self._index = _empty_index(self._fitted_hasher(), encoded.vectors.shape[1])
            added = self._index.add(encoded.bucket_ids, encoded.vectors, ids, codes)
            self.catalog.name_items(added, names)
        return added

    def upsert(
        self,
        ids: npt.ArrayLike,
        X: npt.ArrayLike | Encoded,
        *,
        labels: object = None,
        names: Sequence[str | None] | None = None,
    ) -> None:
        """Replace the items with these ids, or add them; a search sees the old or the new ones."""
        encoded = self.encode(X)
        with self._changes, self.catalog.change(len(encoded), names):
            codes = self.catalog.codes(labels, len(encoded))
            encoded = self.placed(encoded, self.catalog.labels(codes))
            self.index.upsert(ids, encoded.bucket_ids, encoded.vectors, codes)
            self.catalog.name_items(as_array("ids", ids), names)

    def remove(self, ids: npt.ArrayLike) -> None:
        """Remove items; an id that is not in the table is an error, and nothing is removed."""
        with self._changes:
            self.index.remove(ids)

    def placed(self, encoded: Encoded, labels: npt.NDArray[np.object_]) -> Encoded:
        """Items with the buckets that they go to, by ``place`` and their labels; None: has none."""
        if self.hasher is None or self.catalog.place == "network":
            return encoded
        return self.hasher.place(encoded, labels)

    # -- searching ---------------------------------------------------------------------------------

    def encode(
        self, X: npt.ArrayLike | Encoded, *, n_probe: int = 1, scores: bool = True
    ) -> Encoded:
        """What the model makes of items; one item alone is taken as a batch of one.

        ``n_probe`` and ``scores`` as for :meth:`Hasher.encode`.
        """
        if isinstance(X, Encoded):
            return X
        hasher = self._fitted_hasher()
        items = as_array("X", hasher.with_features(X))
        if items.shape == hasher.item_shape:
            items = items[None]
        return hasher.encode(items, n_probe=n_probe, scores=scores)

    def search(
        self,
        Q: npt.ArrayLike | Encoded,
        n_neighbors: int = 10,
        *,
        n_probe: int = 1,
        max_candidates: int | None = None,
        fill: bool = True,
        filter_ids: Any = None,
        exclude_self: Any = False,
        threads: int | None = None,
    ) -> Matches:
        """Find the nearest items among those in the buckets of each query.

        Parameters
        ----------
        Q
            Queries as :meth:`fit` takes items, or one alone, or what :meth:`encode` made of them.
        n_probe
            1: look into the query's own buckets. More: into as many of the best occupied ones,
            which finds more and takes longer.
        max_candidates
            Compare at most this many items with a query.
        fill
            Whether a query with fewer than ``n_neighbors`` candidates goes on to further buckets.
        filter_ids, exclude_self, threads
            As for :meth:`HashIndex.search`.
        """
        n_probe = checked_count("n_probe", n_probe)
        encoded = self.encode(Q, n_probe=n_probe, scores=False)
        result = self.index.search(
            encoded.vectors,
            **encoded.where_to_look(n_probe),
            n_neighbors=n_neighbors,
            max_candidates=max_candidates,
            fill="path" if fill else "none",
            filter_ids=filter_ids,
            exclude_self=exclude_self,
            metric=self.metric,
            threads=threads,
        )
        return self.matches(result)

    def matches(self, result: SearchResult) -> Matches:
        """Results of ``table.index.search`` with the labels and names of the items."""
        catalog = self.catalog
        return Matches(
            result.ids,
            result.distances,
            result.candidates,
            result.truncated,
            lambda: catalog.labels(result.label_codes()),
            lambda: catalog.names_of(result.ids),
        )

    def evaluate(
        self,
        Q: npt.ArrayLike | Encoded,
        y: npt.ArrayLike,
        *,
        n_neighbors: Any = (1, 10),
        n_probe: int = 1,
        exclude_self: Any = False,
        **options: Any,
    ) -> Evaluation:
        """Precision, speed-up and more for labelled queries; see :func:`evaluate_index`."""
        from hashcade.evaluate import evaluate_index

        n_probe = checked_count("n_probe", n_probe)
        encoded = self.encode(Q, n_probe=n_probe)
        catalog = Catalog(self.catalog.classes)  # labels of queries alone do not become classes
        codes = catalog.codes(y, len(encoded), name="y")
        if (codes == NO_LABEL).any():
            raise ValueError("y has missing labels, every query must have one")
        if exclude_self is True:
            exclude_self = np.arange(len(encoded))
        return evaluate_index(
            self.index,
            encoded,
            codes,
            n_neighbors=n_neighbors,
            n_probe=n_probe,
            exclude=None if exclude_self is False else exclude_self,
            metric=self.metric,
            **options,
        )

    # -- looking into it ---------------------------------------------------------------------------

    def explain(
        self, q: npt.ArrayLike | Encoded, *, n_probe: int = 1, **options: Any
    ) -> dict[str, Any]:
        """Say how the results of one query came about; see :meth:`HashIndex.explain`."""
        n_probe = checked_count("n_probe", n_probe)
        encoded = self.encode(q, n_probe=n_probe)
        if len(encoded) != 1:
            raise ValueError(f"q has {len(encoded)} items, must be one")
        where = encoded.where_to_look(n_probe)
        explained = self.index.explain(
            encoded.vectors[0], **where, shown_scores=encoded.scores, metric=self.metric, **options
        )
        described: dict[str, Any] = self.with_labels(explained)
        return described

    def stats(self) -> dict[str, Any]:
        """Describe the table in numbers; see :meth:`HashIndex.stats`."""
        described: dict[str, Any] = self.with_labels(self.index.stats())
        return described

    def with_labels(self, description: Any) -> Any:
        """A description by the index (``stats``, ``explain``, ``node``) with labels for codes."""
        if isinstance(description, dict):
            changed = {key: self.with_labels(value) for key, value in description.items()}
            if isinstance(description.get("classes"), dict):
                changed["classes"] = {
                    self.catalog.label(code): self.with_labels(value)
                    for code, value in description["classes"].items()
                }
            if "label" in description:
                code = description["label"]
                changed["label"] = None if code is None else self.catalog.label(code)
            return changed
        if isinstance(description, list):
            return [self.with_labels(value) for value in description]
        return description

    def __getitem__(self, item_id: int) -> Item:
        try:
            item = self.index.item(item_id)
        except ValueError as error:
            raise KeyError(str(error)) from None
        code = item["label"]
        return Item(
            id=int(item_id),
            label=None if code is None else self.catalog.label(code),
            name=self.catalog.names.get(int(item_id)),
            vector=item["vector"],
            bucket_ids=item["bucket_ids"].tolist(),
        )

    def __contains__(self, item_id: int) -> bool:
        return self._index is not None and item_id in self._index

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    def __repr__(self) -> str:
        if self._index is None:
            return f"HashTable({self.hasher!r}, empty)"
        return f"HashTable({len(self)} items, {len(self.catalog.classes)} classes, {self.index!r})"

    @property
    def index(self) -> HashIndex:
        """The index; there is none before the table has items."""
        if self._index is None:
            raise NotFittedError("this table is empty: call fit, or add items to a fitted one")
        return self._index

    def _fitted_hasher(self) -> Hasher:
        if self.hasher is None:
            raise NotFittedError("this table has no model: search it through table.index")
        return self.hasher

    # -- files -------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table into a directory: afterwards it holds the old state or the new one.

        Saved back to where it was loaded from, only what changed is written. Another table at
        ``path`` is replaced as a whole; anything else there is an error.
        """
        directory = Path(path)
        with self._changes:
            index = self.index
            if self._position is not None and self._path == directory.resolve():
                state = State(index, self.catalog)
                self._position = save_state(directory, state, self._position)
                return
            _refuse_foreign(directory)
            old_index = directory / INDEX_DIR
            lock = writer_lock(old_index) if old_index.is_dir() else nullcontext()
            with lock, new_directory(directory) as new:
                self.catalog.write(new)
                if self.hasher is not None:
                    self.hasher.save(new / MODEL_DIR)
                index.copy().save(new / INDEX_DIR)
            self._path = directory.resolve()
            state, self._position = load_state(directory)
            self._index = state.index

    @classmethod
    def load(cls, path: str | os.PathLike[str], **networks: Any) -> HashTable:
        """Open a table that was saved. The vectors are mapped into memory, not read.

        ``backbone`` and ``features`` are networks of your own, as for :meth:`Hasher.load`. Changes
        that a service has acknowledged and not saved yet are applied in memory.
        """
        directory = Path(path)
        state, position = load_state(directory)
        hasher = None
        if (directory / MODEL_DIR).is_dir():
            from hashcade.learn import Hasher

            hasher = Hasher.load(directory / MODEL_DIR, **networks)
        table = cls.from_parts(hasher, state.index, state.catalog)
        table._path, table._position = directory.resolve(), position
        return table


def _refuse_foreign(directory: Path) -> None:
    """Raise unless a table may be written at this path."""
    if not os.path.lexists(directory) or (directory.is_dir() and not any(directory.iterdir())):
        return
    try:
        Catalog.read(directory)
    except StorageError:
        raise StorageError(
            f"{directory} exists and is not a hashcade table", hint="choose another path"
        ) from None


def _empty_index(hasher: Hasher, dim: int) -> HashIndex:
    return HashIndex.build(
        np.empty((0, hasher.shape_.sparsity), dtype=np.int64),
        np.empty((0, dim), dtype=np.float32),
        labels=np.empty(0, dtype=np.int64),
        shape=hasher.shape_,
    )
