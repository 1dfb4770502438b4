"""The table: a model, an index and what belongs to the items, as one thing."""

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
    """Learns a hash table from labelled items, holds the items, and finds the nearest ones.

    Parameters
    ----------
    width, depth, sparsity
        Slots per level (None: from the number of classes), levels, and buckets per item.
        The table has ``width ** depth`` buckets.
    metric
        ``"euclidean"``; ``"cosine"``: 1 - cosine; ``"inner_product"`` with the largest first.
    place
        ``"label"``: an item whose label is known goes to the buckets of its label. ``"network"``:
        all items go where the network puts them, as in the paper.
    vectors
        ``"float16"``: vectors are rounded once, when they are added, and take half the memory;
        not for ``metric="cosine"``.
    first_pass
        ``"int8"``: codes beside the vectors, a quarter of their size, of which a search reads most
        and of the vectors few. The same results; faster from a disk, see docs/results/int8.md.
    settings
        Further settings of :class:`Hasher`: ``loss``, ``backbone``, ``steps``, ...

    The parts: ``hasher`` is the model, ``index`` the buckets with the vectors, ``catalog`` the
    ids, labels, names and payload behind the numbers in the index.

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
        """Put a table together: from a fitted hasher alone an empty one, to be filled by `add`.

        Without a hasher the table can be inspected and searched through ``table.index``. Items of
        an index that a new catalog knows nothing of have their numbers as ids.
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
            Labels. None (or NaN) marks an item without one: it is not learned from, but it is in
            the table. Without any labels, clusters of the items take the place of classes.
        ids : int[n] or str[n], optional
            None twice; integers are not negative. Default: 0..n-1.
        names : str[n], optional
            Names of the items, file names for instance.
        payload : list of dicts, dict of columns, pandas or Arrow table, optional
            What you want to have back with an item: values of JSON, by the names of their fields.
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

        ``ids`` are integers or strings, as those of the table are; integers may be left out.
        Labels may be missing for some or all; one that the table does not have is an error. With
        ``new_labels`` it becomes a class of the table: the model gets a prototype and a code for
        it, if it has such, from the items that are added (see :meth:`Hasher.extend`).
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
        """Replace the items with these ids, or add them; a search sees the old or the new ones.

        An item that is replaced keeps nothing: its label, name and payload are those given here.
        """
        self._put(X, labels, ids, names, payload, new_labels, replace=True)

    def _put(
        self, X: Any, labels: Any, ids: Any, names: Any, payload: Any, new_labels: bool,
        replace: bool,
    ) -> Ids:  # fmt: skip
        before, encoded = self.hasher, self.encode(X)
        if labels is not None:
            labels = label_array(labels, len(encoded))
        try:
            if new_labels and labels is not None and self._extend(X, labels):
                encoded = self.encode(X)
            if labels is not None:
                encoded = self.placed(encoded, labels)
            if isinstance(self._live, Catalog):
                unit_length, dim = self.metric == "cosine", encoded.vectors.shape[1]
                index = _empty_index(self._fitted_hasher(), dim, unit_length, self._storage)
                self._live = Local(State(index, self._live))
            items = NewItems(
                encoded.bucket_ids, encoded.vectors, ids, labels, names, payload,
                None if new_labels else self.known_labels, replace,
            )  # fmt: skip
            change = self._live.change(items)
        except BaseException:
            if self.hasher is not before:
                self._use_model(before)
            raise
        return (
            np.array(list(ids), dtype=object) if self.catalog.id_kind == "str" else change.numbers
        )

    def _extend(self, X: Any, labels: npt.NDArray[np.object_]) -> bool:
        """Let the model learn classes that neither it nor the table knows, if it can."""
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
            # Before its items: a model that knows more than the table does no harm.
            hasher.save(self._live.path / MODEL_DIR)

    def remove(self, ids: Any = None, *, where: Any = None) -> int:
        """Remove items by id or by a filter, and return how many.

        An id that is not in the table is an error, and nothing is removed.
        """
        change = self._filled().change(removal(ids, where))
        return len(change.numbers)

    def create_index(self, field: str) -> None:
        """Keep an index of a field of the payload, so that filters on it need not read all items.

        A filter reads the payload of every item, for a million items in about a second; with an
        index of its field it reads those that match. ``label``, ``id`` and ``name`` need none.
        """
        self._filled().create_index(field)

    def placed(self, encoded: Encoded, labels: npt.NDArray[np.object_]) -> Encoded:
        """Items with the buckets that they go to, by ``place`` and their labels; None: has none."""
        if self.hasher is None or self.catalog.place == "network":
            return encoded
        return self.hasher.place(encoded, labels)

    # -- searching ---------------------------------------------------------------------------------

    def encode(
        self, X: npt.ArrayLike | Encoded, *, n_probe: int = 1, scores: bool = True,
        cancel: Cancel | None = None,
    ) -> Encoded:  # fmt: skip
        """What the model makes of items; one item alone is taken as a batch of one.

        ``n_probe``, ``scores`` and ``cancel`` as for :meth:`Hasher.encode`.
        """
        if isinstance(X, Encoded):
            return X
        hasher = self._fitted_hasher()
        items = as_array("X", hasher.with_features(X))
        if items.shape == hasher.item_shape:
            items = items[None]
        return hasher.encoder.encode(items, n_probe, scores=scores, cancel=cancel or NEVER)

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
            Queries as :meth:`fit` takes items, or one alone, or what :meth:`encode` made of them.
        n_probe
            1: look into the query's own buckets. More: into as many of the best occupied ones,
            which finds more and takes longer.
        max_candidates
            Compare at most this many items with a query.
        fill
            Whether a query with fewer than ``n_neighbors`` candidates continues to further buckets.
        where
            Only items for which this holds may be found: a dict of fields of the payload, or
            ``label``, ``id``, ``name``, that are joined by and. ``{"brand": "a"}``,
            ``{"brand": ["a", "b"]}``, ``{"price": {"<": 10, ">=": 5}}`` with ``= != < <= > >= in``,
            ``{"any": [filter, ...]}``, ``{"not": filter}``; ``"a.b"`` is ``b`` within ``a``.
            Values compare with values of their own kind; None is null, and a missing field. The
            answers of the last filters are kept until the table changes; see :meth:`create_index`.
        filter_ids, exclude_self, threads
            As for :meth:`HashIndex.search`, with ids of this table.
        cancel
            Stops the search when it is set, by another thread; then ``Cancelled`` is raised.
        """
        n_probe = checked_count("n_probe", n_probe)
        state = self._filled().state
        passing = self._filter(state, where, filter_ids, cancel)
        n_ranked = state.index.n_ranked(n_probe, passing)
        encoded = self.encode(Q, n_probe=n_ranked, scores=False, cancel=cancel)
        if not isinstance(exclude_self, bool):
            exclude_self = state.catalog.numbers_of(exclude_self)
        result = state.index.search(
            encoded.vectors,
            **encoded.where_to_look(n_probe),
            n_neighbors=n_neighbors,
            max_candidates=max_candidates,
            fill="path" if fill else "none",
            filter_ids=passing,
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
        """``n_probe`` for :meth:`encode` of queries that are searched with a filter."""
        state = self._filled().state
        return state.index.n_ranked(n_probe, self._filter(state, where, filter_ids, cancel))

    @staticmethod
    def _filter(state: State, where: Any, filter_ids: Any, cancel: Cancel | None) -> Filter | None:
        """What may be found, as the index takes it; the last answers of ``where`` are kept."""
        if where is not None and filter_ids is not None:
            raise ValueError("where and filter_ids are both given, must be one of them")
        if where is not None:
            return state.catalog.filter(where, cancel)
        if filter_ids is not None:
            return state.index.make_filter(state.catalog.numbers_of(filter_ids))
        return None

    def matches(self, result: SearchResult) -> Matches:
        """Results of ``table.index.search`` with the ids, labels, names and payload of items."""
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
        catalog = Catalog(self.catalog.classes)  # labels of queries alone do not become classes
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

    # -- looking into it ---------------------------------------------------------------------------

    def explain(
        self, q: npt.ArrayLike | Encoded, *, n_probe: int = 1, where: Any = None,
        filter_ids: Any = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Say how the results of one query came about; see :meth:`HashIndex.explain`.

        ``where`` and ``filter_ids`` are those of :meth:`search`.
        """
        n_probe = checked_count("n_probe", n_probe)
        state = self._filled().state
        passing = self._filter(state, where, filter_ids, options.get("cancel"))
        encoded = self.encode(q, n_probe=state.index.n_ranked(n_probe, passing))
        if len(encoded) != 1:
            raise ValueError(f"q has {len(encoded)} items, must be one")
        exclude = options.get("exclude_self", False)
        if not isinstance(exclude, bool):
            options["exclude_self"] = state.catalog.numbers_of(exclude)
        explained = state.index.explain(
            encoded.vectors[0],
            **encoded.where_to_look(n_probe),
            shown_scores=encoded.scores,
            metric=self.metric,
            filter_ids=passing,
            **options,
        )
        described: dict[str, Any] = self.with_labels(explained)
        numbers = np.array([match["id"] for match in described["results"]], dtype=np.int64)
        for match, item in zip(described["results"], self.catalog.ids_of(numbers), strict=True):
            match["id"] = item if isinstance(item, str) else int(item)
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

    def ids(self, where: Any = None) -> Ids:
        """Ids of all items, or of those for which a filter holds, in the order of their numbers."""
        catalog = self.catalog
        return catalog.ids_of(catalog.where(where)).copy()

    def count(self, where: Any = None) -> int:
        """Number of items, or of those for which a filter holds."""
        return len(self) if where is None else len(self.catalog.where(where))

    def __getitem__(self, item_id: int | str) -> Item:
        state = self._filled().state
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
        """The index; there is none before the table has items."""
        return self._filled().state.index

    @property
    def catalog(self) -> Catalog:
        """Ids, labels, names and payload of the items."""
        return self._live if isinstance(self._live, Catalog) else self._live.state.catalog

    @property
    def known_labels(self) -> list[Label]:
        """Labels that :meth:`add` takes: those of the items, and those that the model learned."""
        learned: list[Label] = []
        if self.hasher is not None and self.hasher.config_.codes_of != "clusters":
            learned = self.hasher.classes_.tolist()  # clusters have numbers, which are no labels
        return [*self.catalog.classes, *learned]

    def _filled(self) -> Local | DurableIndex:
        if isinstance(self._live, Catalog):
            raise NotFittedError("this table is empty: call fit, or add items to a fitted one")
        return self._live

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
        directory, live = Path(path), self._filled()
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
        """Open a table that was saved, as it is now. The vectors are mapped into memory, not read.

        Changes of others do not show, and it is an error to change it after them. From the first
        change until :meth:`save` nobody else can change the table in the directory.
        ``backbone`` and ``features`` are networks of your own, as for :meth:`Hasher.load`.
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
        """Open a table so that a change is on disk when its call returns.

        Changes of several threads that wait together cost one flush of the disk. There is one
        writer at a time, and any number of readers in any process, each of which sees a whole
        commit: with ``read_only`` the last one before it was opened, or before :meth:`refresh`.
        Close it, or use it as a context manager. Changes after number ``keep_changes_after`` stay
        in the log, for those that follow it; see ``hashcade.cluster.Writer``.
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
        """Of a table that is open for changes: keep those after this number in the log."""
        live = self._filled()
        if not isinstance(live, DurableIndex):
            raise ValueError("only a table from HashTable.open has a log of changes")
        live.keep_after = after

    def refresh(self) -> bool:
        """Of a table that is open for reading: see the last commit; whether there was a new one."""
        live = self._filled()
        if not isinstance(live, DurableIndex):
            raise ValueError("only a table from HashTable.open follows the changes of others")
        new = live.reload()
        if new:
            self.hasher = _load_model(live.path)
        return new

    def close(self) -> None:
        """Release the directory. A table from :meth:`open` has saved all; others drop changes."""
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
