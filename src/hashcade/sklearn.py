"""Adapter for scikit-learn: a learned table as a ``KNeighborsTransformer``.

Needs the extra ``sklearn``.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from hashcade._extras import require_extra

require_extra("sklearn", "sklearn")

from scipy.sparse import csr_matrix  # noqa: E402
from sklearn.base import BaseEstimator, TransformerMixin, clone  # noqa: E402

from hashcade._validate import checked_choice  # noqa: E402
from hashcade.errors import NotFittedError  # noqa: E402
from hashcade.learn import Hasher  # noqa: E402
from hashcade.table import HashTable  # noqa: E402

__all__ = ["HashNeighborsTransformer"]


class HashNeighborsTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Transform items into a graph of their nearest neighbors in a learned table.

    A drop-in replacement for scikit-learn's ``KNeighborsTransformer``, in a pipeline before an
    estimator with ``metric="precomputed"``. It is approximate, and learns from labels.

    Parameters
    ----------
    hasher
        A :class:`Hasher`, which is cloned and fitted; None: one with default settings.
    n_neighbors
        Neighbors per row of the graph.
    mode
        ``"distance"`` or ``"connectivity"``. As with ``KNeighborsTransformer``, rows of a distance
        graph have one more entry, because each fitted item is its own neighbor.
    n_probe
        Buckets to search, as for :meth:`HashTable.search`.

    Attributes
    ----------
    table_ : HashTable
        The fitted table.

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
        n_probe: int = 1,
    ) -> None:
        self.hasher = hasher
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.n_probe = n_probe

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn a table from labelled items, and fill it with them."""
        checked_choice("mode", self.mode, ("distance", "connectivity"))
        hasher = Hasher() if self.hasher is None else clone(self.hasher)
        table = HashTable.from_parts(hasher.fit(X, y))
        table.add(X)
        self.table_ = table
        self.n_samples_fit_ = len(table)
        return self

    def kneighbors(
        self, X: npt.ArrayLike, n_neighbors: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Distances and row numbers of the nearest items, both [q, n_neighbors].

        Rows are padded with infinity and -1 if there are fewer items.
        """
        if not hasattr(self, "table_"):
            raise NotFittedError("this transformer is not fitted yet: call fit")
        n = self.n_neighbors if n_neighbors is None else n_neighbors
        matches = self.table_.search(X, n, n_probe=self.n_probe)
        return matches.distances, matches.ids.astype(np.int64, copy=False)

    def kneighbors_graph(self, X: npt.ArrayLike) -> csr_matrix:
        """The neighbors as a sparse matrix, (queries, fitted items)."""
        has_self = self.mode == "distance"
        distances, ids = self.kneighbors(X, self.n_neighbors + has_self)
        is_neighbor = ids >= 0
        values = distances[is_neighbor] if has_self else np.ones(int(is_neighbor.sum()), np.float32)
        ends = np.concatenate([[0], np.cumsum(is_neighbor.sum(axis=1))])
        return csr_matrix((values, ids[is_neighbor], ends), shape=(len(ids), self.n_samples_fit_))

    def transform(self, X: npt.ArrayLike) -> csr_matrix:
        """The graph, see :meth:`kneighbors_graph`."""
        return self.kneighbors_graph(X)
