"""Which vectors of a partly remote index a search needs: found by codes, to be fetched at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashcade._kernels import kernel
from hashcade.index.cancel import NEVER
from hashcade.index.distances import EUCLIDEAN, sum_of_squares
from hashcade.index.kernel import COLLECT, COLLECT_AND_BOUND, search_segments, set_error


@kernel()
def missing_vectors(  # type: ignore[no-untyped-def]
    table, visits, max_norm, queries, metric, cancel, exclude, n_neighbors, uses_bounds
):
    """Return the vectors that planned visits need but are missing: int64[m, 2], segment and entry.

    With ``uses_bounds`` the codes of a visit that cannot be reranked bound the next visits of its
    query. Without, they do not, and then no vector that a search needs can be left out.
    """
    n_queries, n_entries = queries.shape[0], 0
    norms, errors = np.empty(n_queries), np.empty(n_queries)
    for q in range(n_queries):
        set_error(queries, q, metric, sum_of_squares(queries, q), max_norm, norms, errors)
    for visit in range(visits.shape[0]):
        n_entries += visits[visit, 3] - visits[visit, 2]
    distances = np.empty((n_queries, n_neighbors), np.float32)
    ids = np.empty((n_queries, n_neighbors), np.int64)
    missing_bounds = np.full(n_queries, np.inf)
    missing = np.empty((n_entries, 2), np.int64)
    n_missing = search_segments(
        table, visits, queries, metric, norms, errors, exclude, distances, ids,
        np.zeros(n_queries, np.int64), cancel, COLLECT_AND_BOUND if uses_bounds else COLLECT,
        missing_bounds, missing,
    )  # fmt: skip
    return missing[:n_missing].copy()


def warmup(table: npt.NDArray[np.int64]) -> None:
    """Compile it, or load it from the cache."""
    queries, no_visits = np.zeros((1, 1), np.float32), np.empty((0, 6), np.int64)
    no_ids = np.empty(0, np.int64)
    missing_vectors(table, no_visits, 0.0, queries, EUCLIDEAN, NEVER.address, no_ids, 1, True)
