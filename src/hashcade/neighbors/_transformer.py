"""A table that is learned, filled and asked in one object, as scikit-learn's tools want it."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, TransformerMixin, clone

from hashcade.errors import NotFittedError
from hashcade.index._index import HashIndex
from hashcade.learn._hasher import Hasher


class HashNeighborsTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Graphs of nearest neighbours, found through a learned table.

    Stands where scikit-learn's ``KNeighborsTransformer`` can stand: before an estimator with
    ``metric="precomputed"`` in a pipeline. It is approximate, and it learns from labels.

    Parameters
    ----------
    hasher
        A :class:`Hasher`, which is copied and fitted; None: one with default settings.
    n_neighbors
        Neighbours per row of the graph.
    mode
        ``"distance"`` or ``"connectivity"``. As with ``KNeighborsTransformer``, rows of a graph
        of distances have one more entry, because an item that was fitted is its own neighbour.
    n_probe
        Buckets to look into. None: those of the hash function. In any case the search goes on
        until there are enough.

    Attributes
    ----------
    hasher_ : Hasher
    index_ : HashIndex
    n_samples_fit_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from hashcade import Hasher
    >>> X, y = np.repeat(np.eye(3), 20, axis=0), np.repeat(["ant", "bee", "cat"], 20)
    >>> table = HashNeighborsTransformer(hasher=Hasher(width=4, steps=20), n_neighbors=3)
    >>> model = make_pipeline(table, KNeighborsClassifier(3, metric="precomputed")).fit(X, y)
    >>> model.predict(X[[0, 30, 59]]).tolist()
    ['ant', 'bee', 'cat']
    """

    def __init__(
        self,
        *,
        hasher: Hasher | None = None,
        n_neighbors: int = 5,
        mode: str = "distance",
        n_probe: int | None = None,
    ) -> None:
        self.hasher = hasher
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.n_probe = n_probe

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn a table from labelled items, and put them into it."""
        if self.mode not in ("distance", "connectivity"):
            raise ValueError(f"mode={self.mode!r} must be 'distance' or 'connectivity'")
        hasher = Hasher() if self.hasher is None else clone(self.hasher)
        hasher.fit(X, y)
        self.index_ = HashIndex.build(hasher.transform(X), hasher.embed(X), shape=hasher.shape_)
        self.hasher_ = hasher
        self.n_samples_fit_ = len(self.index_)
        return self

    def kneighbors(
        self, X: npt.ArrayLike, n_neighbors: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Distances and row numbers of the nearest items, both [q, n_neighbors].

        Rows are padded with infinity and -1 if there are fewer items than were asked for.
        """
        if not hasattr(self, "index_"):
            raise NotFittedError("this transformer has learned nothing yet: call fit")
        wanted = self.n_neighbors if n_neighbors is None else n_neighbors
        hasher = self.hasher_
        where: dict[str, Any] = {"bucket_ids": hasher.transform(X)}
        if self.n_probe is not None or not hasattr(hasher, "codebook_"):
            where = {"scores": hasher.scores(X)}
        found = self.index_.search(
            hasher.embed(X), **where, n_neighbors=wanted, n_probe=self.n_probe
        )
        return np.where(found.ids < 0, np.float32(np.inf), found.distances), found.ids

    def kneighbors_graph(self, X: npt.ArrayLike) -> csr_matrix:
        """The neighbours as a sparse matrix, (queries, fitted items)."""
        extra = self.mode == "distance"
        distances, ids = self.kneighbors(X, self.n_neighbors + extra)
        there = ids >= 0
        values = distances[there] if extra else np.ones(int(there.sum()), np.float32)
        ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        return csr_matrix((values, ids[there], ends), shape=(len(ids), self.n_samples_fit_))

    def transform(self, X: npt.ArrayLike) -> csr_matrix:
        """The graph, see :meth:`kneighbors_graph`."""
        return self.kneighbors_graph(X)
