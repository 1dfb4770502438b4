"""``HashTable``: a model, an index, and the metadata of the items."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hashcade._io import new_directory, writer_lock
from hashcade._validate import as_array, checked_choice, checked_count
from hashcade.errors import NotFittedError
from hashcade.index import (
    METRICS,
    NEVER,
    NO_LABEL,
    Cancel,
    Encoded,
    Filter,
    HashIndex,
    SearchResult,
    check_storage,
)
from hashcade.results import Item, Matches
from hashcade.store import (
    INDEX_DIR,
    MODEL_DIR,
    Catalog,
    DurableIndex,
    Ids,
    Label,
    Local,
    NewItems,
    State,
    label_array,
    load_state,
    load_unreplaced,
    refuse_foreign,
    removal,
    write_state,
)
from hashcade.warmup import ensure_compiled

if TYPE_CHECKING:
    from hashcade.evaluate import Evaluation
    from hashcade.learn import Hasher


class HashTable:
    """A learned hash table: fit it to labelled items, fill it, and search the nearest ones.

    Parameters
    ----------
    width, depth, sparsity
        Slots per level (None: from the number of classes), levels, and buckets per item.
        The table has ``width ** depth`` buckets.
    metric
        ``"euclidean"``; ``"cosine"``: 1 - cosine; ``"inner_product"`` with the largest first.
    place
        ``"label"``: a labelled item goes to the buckets of its label, if the model has learned it.
        ``"network"``: all items go to the buckets that the network predicts, as in the paper.
    vectors
        ``"float32"``, or ``"float16"``: vectors are rounded when they are added, and take half the
        memory; not for ``metric="cosine"``.
    first_pass
        ``"int8"``: also store quantized codes, a quarter of the size of the vectors. A search scans
        the codes, and reads only few vectors. The same results; faster when read from disk, see
        docs/results/int8.md.
    settings
        Further settings of :class:`Hasher`: ``loss``, ``backbone``, ``steps``, ...

    Its parts are ``hasher``, the model; ``index``, the buckets with the vectors; and ``catalog``,
    the ids, labels, names and payload of the items.

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
        vectors: str = "float32",
        first_pass: str | None = None,
        **settings: Any,
    ) -> None:
        from hashcade.learn import Hasher

        check_storage(first_pass, vectors, metric == "cosine")
        self._storage: dict[str, Any] = {"dtype": vectors, "first_pass": first_pass}
        self.metric = checked_choice("metric", metric, METRICS)
        self.hasher: Hasher | None = Hasher(width=width, depth=depth, sparsity=sparsity, **settings)
        self._live: Local | DurableIndex | Catalog = Catalog(metric=metric, place=place)
        self._model_changed = False

    @classmethod
    def from_parts(
        cls,
        hasher: Hasher | None,
        index: HashIndex | None = None,
        catalog: Catalog | None = None,
        *,
        metric: str | None = None,
    ) -> HashTable:
        """Create a table from its parts; without an index it is empty, to be filled by :meth:`add`.

        Without a hasher the table can be inspected, and searched through ``table.index``. Without
        a catalog, the ids of the items are their numbers in the index.
        """
        if hasher is None and index is None:
            raise ValueError("hasher and index are both None, one of them must be given")
        table = cls.__new__(cls)
        table.hasher = hasher
        catalog = catalog or Catalog(metric=metric or "euclidean")
        table.metric = checked_choice("metric", metric or catalog.metric, METRICS)
        table._live, table._model_changed, table._storage = catalog, False, {}
        if index is not None:
            table._storage = {"dtype": index.dtype, "first_pass": index.first_pass}
            catalog.fill_from(index)
            table._live = Local(State(index, catalog))
        return table

    # -- learning and filling ----------------------------------------------------------------------

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        *,
        ids: Any = None,
        names: Sequence[str | None] | None = None,
        payload: Any = None,
    ) -> Self:
        """Learn from labelled items, then fill the table with all items.

        Parameters
        ----------
        X : float[n, size] or uint8[n, height, width, 3]
            Embeddings, or images if there is a ``backbone`` for them; with ``features`` images of
            any size, or paths of image files.
        y : int or str[n], optional
            Labels. An item with None (or NaN) is in the table, but is not learned from. Without
            any labels, clusters of the items take the place of classes.
        ids : int[n] or str[n], optional
            Unique ids; integers must not be negative. Default: 0..n-1.
        names : str[n], optional
            Names of the items, such as file names.
        payload : list of dicts, dict of columns, pandas or Arrow table, optional
            Data to be returned with an item: JSON values by field name.
        """
        if self.hasher is None:
            raise NotFittedError("this table has no model, and so no settings to fit with")
        if isinstance(self._live, DurableIndex):
            raise ValueError("this table is open for changes: fit another one, and save it there")
        hasher = type(self.hasher)(**self.hasher.get_params())
        items = as_array("X", hasher.with_features(X))
        catalog = Catalog(metric=self.metric, place=self.catalog.place)
        with catalog.change():
            codes = catalog.codes(y, len(items), name="y")
            numbers = catalog.put(codes, 0, ids=ids, names=names, payload=payload)
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
        index = HashIndex.build(
            bucket_ids, vectors, numbers, codes, shape=hasher.shape_,
            unit_length=self.metric == "cosine", **self._storage,
        )  # fmt: skip
        self.hasher, self._live = hasher, Local(State(index, catalog))  # nothing can fail now
        return self

    def add(
        self,
        X: npt.ArrayLike | Encoded,
        *,
        labels: object = None,
        ids: Any = None,
        names: Sequence[str | None] | None = None,
        payload: Any = None,
        new_labels: bool = False,
    ) -> Ids:
        """Add items, and return their ids.

        ``ids`` are integers or strings, like those of the table; integers may be left out. Labels
        may be missing for some or all items; an unknown label is an error. With ``new_labels`` it
        becomes a class of the table: if the model has prototypes and codes, it learns those of the
        class from the items that are added (see :meth:`Hasher.extend`).
        """
        return self._put(X, labels, ids, names, payload, new_labels, replace=False)

    def upsert(
        self,
        ids: Any,
        X: npt.ArrayLike | Encoded,
        *,
        labels: object = None,
        names: Sequence[str | None] | None = None,
        payload: Any = None,
        new_labels: bool = False,
    ) -> None:
        """Replace the items with these ids, or add them; atomic for searches.

        Label, name and payload are replaced as well, also by None.
        """
        self._put(X, labels, ids, names, payload, new_labels, replace=True)

    def _put(
        self, X: Any, labels: Any, ids: Any, names: Any, payload: Any, new_labels: bool,
        replace: bool,
    ) -> Ids:  # fmt: skip
        old_hasher, encoded = self.hasher, self.encode(X)
        if labels is not None:
            labels = label_array(labels, len(encoded))
        try:
            if new_labels and labels is not None and self._extend(X, labels):
                encoded = self.encode(X)
            if labels is not None:
                encoded = self.placed(encoded, labels)
            if isinstance(self._live, Catalog):
                unit_length, dim = self.metric == "cosine", encoded.vectors.shape[1]
                index = _empty_index(self._require_hasher(), dim, unit_length, self._storage)
                self._live = Local(State(index, self._live))
            items = NewItems(
                encoded.bucket_ids, encoded.vectors, ids, labels, names, payload,
                None if new_labels else self.known_labels, replace,
            )  # fmt: skip
            change = self._live.change(items)
        except BaseException:
            if self.hasher is not old_hasher:
                self._use_model(old_hasher)
            raise
        return (
            np.array(list(ids), dtype=object) if self.catalog.id_kind == "str" else change.numbers
        )

    def _extend(self, X: Any, labels: npt.NDArray[np.object_]) -> bool:
        """Extend the model, if it can be, by labels that are new to it and to the table."""
        hasher = self.hasher
        if hasher is None or isinstance(X, Encoded):
            return False
        known = {None, *self.known_labels}
        new = np.array([label not in known for label in labels.tolist()], dtype=np.bool_)
        config = hasher.config_
        if not new.any() or not config.uses_prototypes or config.codes_of != "classes":
            return False
        items = as_array("X", X).reshape(len(labels), *hasher.item_shape)
        self._use_model(hasher.extend(items[new], np.array(labels[new].tolist())))
        return True

    def _use_model(self, hasher: Hasher | None) -> None:
        self.hasher, self._model_changed = hasher, True
        if isinstance(self._live, DurableIndex) and hasher is not None:
            # Before its items: a model with more classes than the table is harmless.
            hasher.save(self._live.path / MODEL_DIR)

    def remove(self, ids: Any = None, *, where: Any = None) -> int:
        """Remove items by id or by a filter, and return how many.

        An unknown id is an error, and nothing is removed.
        """
        change = self._require_items().change(removal(ids, where))
        return len(change.numbers)

    def create_index(self, field: str) -> None:
        """Create an index of a payload field, so that filters on it need not read all items.

        A filter reads the payload of every item, about a second for a million items; with an index
        it only reads those that match. ``label``, ``id`` and ``name`` need no index.
        """
        self._require_items().create_index(field)

    def placed(self, encoded: Encoded, labels: npt.NDArray[np.object_]) -> Encoded:
        """Assign items to buckets by ``place`` and their labels, None for items without one."""
        if self.hasher is None or self.catalog.place == "network":
            return encoded
        return self.hasher.place(encoded, labels)

    # -- searching ---------------------------------------------------------------------------------

    def encode(
        self, X: npt.ArrayLike | Encoded, *, n_probe: int = 1, scores: bool = True,
        cancel: Cancel | None = None,
    ) -> Encoded:  # fmt: skip
        """Encode items with the model; a single item is treated as a batch of one.

        ``n_probe``, ``scores`` and ``cancel`` are as for :meth:`Hasher.encode`.
        """
        if isinstance(X, Encoded):
            return X
        hasher = self._require_hasher()
        items, encoder = as_array("X", hasher.with_features(X)), hasher.encoder
        if items.shape == encoder.config.item_shape:
            items = items[None]
        return encoder.encode(items, n_probe, scores=scores, cancel=cancel or NEVER)

    def search(
        self,
        Q: npt.ArrayLike | Encoded,
        n_neighbors: int = 10,
        *,
        n_probe: int = 1,
        max_candidates: int | None = None,
        fill: bool = True,
        where: Any = None,
        filter_ids: Any = None,
        exclude_self: Any = False,
        threads: int | None = None,
        cancel: Cancel | None = None,
    ) -> Matches:
        """Find the nearest items among those in the buckets of each query.

        Parameters
        ----------
        Q
            Queries, like the items of :meth:`fit`; or a single query, or the result of
            :meth:`encode`.
        n_probe
            Number of buckets to search. 1: the query's own. More: the best occupied ones, which
            improves recall and takes longer.
        max_candidates
            Compare at most this many items with a query.
        fill
            Whether a query with fewer than ``n_neighbors`` candidates continues to further buckets.
        where
            Return only items that match this filter: a dict of conditions, joined by and, on fields
            of the payload or ``label``, ``id``, ``name``. ``{"brand": "a"}``,
            ``{"brand": ["a", "b"]}``, ``{"price": {"<": 10, ">=": 5}}`` with ``= != < <= > >= in``,
            ``{"any": [filter, ...]}``, ``{"not": filter}``; ``"a.b"`` is ``b`` within ``a``.
            Only values of the same type compare; None matches null and a missing field. The results
            of the last filters are cached until the table changes; see :meth:`create_index`.
        filter_ids, exclude_self, threads
            As for :meth:`HashIndex.search`, with ids of this table.
        cancel
            Stops the search when another thread sets it; ``Cancelled`` is raised.
        """
        n_probe = checked_count("n_probe", n_probe)
        state = self._require_items().state
        item_filter, n_ranked = None, n_probe
        if where is not None or filter_ids is not None:
            item_filter = self._filter(state, where, filter_ids, cancel)
            n_ranked = state.index.n_ranked(n_probe, item_filter)
        encoded = self.encode(Q, n_probe=n_ranked, scores=False, cancel=cancel)
        if not isinstance(exclude_self, bool):
            exclude_self = state.catalog.numbers_of(exclude_self)
        result = state.index.search(
            encoded.vectors,
            **encoded.where_to_look(n_probe),
            n_neighbors=n_neighbors,
            max_candidates=max_candidates,
            fill="path" if fill else "none",
            filter_ids=item_filter,
            exclude_self=exclude_self,
            metric=self.metric,
            threads=threads,
            cancel=cancel,
        )
        return Matches.of(state.catalog, result)

    def n_ranked(
        self, n_probe: int, *, where: Any = None, filter_ids: Any = None,
        cancel: Cancel | None = None,
    ) -> int:  # fmt: skip
        """The ``n_probe`` for :meth:`encode` of queries that are searched with a filter."""
        state = self._require_items().state
        return state.index.n_ranked(n_probe, self._filter(state, where, filter_ids, cancel))

    @staticmethod
    def _filter(state: State, where: Any, filter_ids: Any, cancel: Cancel | None) -> Filter | None:
        """The filter for the index; results of ``where`` are cached."""
        if where is not None and filter_ids is not None:
            raise ValueError("where and filter_ids are both given, must be one of them")
        if where is not None:
            return state.catalog.filter(where, cancel)
        if filter_ids is not None:
            return state.index.make_filter(state.catalog.numbers_of(filter_ids))
        return None

    def matches(self, result: SearchResult) -> Matches:
        """Results of ``table.index.search``, with ids, labels, names and payload of the items."""
        return Matches.of(self.catalog, result)

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
        catalog = Catalog(self.catalog.classes)  # labels of queries must not become classes
        codes = catalog.codes(y, len(encoded), name="y")
        if (codes == NO_LABEL).any():
            raise ValueError("y has missing labels, every query must have one")
        if exclude_self is True:
            exclude_self = np.arange(len(encoded))
        elif exclude_self is not False:
            exclude_self = self.catalog.numbers_of(exclude_self)
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

    # -- inspection --------------------------------------------------------------------------------

    def explain(
        self, q: npt.ArrayLike | Encoded, *, n_probe: int = 1, where: Any = None,
        filter_ids: Any = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Explain the results of one query; see :meth:`HashIndex.explain`.

        ``where`` and ``filter_ids`` are as for :meth:`search`.
        """
        n_probe = checked_count("n_probe", n_probe)
        state = self._require_items().state
        item_filter = self._filter(state, where, filter_ids, options.get("cancel"))
        encoded = self.encode(q, n_probe=state.index.n_ranked(n_probe, item_filter))
        if len(encoded) != 1:
            raise ValueError(f"q has {len(encoded)} items, must be one")
        exclude = options.get("exclude_self", False)
        if not isinstance(exclude, bool):
            options["exclude_self"] = state.catalog.numbers_of(exclude)
        description = state.index.explain(
            encoded.vectors[0],
            **encoded.where_to_look(n_probe),
            shown_scores=encoded.scores,
            metric=self.metric,
            filter_ids=item_filter,
            **options,
        )
        explanation: dict[str, Any] = self.with_labels(description)
        numbers = np.array([match["id"] for match in explanation["results"]], dtype=np.int64)
        for match, item in zip(explanation["results"], self.catalog.ids_of(numbers), strict=True):
            match["id"] = item if isinstance(item, str) else int(item)
        return explanation

    def stats(self) -> dict[str, Any]:
        """Statistics of the table; see :meth:`HashIndex.stats`."""
        stats: dict[str, Any] = self.with_labels(self.index.stats())
        return stats

    def with_labels(self, description: Any) -> Any:
        """Replace label codes by labels in a description (``stats``, ``explain``, ``node``)."""
        if isinstance(description, dict):
            labelled = {key: self.with_labels(value) for key, value in description.items()}
            if isinstance(description.get("classes"), dict):
                labelled["classes"] = {
                    self.catalog.label(code): self.with_labels(value)
                    for code, value in description["classes"].items()
                }
            if "label" in description:
                code = description["label"]
                labelled["label"] = None if code is None else self.catalog.label(code)
            return labelled
        if isinstance(description, list):
            return [self.with_labels(value) for value in description]
        return description

    def ids(self, where: Any = None) -> Ids:
        """Ids of all items, or of those that match a filter, by ascending item number."""
        catalog = self.catalog
        return catalog.ids_of(catalog.where(where)).copy()

    def count(self, where: Any = None) -> int:
        """Number of items, or of those that match a filter."""
        return len(self) if where is None else len(self.catalog.where(where))

    def __getitem__(self, item_id: int | str) -> Item:
        state = self._require_items().state
        number = state.catalog.number_of(item_id)
        try:
            if number is None:
                raise ValueError(f"id {item_id!r} not in the table")
            item = state.index.item(number)
        except ValueError as error:
            raise KeyError(str(error)) from None
        numbers, code = np.array([number]), item["label"]
        return Item(
            id=state.catalog.ids_of(numbers).tolist()[0],
            label=None if code is None else state.catalog.label(code),
            name=state.catalog.names_of(numbers)[0],
            payload=state.catalog.payload_of(numbers)[0],
            vector=item["vector"],
            bucket_ids=item["bucket_ids"].tolist(),
        )

    def __contains__(self, item_id: int | str) -> bool:
        if isinstance(self._live, Catalog):
            return False
        number = self.catalog.number_of(item_id)
        return number is not None and number in self.index

    def __len__(self) -> int:
        return 0 if isinstance(self._live, Catalog) else len(self.index)

    def __repr__(self) -> str:
        if isinstance(self._live, Catalog):
            return f"HashTable({self.hasher!r}, empty)"
        return f"HashTable({len(self)} items, {len(self.catalog.classes)} classes, {self.index!r})"

    @property
    def index(self) -> HashIndex:
        """The index; an error if the table is empty."""
        return self._require_items().state.index

    @property
    def catalog(self) -> Catalog:
        """Ids, labels, names and payload of the items."""
        return self._live if isinstance(self._live, Catalog) else self._live.state.catalog

    @property
    def known_labels(self) -> list[Label]:
        """Labels that :meth:`add` accepts: those of the table, and those that the model learned."""
        model_labels: list[Label] = []
        if self.hasher is not None and self.hasher.config_.codes_of != "clusters":
            model_labels = self.hasher.classes_.tolist()  # cluster numbers are not labels
        return [*self.catalog.classes, *model_labels]

    def _require_items(self) -> Local | DurableIndex:
        if isinstance(self._live, Catalog):
            raise NotFittedError("this table is empty: call fit, or add items to a fitted one")
        return self._live

    def _require_hasher(self) -> Hasher:
        if self.hasher is None:
            raise NotFittedError("this table has no model: search it through table.index")
        return self.hasher

    # -- files -------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the table to a directory, atomically.

        If it was loaded from there, only changes are written. Another table at ``path`` is
        replaced; anything else there is an error.
        """
        directory, live = Path(path), self._require_items()
        if live.lives_in(directory):
            if self._model_changed and self.hasher is not None:
                self.hasher.save(directory / MODEL_DIR)
            live.save()
            self._model_changed = False
            return
        refuse_foreign(directory)
        old_index = directory / INDEX_DIR
        lock = writer_lock(old_index) if old_index.is_dir() else nullcontext()
        with lock, new_directory(directory) as new:
            if self.hasher is not None:
                self.hasher.save(new / MODEL_DIR)
            write_state(new, live.state)
        if isinstance(live, Local):
            state, _ = load_state(directory)
            live.release()
            self._live, self._model_changed = Local(state), False

    @classmethod
    def load(cls, path: str | os.PathLike[str], **networks: Any) -> HashTable:
        """Load the last commit of a saved table. The vectors are memory-mapped.

        Later changes by other processes are not visible; changing a table that another process has
        changed since is an error. From the first change until :meth:`save`, the table is locked
        for other writers. ``backbone`` and ``features`` are networks of your own, as for
        :meth:`Hasher.load`.
        """
        directory = Path(path)

        def load() -> HashTable:
            hasher = _load_model(directory, **networks)
            state, _ = load_state(directory)
            return cls.from_parts(hasher, state.index, state.catalog)

        return load_unreplaced(directory, load)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        keep_changes_after: int | None = None,
    ) -> HashTable:
        """Open a table for durable changes: a change is on disk when its call returns.

        Concurrent changes of several threads share one flush of the disk (group commit). There may
        be one writer, and any number of readers in any process; each reader sees one commit: with
        ``read_only`` the last one before it was opened, or before :meth:`refresh`. Close the table,
        or use it as a context manager. Changes after number ``keep_changes_after`` stay in the log
        for replicas; see ``hashcade.cluster.Writer``.
        """
        directory = Path(path)

        def load() -> HashTable:
            hasher = _load_model(directory)
            live = DurableIndex(directory, read_only=read_only, keep_after=keep_changes_after)
            table = cls.from_parts(hasher, live.index, live.state.catalog)
            table._live = live
            return table

        return load_unreplaced(directory, load)

    def keep_changes(self, after: int) -> None:
        """Keep changes after this number in the log; for a table open for changes."""
        live = self._require_items()
        if not isinstance(live, DurableIndex):
            raise ValueError("only a table from HashTable.open has a log of changes")
        live.keep_after = after

    def refresh(self) -> bool:
        """Load the last commit, if the table is read-only; returns whether it was new."""
        live = self._require_items()
        if not isinstance(live, DurableIndex):
            raise ValueError("only a table from HashTable.open follows the changes of others")
        is_new = live.reload()
        if is_new:
            self.hasher = _load_model(live.path)
        return is_new

    def close(self) -> None:
        """Release the directory, and drop unsaved changes; a table from :meth:`open` has none."""
        if not isinstance(self._live, Catalog):
            self._live.close()
        self.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _load_model(directory: Path, **networks: Any) -> Hasher | None:
    if not (directory / MODEL_DIR).is_dir():
        return None
    from hashcade.learn import Hasher

    return Hasher.load(directory / MODEL_DIR, **networks)


def _empty_index(hasher: Hasher, dim: int, unit_length: bool, storage: dict[str, Any]) -> HashIndex:
    return HashIndex.build(
        np.empty((0, hasher.shape_.sparsity), dtype=np.int64),
        np.empty((0, dim), dtype=np.float32),
        labels=np.empty(0, dtype=np.int64),
        shape=hasher.shape_,
        unit_length=unit_length,
        **storage,
    )
